//! Reviews the plain manifests: the agent has only the permissions and mounts that are justified here.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

/// Every manifest, and whether its agent may open all devices of the host.
const PRESETS: [(&str, bool); 8] = [
    ("default", false),
    ("agent-only", false),
    ("in-place-of-kai", false),
    ("eks", false),
    ("gke", true),
    ("k3s", false),
    ("kind", false),
    ("openshift", false),
];

fn objects(preset: &str) -> Vec<Value> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../deploy/manifests/{preset}.yaml"));
    let text = std::fs::read_to_string(&path).expect("the manifest is there");
    serde_norway::Deserializer::from_str(&text)
        .map(|document| Value::deserialize(document).expect("it is YAML"))
        .filter(|object| !object.is_null())
        .collect()
}

fn of_kind(preset: &str, kind: &str) -> Vec<Value> {
    let mut objects = objects(preset);
    objects.retain(|object| object["kind"] == kind);
    objects
}

fn pod(preset: &str) -> Value {
    of_kind(preset, "DaemonSet").remove(0)["spec"]["template"]["spec"].take()
}

fn containers(pod: &Value) -> Vec<Value> {
    let of = |key: &str| pod[key].as_array().cloned().unwrap_or_default();
    [of("containers"), of("initContainers")].concat()
}

fn strings(value: &Value) -> BTreeSet<&str> {
    let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter_map(Value::as_str).collect()
}

#[test]
fn every_container_gives_up_what_it_does_not_need() {
    for (preset, is_privileged) in PRESETS {
        for container in containers(&pod(preset)) {
            let context = &container["securityContext"];
            let name = &container["name"];
            assert_eq!(context["readOnlyRootFilesystem"], true, "{preset} {name}");
            assert_eq!(strings(&context["capabilities"]["drop"]), ["ALL"].into());
            let mut allowed = BTreeSet::from(["SYS_PTRACE", "KILL"]);
            // Only runtimes without CDI need device files of real cards.
            let is_simulated = preset == "kind";
            if !strings(&container["args"]).contains("--cdi=on") && !is_simulated {
                allowed.insert("MKNOD");
            }
            let added = strings(&context["capabilities"]["add"]);
            assert!(added.is_subset(&allowed), "{preset}: {added:?}");
            let may_all = is_privileged && name == "agent";
            assert_eq!(context["privileged"] == true, may_all, "{preset} {name}");
            assert_eq!(
                context["allowPrivilegeEscalation"] == false,
                !may_all,
                "{preset} {name}"
            );
            assert!(
                container["resources"]["limits"]["memory"].is_string(),
                "{preset} {name}"
            );
        }
    }
}

#[test]
fn the_pod_shares_the_hosts_processes_and_nothing_else() {
    for (preset, _) in PRESETS {
        let pod = pod(preset);
        assert_eq!(pod["hostPID"], true, "{preset}");
        assert_eq!(pod["hostNetwork"], false, "{preset}");
        assert!(pod["hostIPC"].is_null(), "{preset}");
        let seccomp = &pod["securityContext"]["seccompProfile"]["type"];
        assert_eq!(seccomp, "RuntimeDefault", "{preset}");
    }
}

#[test]
fn every_mount_of_the_host_is_on_the_list() {
    let usual = [
        "/run/apportion",
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
        "/var/lib/kubelet/pods-api",
        "/var/lib/kubelet/plugins/apportion",
        "/var/run/cdi",
        "/var/run/nri",
        // The driver limits control groups, which it names by their folders.
        "/sys/fs/cgroup",
    ];
    for (preset, _) in PRESETS {
        let driver = match preset {
            "gke" => Some("/home/kubernetes/bin/nvidia"),
            "openshift" => Some("/run/nvidia/driver"),
            _ => None,
        };
        let pod = pod(preset);
        let volumes = pod["volumes"].as_array().unwrap();
        let paths: BTreeSet<_> = volumes
            .iter()
            .map(|volume| volume["hostPath"]["path"].as_str().expect("a hostPath"))
            .collect();
        assert_eq!(paths, usual.into_iter().chain(driver).collect(), "{preset}");
        for mount in pod["containers"][0]["volumeMounts"].as_array().unwrap() {
            let is_written = mount["readOnly"] != true;
            let is_read_only =
                ["pod-resources", "pods-api", "driver"].contains(&mount["name"].as_str().unwrap());
            assert_ne!(is_written, is_read_only, "{preset} {}", mount["name"]);
            assert_ne!(mount["mountPropagation"], "Bidirectional", "{preset}");
        }
    }
}

#[test]
fn there_are_never_two_agents_on_a_node() {
    for (preset, _) in PRESETS {
        let set = &of_kind(preset, "DaemonSet")[0];
        let update = &set["spec"]["updateStrategy"]["rollingUpdate"];
        assert_eq!(
            update,
            &json!({ "maxUnavailable": 1, "maxSurge": 0 }),
            "{preset}"
        );
    }
}

