//! KAI's Config and the Deployments with KAI's names that follow it, and what a pod waits for besides a placement.

use apportion_tests::cards;
use serde_json::{Value, json};

use crate::cluster::{Cluster, pod};
use crate::settings::kind;

const NAMESPACE: &str = "kai-scheduler";
const NAMES: [&str; 3] = ["kai-scheduler-default", "binder", "admission"];

fn config(spec: &Value) -> Value {
    json!({"apiVersion": "kai.scheduler/v1", "kind": "Config", "metadata": {"name": "kai-config"}, "spec": spec})
}

fn deployment(name: &str) -> Value {
    let labels = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "main", "image": "none", "args": ["--health=0.0.0.0:9444"]}]}}}})
}

impl Cluster {
    /// A cluster whose scheduler acts under KAI's names.
    fn with_programs() -> Self {
        let mut cluster = Self::bare();
        cluster.add_node("node-1", &cards(1));
        cluster.plane.apply(&[
            kind("Config", "configs"),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        ]);
        let known = [
            "wait",
            "--for=condition=Established",
            "--timeout=60s",
            "crd/configs.kai.scheduler",
        ];
        let _ = cluster.plane.kubectl(&known);
        cluster.plane.apply(&NAMES.map(deployment));
        let spec =
            json!({"scheduler": {"service": {"enabled": true}}, "global": {}, "admission": {}});
        cluster.plane.apply(&[config(&spec)]);
        let options = [
            "--kai-settings",
            "--kai-programs",
            "--lease-namespace",
            NAMESPACE,
        ];
        cluster.options = options.map(str::to_owned).to_vec();
        cluster.start_scheduler();
        cluster
    }

    fn set(&self, spec: &Value) {
        let patch = json!({ "spec": spec }).to_string();
        let patched = [
            "patch",
            "configs.kai.scheduler",
            "kai-config",
            "--type=merge",
            "-p",
            &patch,
        ];
        let _ = self.plane.kubectl(&patched);
    }

    fn deployment(&self, name: &str) -> Value {
        let all = self.plane.all("deployments");
        let found = all.into_iter().find(|one| one["metadata"]["name"] == name);
        found.expect("nobody deletes it")
    }

    /// Waits until the Config's status says that its current generation is applied.
    fn is_followed(&self) {
        self.eventually("the Config says that it is followed", |_| {
            let config = self.plane.all("configs.kai.scheduler").pop()?;
            let conditions = config["status"]["conditions"].as_array()?;
            let mut conditions = conditions.iter();
            let ours = conditions.find(|one| one["type"] == "Available")?;
            let generation = &config["metadata"]["generation"];
            (ours["observedGeneration"] == *generation && ours["status"] == "True").then_some(())
        });
    }
}

#[test]
fn a_config_stops_the_scheduler_and_changes_its_programs_until_it_is_taken_back() {
    let cluster = Cluster::with_programs();
    cluster.is_followed();
    let before = NAMES.map(|name| cluster.deployment(name)["spec"].clone());
    cluster.set(&json!({"scheduler": {"service": {"enabled": false}},
        "global": {"additionalImagePullSecrets": ["registry"]}, "admission": {"blockNvidiaVisibleDevices": true}}));
    cluster.is_followed();
    // Then its Deployments are already changed.
    assert_eq!(cluster.deployment(NAMES[0])["spec"]["replicas"], 0);
    assert_eq!(cluster.deployment(NAMES[1])["spec"]["replicas"], 1);
    for name in NAMES {
        let pod = &cluster.deployment(name)["spec"]["template"]["spec"];
        assert_eq!(
            pod["imagePullSecrets"],
            json!([{"name": "registry"}]),
            "{name}"
        );
        let options = pod["containers"][0]["args"].as_array().expect("a list");
        let blocks = options.contains(&json!("--block-nvidia-visible-devices=true"));
        assert_eq!(blocks, name == "admission", "{name}");
    }
    cluster
        .plane
        .apply(&[pod("waits", json!({"gpu-fraction": "0.5"}))]);
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(cluster.plane.all("pods")[0]["spec"]["nodeName"].is_null());
    cluster.set(
        &json!({"scheduler": {"service": {"enabled": true}}, "global": {"additionalImagePullSecrets": null},
        "admission": {"blockNvidiaVisibleDevices": null}}),
    );
    cluster.is_followed();
    let after = NAMES.map(|name| cluster.deployment(name)["spec"].clone());
    assert_eq!(before, after);
    cluster.bound(1);
}

#[test]
fn a_pod_waits_until_the_config_map_exists_that_it_mounts() {
    let cluster = Cluster::with_cards(1);
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}});
    // A Kubernetes controller creates this in every namespace, but none runs here.
    cluster.plane.apply(&[map("kube-root-ca.crt")]);
    let mut mounts = pod("mounts", json!({"gpu-fraction": "0.5"}));
    mounts["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "settings"}}]);
    cluster.plane.apply(&[mounts]);
    cluster.eventually("it says what it waits for", |pods| {
        let conditions = pods.first()?["status"]["conditions"].as_array()?;
        let mut messages = conditions.iter().filter_map(|one| one["message"].as_str());
        messages
            .any(|message| message.contains("ConfigMap settings of the pod does not exist"))
            .then_some(())
    });
    cluster.plane.apply(&[map("settings")]);
    cluster.bound(1);
}

/// As many ConfigMaps of this size are in the cluster, and all of them together are more than the scheduler may use.
const CONFIG_MAPS: usize = 128;
const CONFIG_MAP_BYTES: usize = 1_000_000;
const MEMORY_BUDGET: usize = CONFIG_MAPS * CONFIG_MAP_BYTES / 2;

#[test]
fn the_contents_of_config_maps_take_no_memory() {
    let mut cluster = Cluster::bare();
    cluster.add_node("node-1", &cards(1));
    let text = "x".repeat(CONFIG_MAP_BYTES);
    let maps = (0..CONFIG_MAPS).map(|number| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("map-{number}"),
            "namespace": "default"}, "data": {"text": text}})
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": maps.collect::<Vec<_>>()});
    let file = cluster.plane.dir().join("config-maps.json");
    std::fs::write(&file, list.to_string()).expect("the folder is writable");
    let file = file.to_str().expect("it is text");
    let _ = cluster.plane.kubectl(&["create", "-f", file]);
    cluster.start_scheduler();
    let mut mounts = pod("mounts", json!({"gpu-fraction": "0.5"}));
    mounts["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "map-0"}}]);
    cluster.plane.apply(&[mounts]);
    cluster.bound(1);
    let peak = cluster.scheduler_peak();
    println!("the scheduler took {peak} bytes at most");
    assert!(peak < MEMORY_BUDGET, "{peak}");
}
