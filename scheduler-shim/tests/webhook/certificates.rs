//! Certificates that change while reviews are answered, and a shutdown that cuts off nobody.

use std::io::Write;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::{TestAuthority, WebhookProcess, eventually, question, received};

#[test]
fn a_new_certificate_is_shown_without_a_question_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = TestAuthority::new();
    authority.issue(folder.path());
    let webhook = WebhookProcess::start(folder.path(), &authority, &[]);
    let shown = || {
        let mut stream = webhook.connect();
        write!(stream, "{}", question("/validate--v1-pod", "{")).expect("it is sent");
        assert!(received(&mut stream).contains("400 Bad Request"));
        stream
            .conn
            .peer_certificates()
            .map(|chain| chain[0].to_vec())
    };
    let before = shown();
    assert!(before.is_some());
    authority.issue(folder.path());
    eventually("the new certificate is shown", || {
        let queue = json!({"spec": {"resources": {}}});
        let path = "/validate-scheduling-run-ai-v2-queue";
        assert_eq!(
            webhook.review(path, "CREATE", &queue, &Value::Null)["allowed"],
            true
        );
        shown() != before
    });
    let expiry = "apportion_admission_certificate_expiry_timestamp_seconds";
    assert!(webhook.shows("/metrics").contains(expiry));
}

#[test]
fn a_certificate_that_is_of_no_use_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = TestAuthority::new();
    authority.issue(folder.path());
    let webhook = WebhookProcess::start(folder.path(), &authority, &[]);
    std::fs::write(folder.path().join("tls.crt"), "spoilt").expect("a file");
    eventually("the spoilt certificate was looked at", || {
        let failures = "apportion_admission_certificate_failures_total 0";
        !webhook.shows("/metrics").contains(failures)
    });
    assert!(
        webhook
            .post("/validate--v1-pod", "{")
            .contains("400 Bad Request")
    );
}

#[test]
fn a_question_that_was_begun_is_answered_before_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = TestAuthority::new();
    authority.issue(folder.path());
    let mut webhook = WebhookProcess::start(folder.path(), &authority, &[]);
    let review =
        json!({"request": {"uid": "7", "operation": "CREATE", "object": {"spec": {}}}}).to_string();
    let text = question("/validate-scheduling-run-ai-v2-queue", &review);
    let (first, rest) = text.split_at(text.len() - 10);
    let mut stream = webhook.connect();
    write!(stream, "{first}").expect("it is sent");
    // An answer to a later review shows that the first part has arrived.
    assert!(
        webhook
            .post("/validate--v1-pod", "{")
            .contains("400 Bad Request")
    );
    let id = webhook.process.id().to_string();
    let killed = Command::new("kill")
        .args(["-TERM", &id])
        .status()
        .expect("kill runs");
    assert!(killed.success());
    eventually("nothing more is taken", || {
        std::net::TcpStream::connect(webhook.questions).is_err()
    });
    write!(stream, "{rest}").expect("it is sent");
    assert!(received(&mut stream).contains("resources must be specified"));
    let status = webhook.process.wait().expect("it ends");
    assert!(status.success(), "{status}");
}
