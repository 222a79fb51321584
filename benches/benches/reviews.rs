//! The cost of an admission review: of one, from the API server's bytes to the answer's, without TLS; and of 64 at
//! once, through the listener and TLS.
//!
//! The API server waits for it while it creates the pod. Some set-ups send all pods here, so a pod of others must cost
//! little more than its parsing. A burst of pods comes over many connections at once.

use std::fs;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::{sleep, spawn};
use std::time::Duration;

use apportion_abi::names::RESOURCE_SLOT;
use apportion_admission::{AdmissionSettings, GpuDelivery, RequestBelowLimit};
use apportion_webhook::judge::{ReviewKind, answer};
use apportion_webhook::review::AdmissionReview;
use apportion_webhook::{AdmissionRules, CertificateSource, WebhookOptions};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

const OUR_SCHEDULER: &str = "kai-scheduler";
/// What the API server adds to a pod: managed fields, a projected token, defaults.
const USUAL_BYTES: usize = 4 << 10;
const LARGE_BYTES: usize = 1 << 20;

fn rules() -> AdmissionRules {
    AdmissionRules {
        schedulers: vec![OUR_SCHEDULER.to_owned()],
        settings: AdmissionSettings {
            sharing: true,
            delivery: GpuDelivery::Slot(RESOURCE_SLOT.to_owned()),
            block_visible_devices: true,
            runtime_class: None,
            strict: None,
            count_shares: true,
            request_below_limit: RequestBelowLimit::default(),
        },
        compare_quotas: true,
        hami: false,
    }
}

fn review(scheduler: &str, annotations: &Value, bytes: usize) -> Vec<u8> {
    let filler = "x".repeat(bytes);
    let pod = json!({
        "metadata": {
            "name": "train-0",
            "namespace": "team",
            "annotations": annotations,
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": filler}}],
        },
        "spec": {
            "schedulerName": scheduler,
            "containers": [{
                "name": "main",
                "image": "pytorch/pytorch:2.9.0",
                "resources": {"requests": {"cpu": "2", "memory": "8Gi"}},
            }],
        },
    });
    let request = json!({"uid": "1", "operation": "CREATE", "namespace": "team", "object": pod});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
        .to_string()
        .into_bytes()
}

fn reviews(criterion: &mut Criterion) {
    let rules = rules();
    let share = json!({"gpu-memory": "2000"});
    let none = json!({});
    let pods = [
        (
            "of-another-scheduler",
            review("default-scheduler", &none, USUAL_BYTES),
        ),
        ("with-a-share", review(OUR_SCHEDULER, &share, USUAL_BYTES)),
        ("of-1-mib", review("default-scheduler", &none, LARGE_BYTES)),
    ];
    for (question, group) in [
        (ReviewKind::CompletePod, "review/mutate"),
        (ReviewKind::JudgePod, "review/validate"),
    ] {
        let mut group = criterion.benchmark_group(group);
        for (name, body) in &pods {
            group.throughput(Throughput::Bytes(body.len() as u64));
            group.bench_with_input(BenchmarkId::from_parameter(name), body, |bencher, body| {
                bencher.iter(|| {
                    let review = AdmissionReview::read(black_box(body), question)
                        .expect("the review is valid");
                    let answer = answer(question, &review.request, &rules, &|_: &str| None, 7);
                    assert_eq!(answer.refusal, None);
                    answer.review(&review.request.uid).to_string()
                });
            });
        }
        group.finish();
    }
}

/// Reviews that are sent before the first answer is read, each on its own connection.
const AT_ONCE: usize = 64;
/// The most memory that this program may take with webhook and clients, in KiB. The chart's limit for the webhook is
/// 128 MiB.
const MEMORY_BUDGET: u64 = 64 << 10;

type TlsConnection = StreamOwned<ClientConnection, TcpStream>;

/// A webhook in this program, with two threads as in its own. Returns its address.
fn webhook(folder: &Path) -> SocketAddr {
    let options = WebhookOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        health: SocketAddr::from(([127, 0, 0, 1], 0)),
        certificates: CertificateSource::Files(folder.to_owned()),
        client_ca: None,
        rules: rules(),
    };
    let (found, address) = mpsc::channel();
    spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        let webhook = apportion_webhook::run(
            options,
            move |addresses| {
                let _ = found.send(addresses.questions);
            },
            std::future::pending(),
        );
        runtime.expect("a runtime").block_on(webhook)
    });
    address.recv().expect("the webhook listens")
}

/// Writes a certificate for this machine, and returns it.
fn certificate(folder: &Path) -> CertificateDer<'static> {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    fs::write(folder.join("tls.key"), key.serialize_pem()).expect("a file");
    fs::write(folder.join("tls.crt"), certificate.pem()).expect("a file");
    CertificateDer::from_pem_slice(certificate.pem().as_bytes()).expect("PEM")
}

fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> TlsConnection {
    let name = ServerName::IpAddress(address.ip().into());
    let connection = ClientConnection::new(config.clone(), name).expect("a client");
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_nodelay(true).expect("an option");
    StreamOwned::new(connection, stream)
}

/// Reads one answer. Returns whether the pod is admitted.
fn is_admitted(connection: &mut TlsConnection) -> bool {
    let (mut text, mut buffer) = (String::new(), [0; 16 << 10]);
    loop {
        let read = connection.read(&mut buffer).expect("an answer");
        assert!(read > 0, "the webhook closed the connection: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let head = head.to_lowercase();
        let mut lines = head.lines();
        let length = lines.find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.and_then(|text| text.parse().ok()).expect(&head);
        if body.len() >= length {
            return body.contains("\"allowed\":true");
        }
    }
}

/// The most memory that this program has had, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    number.expect("the kernel says it")
}

fn many_at_once(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut trusted = RootCertStore::empty();
    let trusts = trusted.add(certificate(folder.path()));
    trusts.expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(trusted)
        .with_no_client_auth();
    let config = Arc::new(config);
    let address = webhook(folder.path());
    // It accepts connections before it has read its certificate.
    while connect(address, &config).flush().is_err() {
        sleep(Duration::from_millis(50));
    }
    let body = review(OUR_SCHEDULER, &json!({"gpu-memory": "2000"}), USUAL_BYTES);
    let head = format!(
        "POST /mutate--v1-pod HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let question = [head.as_bytes(), &body].concat();
    let ask = |connections: &mut [TlsConnection]| {
        for connection in &mut *connections {
            connection.write_all(&question).expect("it is sent");
            connection.flush().expect("it is sent");
        }
        assert!(connections.iter_mut().all(is_admitted));
    };
    let connections =
        || -> Vec<TlsConnection> { (0..AT_ONCE).map(|_| connect(address, &config)).collect() };
    let mut open = connections();
    let mut group = criterion.benchmark_group("reviews-over-tls");
    group.throughput(Throughput::Elements(AT_ONCE as u64));
    group.bench_function("64-at-once", |bencher| bencher.iter(|| ask(&mut open)));
    drop(open);
    group.sample_size(10);
    group.bench_function("64-at-once-with-handshakes", |bencher| {
        bencher.iter(|| ask(&mut connections()));
    });
    group.finish();
    let peak = peak();
    println!("webhook and clients: {} MiB at most", peak >> 10);
    assert!(peak < MEMORY_BUDGET, "{peak} KiB");
}

criterion_group!(benches, many_at_once, reviews);
criterion_main!(benches);
