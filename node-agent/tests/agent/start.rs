//! Starting and stopping.

use std::process::{Command, Stdio};

use crate::host::{Host, allocate, commit, eventually, list, output};

fn said(output: &std::process::Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stderr)
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn all_mistakes_of_the_command_line_are_said_and_nothing_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_apportion-agent"));
    command
        .env("APPORTION_SLOTS", "0")
        .args(["--tick", "soon", "--policy=maim", "--loud", "--dir"])
        .arg(dir.path().join("i"));
    let output = output(command);
    assert_eq!(output.status.code(), Some(64));
    let lines = said(&output);
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("'0' for '--slots")
                && line.contains("variable APPORTION_SLOTS"))
    );
    assert!(
        lines
            .iter()
            .all(|line| line.starts_with("apportion-agent: ") && line.contains("; hint: "))
    );
    assert!(!dir.path().join("i").exists());
}

#[test]
fn without_a_driver_one_line_says_so_and_names_the_simulated_cards() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_apportion-agent"));
    command
        .env_remove("APPORTION_SIM_SOCKET")
        .env_remove("LD_LIBRARY_PATH");
    command
        .args(["--nvml-library", "/nowhere/libnvidia-ml.so.1", "--dir"])
        .arg(dir.path().join("i"));
    let output = output(command);
    assert_eq!(output.status.code(), Some(1));
    let lines = said(&output);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("/nowhere/libnvidia-ml.so.1") && lines[0].contains("--sim"),
        "{lines:?}"
    );
}

#[test]
fn a_log_for_machines_has_nothing_but_objects_to_its_last_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_apportion-agent"));
    command.env_remove("APPORTION_SIM_SOCKET");
    command.env("APPORTION_LOG_FORMAT", "json");
    command
        .args(["--nvml-library", "/nowhere/libnvidia-ml.so.1", "--dir"])
        .arg(dir.path().join("i"));
    let output = output(command);
    assert_eq!(output.status.code(), Some(1));
    let lines = said(&output);
    let objects: Vec<serde_json::Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")))
        .collect();
    let last = &objects.last().unwrap();
    assert_eq!(last["level"], "ERROR", "{last}");
    let problem = last["fields"]["problem"].as_str().unwrap();
    assert!(problem.contains("/nowhere/libnvidia-ml.so.1"), "{problem}");
}

#[test]
fn a_flag_beats_its_variable_and_an_empty_variable_counts_as_unset() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_apportion-agent"));
    command
        .env("APPORTION_SIM_SOCKET", "")
        .env("APPORTION_LOG_FORMAT", "json")
        .env("APPORTION_TICK", "")
        .env("APPORTION_DIR", dir.path().join("variable"));
    command
        .args(["--nvml-library", "/nowhere/libnvidia-ml.so.1"])
        .args(["--log-format", "text", "--dir"])
        .arg(dir.path().join("flag"));
    let output = output(command);
    assert_eq!(output.status.code(), Some(1));
    let lines = said(&output);
    assert!(lines.iter().all(|line| !line.starts_with('{')), "{lines:?}");
    assert!(dir.path().join("flag").exists() && !dir.path().join("variable").exists());
}

#[test]
fn the_simulated_instance_lies_in_its_own_folder() {
    for (flags, expected) in [(&["--sim"][..], "x/sim"), (&["--sim", "--dir"], "y")] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_apportion-agent"));
        command
            .env("APPORTION_DIR", dir.path().join("x"))
            .env_remove("APPORTION_SIM_SOCKET")
            .args(["--nvml-library", "/nowhere/libnvidia-ml.so.1"])
            .args(flags);
        if flags.contains(&"--dir") {
            command.arg(dir.path().join("y"));
        }
        assert_eq!(output(command).status.code(), Some(1));
        assert!(dir.path().join(expected).exists(), "{flags:?}");
    }
}

#[test]
fn the_help_goes_to_standard_output_and_names_the_exit_statuses() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_apportion-agent"));
    command.arg("--help");
    let output = output(command);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("64 bad usage"));
}

#[tokio::test]
async fn an_instance_has_one_agent() {
    let host = Host::new(1);
    let (_agent, _client) = host.agent(&[]).await;
    let second = output(host.agent_command(&[]));
    assert_eq!(second.status.code(), Some(1));
    let lines = said(&second);
    assert!(
        lines
            .last()
            .is_some_and(|line| line.contains("another agent uses")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn a_background_agent_stays_while_it_is_needed_and_leaves_when_it_is_not() {
    let host = Host::new(1);
    let (mut agent, mut client) = host.agent(&["--idle-exit", "1"]).await;
    let mut sleep = Command::new("sleep")
        .arg("60")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let id = allocate(&mut client, "needed", 100).await.unwrap().id;
    commit(&mut client, &id, sleep.id()).await;
    let since = std::time::Instant::now();
    eventually("more than its idle time passes", async || {
        assert!(
            agent.0.try_wait().unwrap().is_none(),
            "it left while it was needed"
        );
        (since.elapsed().as_millis() > 1500).then_some(())
    })
    .await;
    assert_eq!(list(&mut client).await.allocations.len(), 1);
    drop(client);
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    let status = eventually("the agent leaves", async || agent.0.try_wait().unwrap()).await;
    assert_eq!(status.code(), Some(0));
    assert!(!host.instance().join("agent.sock").exists());
    assert!(!host.instance().join("accounts").join(&id).exists());
}

#[tokio::test]
async fn health_is_served_and_readiness_follows_the_driver() {
    let host = Host::new(1);
    let (_agent, _client) = host.agent(&[]).await;
    assert!(host.http("/healthz").starts_with("HTTP/1.1 200"));
    assert!(host.http("/readyz").starts_with("HTTP/1.1 200"));
    assert!(host.http("/").starts_with("HTTP/1.1 404"));
    host.freeze_driver(true);
    eventually("a silent driver shows", async || {
        let is_unready = host.http("/readyz").starts_with("HTTP/1.1 503");
        (is_unready && host.metric("apportion_gpu_healthy", "") == Some(0.0)).then_some(())
    })
    .await;
    assert!(
        host.metric("apportion_snapshot_age_seconds", "")
            .is_some_and(|age| age > 4.0)
    );
    host.freeze_driver(false);
    eventually("a driver that answers again shows", async || {
        let is_ready = host.http("/readyz").starts_with("HTTP/1.1 200");
        (is_ready && host.metric("apportion_gpu_healthy", "") == Some(1.0)).then_some(())
    })
    .await;
}
