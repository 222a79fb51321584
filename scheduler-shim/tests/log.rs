//! The log format of the scheduler and the webhook, for programs that collect logs.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a program may take to log its first line.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first character of a colour code.
const ESCAPE: char = '\u{1b}';

/// A program that logs and keeps running: the scheduler of a cluster that does not answer, or a webhook.
fn running(name: &str, folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_apportion-scheduler"));
    command.env_remove("APPORTION_LOG_FORMAT");
    command.arg(name);
    match name {
        "run" => {
            let file = folder.join("kubeconfig");
            fs::write(&file, KUBECONFIG).unwrap();
            command.args(["--address", "127.0.0.1:0", "--kubeconfig"]);
            command.arg(file)
        }
        _ => {
            let key = rcgen::generate_simple_self_signed(["webhook".to_owned()]).unwrap();
            fs::write(folder.join("tls.crt"), key.cert.pem()).unwrap();
            fs::write(folder.join("tls.key"), key.signing_key.serialize_pem()).unwrap();
            command.args(["--listen", "127.0.0.1:0", "--health", "127.0.0.1:0"]);
            command.arg("--tls-dir").arg(folder)
        }
    };
    command
}

const NOWHERE: &str = "/nowhere/at-all";
/// Nobody listens at port 1.
const KUBECONFIG: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "c",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}"#;

/// The log of a program, which is ended some lines after its start.
fn log_of(command: &mut Command, folder: &Path) -> String {
    let path = folder.join("log");
    let log = fs::File::create(&path).unwrap();
    let mut child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let since = Instant::now();
    let text = || fs::read_to_string(&path).unwrap();
    while text().is_empty() && since.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = child.id().to_string();
    Command::new("kill").arg(id).status().unwrap();
    child.wait().unwrap();
    text()
}

fn objects(log: &str) -> Vec<Value> {
    let lines = log.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")))
        .collect()
}

#[test]
fn every_line_is_an_object_where_that_was_asked_for() {
    for name in ["run", "webhook"] {
        let folder = tempfile::tempdir().unwrap();
        let mut by_option = running(name, folder.path());
        let mut by_variable = running(name, folder.path());
        for command in [
            by_option.args(["--log-format", "json"]),
            by_variable.env("APPORTION_LOG_FORMAT", "json"),
        ] {
            let objects = objects(&log_of(command, folder.path()));
            assert!(!objects.is_empty(), "{name}");
            for object in objects {
                assert!(object["level"].is_string(), "{object}");
                assert!(object["fields"]["message"].is_string(), "{object}");
            }
        }
    }
}

#[test]
fn a_log_that_goes_to_no_terminal_has_no_colours() {
    for name in ["run", "webhook"] {
        let folder = tempfile::tempdir().unwrap();
        let log = log_of(&mut running(name, folder.path()), folder.path());
        assert!(log.contains("INFO") || log.contains("WARN"), "{log:?}");
        assert!(!log.contains(ESCAPE), "{log:?}");
    }
}

fn failing(name: &str, format: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_apportion-scheduler"));
    command.args([name, "--log-format", format]);
    match name {
        "run" => command.args(["--kubeconfig", NOWHERE]),
        // An address that is reserved for documentation, so no machine has it.
        _ => command.args(["--tls-dir", NOWHERE, "--listen", "192.0.2.1:9443"]),
    };
    command.output().unwrap()
}

#[test]
fn the_last_line_is_an_object_too_and_is_said_once() {
    for (name, told) in [("run", NOWHERE), ("webhook", "192.0.2.1:9443")] {
        let said = failing(name, "json");
        assert!(!said.status.success(), "{said:?}");
        let objects = objects(&String::from_utf8(said.stderr).unwrap());
        let last = objects.last().unwrap();
        assert_eq!(last["level"], "ERROR", "{last}");
        let problem = last["fields"]["problem"].as_str().unwrap();
        assert!(problem.contains(told), "{problem}");

        let said = String::from_utf8(failing(name, "text").stderr).unwrap();
        let last = said.lines().last().unwrap();
        assert!(last.starts_with("apportion-scheduler: "), "{said}");
        assert_eq!(said.matches(problem).count(), 1, "{said}");
    }
}

#[test]
fn a_filter_that_makes_no_sense_is_bad_usage() {
    for name in ["run", "webhook"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_apportion-scheduler"));
        let said = command.args([name, "--log", "a=b=c"]).output().unwrap();
        assert_eq!(said.status.code(), Some(64), "{said:?}");
        let line = String::from_utf8(said.stderr).unwrap();
        assert!(
            line.contains("--log: ") && line.lines().count() == 1,
            "{line}"
        );
    }
}
