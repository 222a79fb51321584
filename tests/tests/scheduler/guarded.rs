//! What a pod may not set in a namespace with the label `apportion.dev/guard`.

use std::fs;

use apportion_tests::eventually;
use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE, pod};

const POLICY: &str = "apportion-agent-tenant";

impl Cluster {
    /// The API server's refusal of a pod with these fields beside a share. None if it would accept the pod.
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
        "NVIDIA_GPU_MEMORY_REQUEST",
        "NVIDIA_GPU_MEMORY_LIMIT",
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
    // Values of compute stacks such as ZenML's. All others add libraries whose memory no limit counts.
    let capabilities = |value: &'static str| {
        move |pod: &mut Value| {
            pod["spec"]["containers"][0]["env"] =
                json!([{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": value}]);
        }
    };
    for value in [
        "compute,utility",
        "utility,compute",
        "compute",
        "utility",
        "",
    ] {
        assert_eq!(cluster.would_refuse(capabilities(value)), None, "{value}");
    }
    // The pod of ZenML's stack, from its terraform/main.tf.
    let zenml = cluster.would_refuse(|pod| {
        pod["spec"]["tolerations"] = json!([{"key": "nvidia.com/gpu", "operator": "Equal",
            "value": "present", "effect": "NoSchedule"}]);
        pod["spec"]["nodeSelector"] =
            json!({"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"});
        pod["spec"]["containers"][0]["env"] = json!([
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
            {"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=11.0"}]);
    });
    assert_eq!(zenml, None);
    for value in ["all", "compute,utility,graphics", "video", "Compute"] {
        let said = cluster.would_refuse(capabilities(value));
        let said = said.unwrap_or_else(|| panic!("{value} is allowed"));
        assert!(said.contains("to compute,utility only"), "{value}: {said}");
    }
}

/// The policy for resources that show or count memory.
const READING: &str = "apportion-agent-for-reading";

#[test]
fn only_a_container_with_a_share_can_request_what_counts_shares() {
    let cluster = Cluster::bare();
    cluster.install_policy(READING);
    let requesting = |resources: Value| {
        move |pod: &mut Value| {
            // The webhook of these manifests handles this scheduler's pods.
            pod["spec"]["schedulerName"] = json!("apportion-scheduler");
            pod["spec"]["containers"][0]["resources"] = json!({"limits": resources});
        }
    };
    let shown = "apportion.dev/gpu-memory-mib";
    eventually(PATIENCE, "the policy is in force", || {
        cluster
            .would_refuse(requesting(json!({ shown: "1" })))
            .is_some()
    });
    let slot = "apportion.dev/gpu-slot";
    for counted in [
        "apportion.dev/gpu-share-mib",
        "apportion.dev/gpu-share-micro",
    ] {
        let whole = json!({(slot): "1", (counted): "500"});
        assert_eq!(cluster.would_refuse(requesting(whole.clone())), None);
        let refused = [
            // Every container that the webhook has processed has a slot.
            cluster.would_refuse(requesting(json!({ counted: "500" }))),
            cluster.would_refuse(|pod| {
                requesting(whole.clone())(pod);
                pod["spec"]["schedulerName"] = json!("default-scheduler");
            }),
            cluster.would_refuse(|pod| {
                requesting(whole.clone())(pod);
                pod["metadata"]["annotations"] = json!({});
            }),
            cluster.would_refuse(|pod| {
                requesting(whole.clone())(pod);
                pod["spec"]["initContainers"] = json!([{"name": "first", "image": "none",
                    "resources": {"limits": {(counted): "500"}}}]);
            }),
        ];
        for said in refused {
            let said = said.expect("it is refused");
            assert!(said.contains("count the share of a container"), "{said}");
        }
    }
}

/// The policy that warns, installed without the rest of the chart.
const ADVICE: &str = "apportion-scheduler-advice";

impl Cluster {
    /// The warnings of `kubectl create`.
    fn warnings(&self, object: &Value) -> String {
        let path = self.plane.dir().join("warned.json");
        fs::write(&path, object.to_string()).expect("the folder is writable");
        let file = path.display().to_string();
        let create = ["create", "--dry-run=server", "-f", &file];
        self.plane.warnings(&create)
    }
}

/// A pod of a scheduler with these annotations, alone and in the templates of two other kinds.
fn annotated(scheduler: &str, annotations: &Value, labels: &Value) -> [Value; 3] {
    let template = json!({"metadata": {"annotations": annotations, "labels": labels}, "spec": {
        "schedulerName": scheduler, "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "none"}]}});
    let mut pod = template.clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!("warned");
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "warned"},
        "spec": {"template": template}});
    let often = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "warned"},
        "spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": template}}}});
    [pod, job, often]
}

