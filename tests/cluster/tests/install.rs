//! `cargo xtask cluster install`, and `kubectl apportion` on what it installs.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use apportion_cluster::install::{NAMESPACE, RELEASE, install};
use apportion_cluster::release::{chart, example, succeed};
use apportion_cluster::{LocalCluster, eventually};

/// The pod of examples/fraction.yaml.
const SHARED: &str = "gpu-sharing";

/// Removes everything at the end, even after a failure.
struct InstallCleanup(LocalCluster);

impl InstallCleanup {
    fn kubectl(&self, args: &[&str]) -> String {
        self.0.kubectl(args).unwrap()
    }

    /// The output of `kubectl apportion ARGUMENTS`. The plugin is only in kubectl's PATH.
    fn plugin(&self, args: &[&str]) -> Result<String, String> {
        let tool = self.0.kubectl_command();
        let tools = Path::new(tool.get_program()).parent().unwrap().to_owned();
        let path = [
            tools,
            staged().join("bin"),
            "/usr/bin".into(),
            "/bin".into(),
        ];
        let mut kubectl = Command::new(tool.get_program());
        kubectl.env("KUBECONFIG", self.0.folder().kubeconfig());
        kubectl.env("PATH", env::join_paths(path).unwrap());
        let output = kubectl.arg("apportion").args(args).output().unwrap();
        if output.status.success() {
            Ok(String::from_utf8(output.stdout).unwrap())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }
}

impl Drop for InstallCleanup {
    fn drop(&mut self) {
        let cluster = &self.0;
        let pod = [
            "delete",
            "pod",
            SHARED,
            "late",
            "--now",
            "--ignore-not-found",
        ];
        let _ = cluster.kubectl(&pod);
        let mut helm = cluster.helm_command();
        let _ = helm
            .args(["uninstall", RELEASE, "--namespace", NAMESPACE, "--wait"])
            .output();
        let _ = cluster.kubectl(&["delete", "queues,gpunodes", "--all"]);
        let _ = cluster.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"]);
    }
}

fn staged() -> PathBuf {
    env::var_os("APPORTION_STAGED")
        .expect("it names the staged tree")
        .into()
}

#[test]
fn one_command_installs_what_the_readme_installs_and_kubectl_shows_it() {
    let on = InstallCleanup(LocalCluster::of_tests());
    install(&on.0, &staged(), Path::new(&chart()), &[]).unwrap();
    on.kubectl(&[
        "apply",
        "-f",
        &example("queues.yaml"),
        "-f",
        &example("fraction.yaml"),
    ]);
    eventually("the example runs", || {
        on.kubectl(&["get", "pod", SHARED, "-o", "jsonpath={.status.phase}"]) == "Running"
    });
    eventually("kubectl shows the share", || {
        let top = on.plugin(&["top"]).unwrap();
        top.lines()
            .any(|line| line.contains(SHARED) && line.ends_with("50%"))
    });
    assert!(on.plugin(&["queues"]).unwrap().contains("default-queue"));

    // Ask the scheduler itself, through the API server and the kubelet.
    let mut late = Command::new(on.0.kubectl_command().get_program());
    late.env("KUBECONFIG", on.0.folder().kubeconfig());
    let overrides = r#"{"metadata": {"annotations": {"gpu-memory": "9000000"}},
        "spec": {"schedulerName": "apportion-scheduler"}}"#;
    succeed(late.args(["run", "late", "--image=none", "--overrides", overrides]));
    eventually("the scheduler explains", || {
        let explained = on.plugin(&["explain", "late", "--scheduler"]);
        explained
            .is_ok_and(|text| text.contains("pod default/late") && text.contains("waits because"))
    });

    // Install again with another value: the programs are new, the share stays.
    let more = ["--set", "log.format=text"].map(str::to_owned);
    install(&on.0, &staged(), Path::new(&chart()), &more).unwrap();
    let selector = "app.kubernetes.io/name=apportion-scheduler";
    eventually("the log is as it was asked for", || {
        let logs = ["logs", "-n", NAMESPACE, "-l", selector, "--tail=-1"];
        let log = on.kubectl(&logs);
        log.contains(" INFO ") && !log.contains('\u{1b}')
    });
    assert_eq!(
        on.kubectl(&["get", "pod", SHARED, "-o", "jsonpath={.status.phase}"]),
        "Running"
    );
}
