//! Pods written for HAMi, with the chart's own webhook configurations in the API server.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use apportion_tests::control_plane::{ControlPlane, program};
use apportion_tests::{PATIENCE, eventually, staged};
use serde_json::{Value, json};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/chart/apportion");
const NAMESPACE: &str = "apportion-system";

/// A webhook, and the API server that calls it.
struct HamiWebhook {
    plane: ControlPlane,
    webhook: Child,
}

impl HamiWebhook {
    fn new() -> Self {
        let plane = ControlPlane::new();
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        plane.apply(&[namespace]);
        let mut command = Command::new(staged().join("bin/apportion-scheduler"));
        command.env("KUBECONFIG", plane.kubeconfig());
        command.args(["webhook", "--hami-resources", "--name", "127.0.0.1"]);
        command.args(["--listen", "127.0.0.1:0", "--health", "127.0.0.1:0"]);
        let mut webhook = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("it is staged");
        let mut said = BufReader::new(webhook.stdout.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it says where it listens");
        // Keep reading its output.
        std::thread::spawn(move || said.read_to_end(&mut Vec::new()));
        let address = line.trim().trim_start_matches("questions ");
        let asked = Self { plane, webhook };
        asked.configure(&format!("https://{address}"));
        asked
    }

    /// Applies the chart's admission configuration, and waits until the webhook has written its CA.
    fn configure(&self, url: &str) {
        let mut helm = Command::new(program("helm"));
        helm.args(["template", "apportion", CHART, "--namespace", NAMESPACE]);
        helm.args([
            "--kube-version",
            "1.36.0",
            "--show-only",
            "templates/admission.yaml",
        ]);
        let values = format!("webhook.hamiResources=true,webhook.url={url}");
        let output = helm.args(["--set", &values]).output().expect("helm starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let manifest = self.plane.dir().join("admission.yaml");
        std::fs::write(&manifest, output.stdout).expect("the folder is writable");
        let _ = self
            .plane
            .kubectl(&["apply", "-f", &manifest.display().to_string()]);
        let first = pod(
            "first",
            "apportion-scheduler",
            &json!({"nvidia.com/gpumem": "100"}),
        );
        eventually(PATIENCE, "the webhook is trusted", || {
            self.create(&first).is_ok()
        });
    }

    /// Creates a pod. Returns what the API server stores, or its refusal.
    fn create(&self, pod: &Value) -> Result<Value, String> {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let path = self.plane.dir().join(format!("{name}.json"));
        std::fs::write(&path, pod.to_string()).expect("the folder is writable");
        let create = ["create", "-f", &path.display().to_string(), "-o", "json"];
        match self.plane.refusal(&create) {
            Some(why) => Err(why),
            None => {
                let kept = self.plane.kubectl(&["get", "pod", name, "-o", "json"]);
                Ok(serde_json::from_str(&kept).expect("kubectl prints JSON"))
            }
        }
    }
}

impl Drop for HamiWebhook {
    fn drop(&mut self) {
        let _ = self.webhook.kill();
        let _ = self.webhook.wait();
    }
}

fn pod(name: &str, scheduler: &str, limits: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "main", "image": "none",
            "resources": {"limits": limits}}]}})
}

#[test]
fn manifests_for_hami_ask_for_shares() {
    let asked = HamiWebhook::new();
    let ours = |name: &str, limits: Value| asked.create(&pod(name, "apportion-scheduler", &limits));

    let kept = ours(
        "memory",
        json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}),
    )
    .expect("it is taken");
    assert_eq!(kept["metadata"]["annotations"]["gpu-memory"], "3000");
    let slot = json!({"apportion.dev/gpu-slot": "1"});
    let resources = &kept["spec"]["containers"][0]["resources"];
    assert_eq!(
        (&resources["limits"], &resources["requests"]),
        (&slot, &slot)
    );

    let half = json!({"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 50});
    let kept = ours("half", half).expect("it is taken");
    let annotations = &kept["metadata"]["annotations"];
    assert_eq!(annotations["gpu-fraction"], "0.50");
    assert_eq!(annotations["gpu-fraction-num-devices"], "2");

    let why = ours(
        "cores",
        json!({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30"}),
    )
    .expect_err("it is refused");
    assert!(
        why.contains("asks for nvidia.com/gpucores: 30, and Apportion does not limit compute"),
        "{why}"
    );

    // Pods of other schedulers and whole GPUs are left unchanged.
    let limits = json!({"nvidia.com/gpumem": "3001", "nvidia.com/gpucores": "30"});
    let kept = asked
        .create(&pod("other", "hami-scheduler", &limits))
        .expect("it is taken");
    assert_eq!(kept["spec"]["containers"][0]["resources"]["limits"], limits);
    let kept = ours("whole", json!({"nvidia.com/gpu": "1"})).expect("it is taken");
    assert_eq!(kept["metadata"]["annotations"]["gpu-memory"], Value::Null);
    assert_eq!(
        kept["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"],
        "1"
    );
}

#[test]
fn a_container_that_runs_first_is_read_too() {
    let asked = HamiWebhook::new();
    let mut pod = pod("init", "apportion-scheduler", &json!({}));
    let limits = json!({"nvidia.com/gpumem-percentage": "25"});
    pod["spec"]["initContainers"] =
        json!([{"name": "fetch", "image": "none", "resources": {"limits": limits}}]);
    let kept = asked.create(&pod).expect("it is taken");
    let annotations = &kept["metadata"]["annotations"];
    assert_eq!(annotations["gpu-fraction"], "0.25");
    assert_eq!(annotations["gpu-fraction-container-name"], "fetch");
}
