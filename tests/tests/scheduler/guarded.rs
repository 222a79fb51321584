//! What a pod may not set in a namespace with the label `apportion.dev/guard`.

use std::fs;

use apportion_tests::eventually;
use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE, pod};

const POLICY: &str = "apportion-agent-tenant";

impl Cluster {
    /// Whether the API server would take a pod with these fields beside a share; if not, what it says.
    fn would_refuse(&self, change: impl FnOnce(&mut Value)) -> Option<String> {
        let mut pod = pod("guarded", json!({"gpu-fraction": "0.5"}));
        change(&mut pod);
        let path = self.plane.dir().join("pod.json");
        fs::write(&path, pod.to_string()).expect("the folder is writable");
        let file = path.display().to_string();
        self.plane
            .refusal(&["create", "--dry-run=server", "-f", &file])
    }
}

fn variable(name: &str) -> impl Fn(&mut Value) {
    move |pod| pod["spec"]["containers"][0]["env"] = json!([{"name": name, "value": "x"}])
}

#[test]
fn a_guarded_namespace_refuses_what_would_go_around_a_limit_and_others_do_not() {
    let cluster = Cluster::bare();
    cluster.install_policy(POLICY);
    let variables = [
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "APPORTION_ACCOUNT",
        "LD_PRELOAD",
        "LD_AUDIT",
    ];
    for name in variables {
        assert_eq!(cluster.would_refuse(variable(name)), None, "{name}");
    }
    let label = [
        "label",
        "namespace",
        "default",
        "apportion.dev/guard=enabled",
    ];
    let _ = cluster.plane.kubectl(&label);
    eventually(PATIENCE, "the policy is in force", || {
        cluster.would_refuse(variable(variables[0])).is_some()
    });
    for name in variables {
        let said = cluster.would_refuse(variable(name)).unwrap_or_default();
        assert!(said.contains(POLICY), "{name}: {said}");
    }
    let mount = |path: &'static str| {
        move |pod: &mut Value| {
            pod["spec"]["volumes"] = json!([{"name": "over", "emptyDir": {}}]);
            pod["spec"]["containers"][0]["volumeMounts"] =
                json!([{"name": "over", "mountPath": path}]);
        }
    };
    for path in ["/.apportion", "/etc/ld.so.preload"] {
        let said = cluster.would_refuse(mount(path)).unwrap_or_default();
        assert!(said.contains(POLICY), "{path}: {said}");
    }
    for folder in ["/run/apportion", "/var/run/cdi", "/dev", "/"] {
        let said = cluster.would_refuse(|pod| {
            pod["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": folder}}]);
        });
        assert!(said.is_some_and(|said| said.contains(POLICY)), "{folder}");
    }
    let said = cluster.would_refuse(|pod| {
        pod["metadata"]["annotations"]["cdi.k8s.io/x"] = json!("nvidia.com/gpu=all");
    });
    assert!(said.is_some_and(|said| said.contains(POLICY)), "CDI");
    assert_eq!(cluster.would_refuse(mount("/data")), None);
    assert_eq!(cluster.would_refuse(variable("CUDA_VISIBLE_DEVICES")), None);
}
