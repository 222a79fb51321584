//! A webhook process, and a client that trusts one CA only, as the API server does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use apportion_memory_group::MemoryGroup;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

/// The timeout of everything here.
const PATIENCE: Duration = Duration::from_secs(60);

/// Polls until the condition holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A CA, and the certificates that it signs.
pub(crate) struct TestAuthority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl TestAuthority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);
        Self { pem, issuer }
    }

    /// Writes a new certificate into the folder, key first. A Secret's volume replaces both at once.
    pub(crate) fn issue(&self, folder: &Path) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        for (name, text) in [
            ("tls.key", key.serialize_pem()),
            ("tls.crt", certificate.pem()),
        ] {
            let fresh = folder.join(format!(".{name}"));
            std::fs::write(&fresh, text).expect("a file");
            std::fs::rename(fresh, folder.join(name)).expect("a file in place");
        }
    }
}

/// A webhook process that ends when this is dropped.
pub(crate) struct WebhookProcess {
    pub(crate) process: Child,
    pub(crate) questions: SocketAddr,
    pub(crate) health: SocketAddr,
    client: Arc<ClientConfig>,
}

impl WebhookProcess {
    pub(crate) fn start(folder: &Path, authority: &TestAuthority, options: &[&str]) -> Self {
        Self::start_in(None, folder, authority, options)
    }

    /// The same, with the memory limit that the chart gives the webhook's container.
    pub(crate) fn start_in(
        group: Option<&MemoryGroup>,
        folder: &Path,
        authority: &TestAuthority,
        options: &[&str],
    ) -> Self {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_apportion-scheduler"));
        let mut command = Command::new(program);
        command
            .args([
                "webhook",
                "--listen",
                "127.0.0.1:0",
                "--health",
                "127.0.0.1:0",
                "--tls-dir",
            ])
            .arg(folder)
            .args(options);
        if let Some(group) = group {
            command = group.around(&command);
        }
        let mut process = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the webhook starts");
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let addresses: Vec<SocketAddr> = lines
            .take(2)
            .map(|line| {
                let line = line.expect("a line");
                let address = line.split(' ').next_back().unwrap_or_default();
                address.parse().expect("an address")
            })
            .collect();
        let mut trusted = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(authority.pem.as_bytes());
        trusted.add(authority.expect("PEM")).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(trusted)
            .with_no_client_auth();
        let webhook = Self {
            process,
            questions: addresses[0],
            health: addresses[1],
            client: Arc::new(client),
        };
        eventually("the webhook is ready", || {
            webhook.shows("/readyz").contains("200 OK")
        });
        webhook
    }

    /// From now on the client shows a certificate that `clients` signed.
    pub(crate) fn show(&mut self, authority: &TestAuthority, clients: &TestAuthority) {
        let folder = tempfile::tempdir().expect("a folder");
        clients.issue(folder.path());
        let mut trusted = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(authority.pem.as_bytes());
        trusted.add(authority.expect("PEM")).expect("an authority");
        let certificate = CertificateDer::from_pem_file(folder.path().join("tls.crt"));
        let key = PrivateKeyDer::from_pem_file(folder.path().join("tls.key"));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(trusted)
            .with_client_auth_cert(vec![certificate.expect("PEM")], key.expect("PEM"));
        self.client = Arc::new(client.expect("a certificate and its key"));
    }

    /// A connection over TLS.
    pub(crate) fn connect(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let name = ServerName::IpAddress(self.questions.ip().into());
        let connection = ClientConnection::new(self.client.clone(), name).expect("a client");
        let stream = TcpStream::connect(self.questions).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        StreamOwned::new(connection, stream)
    }

    /// The whole response to a request, as text.
    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        let mut stream = self.connect();
        write!(stream, "{}", question(path, body)).expect("it is sent");
        received(&mut stream)
    }

    /// The response to a review of these objects.
    pub(crate) fn review(&self, path: &str, operation: &str, object: &Value, old: &Value) -> Value {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "42", "operation": operation, "namespace": "lab", "object": object, "oldObject": old}});
        let text = self.post(path, &review.to_string());
        let body = text.split_once("\r\n\r\n").map(|(_, body)| body);
        let review: Value = serde_json::from_str(body.unwrap_or_default()).expect(&text);
        assert_eq!(review["response"]["uid"], "42");
        review["response"].clone()
    }

    /// What the webhook shows to the kubelet and to Prometheus.
    pub(crate) fn shows(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.health).expect("a connection");
        let asked = format!("GET {path} HTTP/1.1\r\nHost: webhook\r\nConnection: close\r\n\r\n");
        stream.write_all(asked.as_bytes()).expect("it is sent");
        received(&mut stream)
    }
}

impl Drop for WebhookProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn question(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: webhook\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

pub(crate) fn received(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    // The other side may close without a TLS alert; only the received bytes count.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}
