//! Whatever a client sends, the webhook stays within the chart's memory limit and answers others.

use std::fmt::Write as _;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use apportion_memory_group::{ChartContainer, MemoryGroup};
use serde_json::{Value, json};

use crate::client::{TestAuthority, WebhookProcess};

const MIB: u64 = 1024;

fn start(options: &[&str]) -> (WebhookProcess, TestAuthority, tempfile::TempDir) {
    start_in(None, options)
}

fn start_in(
    group: Option<&MemoryGroup>,
    options: &[&str],
) -> (WebhookProcess, TestAuthority, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = TestAuthority::new();
    authority.issue(folder.path());
    let webhook = WebhookProcess::start_in(group, folder.path(), &authority, options);
    (webhook, authority, folder)
}

/// The peak memory of the process, in KiB.
fn peak(webhook: &WebhookProcess) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", webhook.process.id()));
    let status = status.expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    number.expect("the kernel says it")
}

/// A review of a pod with this many containers: 2.7 MB for 150 000.
fn many_containers(count: usize) -> String {
    let mut containers = String::new();
    for number in 0..count {
        let _ = write!(containers, "{{\"name\":\"c{number}\"}},");
    }
    format!(
        r#"{{"request":{{"uid":"42","operation":"CREATE","object":{{"metadata":{{"name":"p","annotations":{{"gpu-fraction":"0.5"}}}},"spec":{{"schedulerName":"kai-scheduler","containers":[{}]}}}}}}}}"#,
        containers.trim_end_matches(',')
    )
}

#[test]
fn a_pod_with_very_many_containers_is_refused_and_costs_little() {
    let group = MemoryGroup::of(ChartContainer::Webhook);
    let (webhook, _authority, _folder) = start_in(group.as_ref(), &[]);
    let review = many_containers(150_000);
    for path in ["/mutate--v1-pod", "/validate--v1-pod"] {
        let said = webhook.post(path, &review);
        let words = "a pod may have 1000 containers of a kind, and this one has more";
        assert!(
            said.contains(words) && said.contains(r#""uid":"42""#),
            "{said}"
        );
    }
    assert!(peak(&webhook) < 64 * MIB, "{} KiB", peak(&webhook));
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| webhook.post("/mutate--v1-pod", &review));
        }
    });
    assert!(peak(&webhook) < 100 * MIB, "{} KiB", peak(&webhook));
    let said = webhook.post("/mutate--v1-pod", &many_containers(1000));
    assert!(said.contains(r#""allowed":true"#), "{said}");
    assert_eq!(group.as_ref().map_or(0, MemoryGroup::killed), 0);
}

#[test]
fn a_pod_with_very_many_fields_is_refused_and_costs_little() {
    let group = MemoryGroup::of(ChartContainer::Webhook);
    let (webhook, _authority, _folder) = start_in(group.as_ref(), &[]);
    let variables = "{\"a\":0},".repeat(300_000);
    let review = many_containers(1).replace(
        r#""name":"c0""#,
        &format!(r#""env":[{}]"#, variables.trim_end_matches(',')),
    );
    let said = webhook.post("/mutate--v1-pod", &review);
    assert!(said.contains("the object has too many fields"), "{said}");
    assert!(peak(&webhook) < 64 * MIB, "{} KiB", peak(&webhook));
    assert_eq!(group.as_ref().map_or(0, MemoryGroup::killed), 0);
}

#[test]
fn a_review_that_the_api_server_would_not_send_is_refused() {
    let (webhook, _authority, _folder) = start(&[]);
    let said = webhook.post("/mutate--v1-pod", &" ".repeat((3 << 20) + 1));
    assert!(
        said.contains("413 Payload Too Large") || said.is_empty(),
        "{said}"
    );
}

#[test]
fn questions_are_answered_while_others_leave_handshakes_half_open() {
    let (webhook, _authority, _folder) = start(&[]);
    let held: Vec<_> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(webhook.questions).expect("it listens");
            let _ = stream.write_all(&[0x16, 3, 1]);
            stream
        })
        .collect();
    let began = Instant::now();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"schedulerName": "kai-scheduler"}});
    let said = webhook.review("/validate--v1-pod", "CREATE", &pod, &Value::Null);
    assert_eq!(said["allowed"], true);
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    let metrics = webhook.shows("/metrics");
    let dropped = "apportion_admission_connections_dropped_total ";
    let dropped = metrics.lines().find_map(|line| line.strip_prefix(dropped));
    assert!(
        dropped.is_some_and(|count| count.parse::<u32>().unwrap_or(0) >= 100),
        "{metrics}"
    );
    drop(held);
}

#[test]
fn who_shows_no_certificate_of_the_given_authority_is_not_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    let clients = TestAuthority::new();
    let file = folder.path().join("clients.crt");
    std::fs::write(&file, &clients.pem).expect("a file");
    let (mut webhook, authority, _own) = start(&["--client-ca", file.to_str().unwrap_or_default()]);
    let asked = |webhook: &WebhookProcess| {
        let mut stream = webhook.connect();
        let text = crate::client::question("/validate--v1-pod", &many_containers(1));
        let _ = stream.write_all(text.as_bytes());
        crate::client::received(&mut stream).contains("200 OK")
    };
    assert!(!asked(&webhook));
    webhook.show(&authority, &authority);
    assert!(!asked(&webhook));
    webhook.show(&authority, &clients);
    assert!(asked(&webhook));
}