#[test]
fn whoever_writes_a_share_that_gives_no_gpu_is_warned() {
    let cluster = Cluster::bare();
    cluster.install_policy(ADVICE);
    let ours = "apportion-scheduler";
    let fine = |annotations: Value| annotated(ours, &annotations, &json!({"app": "x"}));
    eventually(PATIENCE, "the policy is in force", || {
        let [pod, ..] = fine(json!({"gpu_fraction": "0.5"}));
        !cluster.warnings(&pod).is_empty()
    });
    let warned = |all: [Value; 3], about: &str| {
        for object in all {
            let said = cluster.warnings(&object);
            assert!(said.contains(about), "{}: {said}", object["kind"]);
        }
    };
    for slip in [
        "gpu-fractions",
        "gpu_fraction",
        "gpufraction",
        "GPU-Fraction",
        "gpuFraction",
        "gpu-fracton",
        "gpu-fractoin",
        "gup-fraction",
        "gpu.fraction",
        "gpu-memroy",
        "gpu-mem",
        "gpu-mem0ry",
        "gpu_memory",
        "gpumemory",
        "kai.scheduler/gpu-fraction",
        "nvidia.com/gpu-memory",
        "gpu-fraction-num-device",
        "gpu-fraction-containername",
    ] {
        warned(
            fine(json!({slip: "1"})),
            &format!("annotation {slip} is ignored"),
        );
        warned(
            annotated("default-scheduler", &json!({slip: "1"}), &json!({})),
            slip,
        );
    }
    warned(
        annotated(ours, &json!({}), &json!({"gpu-fraction": "0.5"})),
        "label gpu-fraction is ignored",
    );
    for key in [
        "gpu-fraction",
        "gpu-memory",
        "nvidia.com/container.main.gpu-memory.limit",
    ] {
        let about = "set schedulerName to apportion-scheduler";
        let shares = json!({key: if key == "gpu-fraction" { "0.5" } else { "2000" }});
        warned(annotated("default-scheduler", &shares, &json!({})), about);
        warned(
            annotated("another", &shares, &json!({})),
            "scheduler another ignores",
        );
    }
    for (key, small) in [
        ("gpu-memory", "100"),
        ("gpu-memory", "383"),
        ("gpu-fraction", "0.001"),
        ("gpu-fraction", ".0049"),
        ("nvidia.com/container.main.gpu-memory.limit", "300Mi"),
        ("nvidia.com/container.main.gpu-memory.request", "300Mi"),
    ] {
        warned(fine(json!({key: small})), "less than a CUDA context takes");
    }
    let (request, limit) = (
        "nvidia.com/container.main.gpu-memory.request",
        "nvidia.com/container.main.gpu-memory.limit",
    );
    let portion = "kai.scheduler/container.main.gpu-memory.portion.limit";
    for (annotations, about) in [
        (json!({(request): "1Gi", (limit): "2Gi"}), limit),
        (json!({"gpu-fraction": "0.5", (portion): "0.7"}), portion),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.7"}),
            "gpu-fraction.limit",
        ),
        (
            json!({"gpu-memory": "1000", "gpu-memory.limit": "1Gi"}),
            "gpu-memory.limit",
        ),
    ] {
        let [_, job, often] = fine(annotations);
        for object in [job, often] {
            let said = cluster.warnings(&object);
            let words = format!("annotation {about} is above the request");
            assert!(said.contains(&words), "{said}");
        }
    }
    for key in [
        "kai.scheduler/gpu-compute-sharing-mode",
        "nvidia.com/container.main.gpu-compute.mode",
    ] {
        let [_, job, _] = fine(json!({"gpu-fraction": "0.5", key: "sm-sharing"}));
        let said = cluster.warnings(&job);
        assert!(said.contains("Multi-Process Service"), "{said}");
    }
    for (annotations, labels) in [
        (json!({"gpu-fraction": "0.5"}), json!({})),
        (json!({(request): "1Gi", (limit): "1024Mi"}), json!({})),
        (
            json!({"gpu-memory": "1024", "gpu-memory.limit": "1Gi"}),
            json!({}),
        ),
        (
            json!({"gpu-fraction": "0.5", "kai.scheduler/gpu-compute-sharing-mode": "time-slicing"}),
            json!({}),
        ),
        (
            json!({"gpu-fraction": "0.005", "gpu-fraction-num-devices": "2"}),
            json!({}),
        ),
        (
            json!({"gpu-memory": "384", "gpu-fraction-container-name": "main"}),
            json!({}),
        ),
        (json!({"gpu-memory": "wrong"}), json!({})),
        (
            json!({"nvidia.com/container.main.gpu-memory.limit": "1Gi"}),
            json!({}),
        ),
        (
            json!({"example.com/note": "gpu", "gpu-model": "A100"}),
            json!({"app": "gpu", "gpu-type": "l4"}),
        ),
    ] {
        for object in annotated(ours, &annotations, &labels) {
            assert_eq!(cluster.warnings(&object), "", "{annotations}");
        }
    }
    // A pod with a hand-written slot gets no warning, and neither does one for KAI, which may be installed.
    let shares = json!({"gpu-memory": "2000"});
    let [mut slotted, ..] = annotated("default-scheduler", &shares, &json!({}));
    slotted["spec"]["containers"][0]["resources"] =
        json!({"limits": {"apportion.dev/gpu-slot": "1"}});
    assert_eq!(cluster.warnings(&slotted), "");
    let [kais, ..] = annotated("kai-scheduler", &shares, &json!({}));
    assert_eq!(cluster.warnings(&kais), "");
}