#[test]
fn an_offender_is_evicted_where_nobody_says_otherwise_and_no_agent_may_kill() {
    for (preset, _) in PRESETS {
        let agent = pod(preset)["containers"][0].take();
        assert!(
            strings(&agent["args"]).contains("--policy=evict"),
            "{preset}"
        );
        let added = strings(&agent["securityContext"]["capabilities"]["add"]);
        assert!(!added.contains("KILL"), "{preset}");
        let mut roles = of_kind(preset, "ClusterRole");
        roles.retain(|role| role["metadata"]["name"] == "apportion-agent");
        let rules = roles[0]["rules"].as_array().unwrap();
        assert!(
            rules
                .iter()
                .any(|rule| strings(&rule["resources"]).contains("pods/eviction")),
            "{preset}"
        );
        // Policies of single namespaces are options.
        assert!(
            !rules
                .iter()
                .any(|rule| strings(&rule["resources"]).contains("namespaces")),
            "{preset}"
        );
    }
}

#[test]
fn the_agent_reads_no_secret_and_writes_no_pod() {
    for (preset, _) in PRESETS {
        for role in of_kind(preset, "ClusterRole") {
            if role["metadata"]["name"] != "apportion-agent" {
                continue;
            }
            for rule in role["rules"].as_array().unwrap() {
                let (resources, verbs) = (strings(&rule["resources"]), strings(&rule["verbs"]));
                let reads = BTreeSet::from(["get", "list", "watch"]);
                let is_ours = strings(&rule["apiGroups"]) == ["apportion.dev"].into();
                let is_allowed = match resources.iter().next() {
                    Some(&"pods" | &"nodes" | &"resourceslices") => verbs.is_subset(&reads),
                    Some(&"certificatesigningrequests") => !verbs.contains("patch"),
                    Some(&"nodes/status") => verbs == ["patch"].into(),
                    Some(&"pods/eviction") => verbs == ["create"].into(),
                    Some(&"events") => verbs == ["create", "patch"].into(),
                    _ => is_ours && !verbs.contains("delete"),
                };
                assert!(is_allowed, "{preset}: {rule}");
                assert!(
                    !verbs.contains("*") && !resources.contains("*"),
                    "{preset}: {rule}"
                );
            }
        }
    }
}

#[test]
fn scheduler_and_webhook_need_nothing_of_the_host() {
    for (preset, _) in PRESETS {
        let deployments = of_kind(preset, "Deployment");
        let expected = if preset == "agent-only" { 0 } else { 2 };
        assert_eq!(deployments.len(), expected, "{preset}");
        for deployment in deployments {
            let name = &deployment["metadata"]["name"];
            let spec = &deployment["spec"];
            assert_eq!(spec["replicas"], 2, "{preset} {name}");
            assert_eq!(spec["strategy"]["rollingUpdate"]["maxUnavailable"], 0);
            let pod = &spec["template"]["spec"];
            let user = &pod["securityContext"];
            assert_eq!(user["runAsNonRoot"], true, "{preset} {name}");
            // OpenShift's security context constraints choose the user and refuse any other.
            let is_chosen = preset == "openshift";
            assert_eq!(user["runAsUser"].is_null(), is_chosen, "{preset} {name}");
            for unset in ["volumes", "hostPID", "hostNetwork", "initContainers"] {
                assert!(pod[unset].is_null(), "{preset} {name} {unset}");
            }
            let context = &pod["containers"][0]["securityContext"];
            assert_eq!(context["readOnlyRootFilesystem"], true, "{preset} {name}");
            assert_eq!(strings(&context["capabilities"]["drop"]), ["ALL"].into());
            assert!(context["capabilities"]["add"].is_null(), "{preset} {name}");
        }
    }
}

#[test]
fn kais_objects_wait_for_nobody_where_kai_runs() {
    for (preset, policy) in [("default", "Ignore"), ("in-place-of-kai", "Fail")] {
        for configuration in of_kind(preset, "ValidatingWebhookConfiguration") {
            for webhook in configuration["webhooks"].as_array().unwrap() {
                let is_pods = webhook["rules"][0]["resources"][0] == "pods";
                let expected = if is_pods { "Fail" } else { policy };
                assert_eq!(webhook["failurePolicy"], expected, "{webhook}");
            }
        }
    }
}

#[test]
fn no_probe_asks_the_driver() {
    for (preset, _) in PRESETS {
        let agent = pod(preset)["containers"][0].take();
        for probe in ["startupProbe", "livenessProbe"] {
            assert_eq!(agent[probe]["httpGet"]["path"], "/healthz", "{preset}");
        }
    }
}

#[test]
fn simulated_cards_need_no_driver_of_the_node() {
    let pod = pod("kind");
    assert!(pod["runtimeClassName"].is_null());
    assert_eq!(pod["initContainers"][0]["restartPolicy"], "Always");
    assert!(strings(&pod["containers"][0]["args"]).contains("--sim"));
    assert!(
        pod["containers"][0]["env"]
            .to_string()
            .contains("APPORTION_SIM_SOCKET")
    );
}

#[test]
fn openshift_admits_the_agent_by_constraints_of_its_own() {
    let constraints = of_kind("openshift", "SecurityContextConstraints");
    assert_eq!(constraints[0]["allowPrivilegedContainer"], false);
    assert_eq!(constraints[0]["allowHostNetwork"], false);
    let set = of_kind("openshift", "DaemonSet").remove(0);
    let asked = &set["spec"]["template"]["metadata"]["annotations"]["openshift.io/required-scc"];
    assert_eq!(asked, &constraints[0]["metadata"]["name"]);
}
