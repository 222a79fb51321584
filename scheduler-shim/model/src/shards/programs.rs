//! What a Config says about the programs themselves, if the chart gave them the names of KAI's.
//!
//! KAI's operator rewrites its Deployments. Here the chart writes them, and a Config changes three things: whether
//! the scheduler runs, the image pull secrets, and whether pods may choose their GPUs. Each Deployment records what
//! was changed, so that it can be undone, and the generation of the Config.

use apportion_abi::names::{
    ANNOTATION_CONFIG_GENERATION as GENERATION, ANNOTATION_CONFIG_REPLICAS as REPLICAS,
    ANNOTATION_CONFIG_SECRETS as SECRETS,
};
use apportion_groups::ObjectView;
use serde_json::{Map, Value, json};

use crate::inventory::ObjectInventory;
use crate::object_kinds::KAI_CONFIG;

/// The Deployment that a Config stops.
const SCHEDULER: &str = "kai-scheduler-default";
const WEBHOOK: &str = "admission";
/// All Deployments. The second one is a scheduler, too: it leads while the first is stopped, and decides nothing.
pub const DEPLOYMENTS: [&str; 3] = [SCHEDULER, "binder", WEBHOOK];
/// The Config that counts.
pub const CONFIG: &str = "kai-config";

/// The webhook's option, as KAI writes it, and as the chart does.
const BLOCKS: &str = "--block-nvidia-visible-devices=true";
const BLOCKS_ANYWAY: &str = "--block-visible-devices";

/// Fields of a Config that only say where its programs are.
const NEEDLESS: &[&str] = &["namespace"];
const ENABLED: &str = "/scheduler/service/enabled";
const PULL_SECRETS: &str = "/global/additionalImagePullSecrets";
const BLOCK: &str = "/admission/blockNvidiaVisibleDevices";

/// What a Config wants.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DesiredPrograms {
    generation: i64,
    is_stopped: bool,
    secrets: Vec<String>,
    blocks: bool,
}

impl DesiredPrograms {
    /// What this Config wants.
    pub fn by(config: &Value) -> Self {
        let spec = &config["spec"];
        let flag = |path: &str| spec.pointer(path).and_then(Value::as_bool);
        let secrets = spec
            .pointer(PULL_SECRETS)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        Self {
            generation: config["metadata"]["generation"].as_i64().unwrap_or(0),
            is_stopped: flag(ENABLED) == Some(false),
            secrets: secrets.map(str::to_owned).collect(),
            blocks: flag(BLOCK) == Some(true),
        }
    }

    /// The merge patch for a Deployment; `None` if it is as wanted.
    pub fn change(&self, deployment: &Value) -> Option<Value> {
        let name = deployment["metadata"]["name"].as_str()?;
        let old = ObjectView::new(deployment);
        let mut annotations = Map::new();
        let mut annotate = |name: &str, value: Option<String>| {
            if old.annotation(name) != value.as_deref() {
                annotations.insert(name.to_owned(), json!(value));
            }
        };
        annotate(GENERATION, Some(self.generation.to_string()));
        let mut spec = Map::new();
        if name == SCHEDULER {
            let before = old.annotation(REPLICAS);
            let has = deployment["spec"]["replicas"].as_i64().unwrap_or(1);
            if self.is_stopped && has > 0 {
                annotate(REPLICAS, Some(has.to_string()));
                spec.insert("replicas".to_owned(), json!(0));
            } else if let Some(before) = before.filter(|_| !self.is_stopped) {
                let before: i64 = before.parse().unwrap_or(1);
                annotate(REPLICAS, None);
                if has == 0 {
                    spec.insert("replicas".to_owned(), json!(before));
                }
            }
        }
        let template = &deployment["spec"]["template"]["spec"];
        let mut pod = Map::new();
        let (secrets, added) = self.secrets(template, old.annotation(SECRETS));
        if secrets != template["imagePullSecrets"] {
            pod.insert("imagePullSecrets".to_owned(), secrets);
        }
        annotate(SECRETS, added);
        if name == WEBHOOK
            && let Some(containers) = self.containers(&template["containers"])
        {
            pod.insert("containers".to_owned(), containers);
        }
        if !pod.is_empty() {
            spec.insert("template".to_owned(), json!({ "spec": pod }));
        }
        if annotations.is_empty() && spec.is_empty() {
            return None;
        }
        let version = &deployment["metadata"]["resourceVersion"];
        Some(
            json!({"metadata": {"annotations": annotations, "resourceVersion": version}, "spec": spec}),
        )
    }

    /// The pull secrets that a pod should have, and those that come from the Config.
    fn secrets(&self, template: &Value, added: Option<&str>) -> (Value, Option<String>) {
        let added: Vec<&str> = added
            .into_iter()
            .flat_map(|added| added.split(','))
            .collect();
        let has = template["imagePullSecrets"].as_array();
        let own: Vec<&Value> = (has.into_iter().flatten())
            .filter(|one| {
                !one["name"]
                    .as_str()
                    .is_some_and(|name| added.contains(&name))
            })
            .collect();
        let new: Vec<&String> = self
            .secrets
            .iter()
            .filter(|name| !own.iter().any(|one| one["name"] == name.as_str()))
            .collect();
        let names = new.iter().map(|name| name.as_str()).collect::<Vec<_>>();
        let all = own
            .into_iter()
            .cloned()
            .chain(new.iter().map(|name| json!({ "name": name })));
        let all: Vec<Value> = all.collect();
        let list = if all.is_empty() {
            Value::Null
        } else {
            all.into()
        };
        (list, (!names.is_empty()).then(|| names.join(",")))
    }

    /// The webhook's containers, if its options change.
    fn containers(&self, containers: &Value) -> Option<Value> {
        let mut containers = containers.clone();
        let options = containers.pointer_mut("/0/args")?.as_array_mut()?;
        let has = |option: &str| options.iter().any(|one| one == option);
        match (self.blocks, has(BLOCKS)) {
            (true, false) if !has(BLOCKS_ANYWAY) => options.push(BLOCKS.into()),
            (false, true) => options.retain(|one| one != BLOCKS),
            _ => return None,
        }
        Some(containers)
    }
}

/// Whether the Config stops all scheduling.
pub fn are_stopped(inventory: &ObjectInventory) -> bool {
    let config = inventory.find(KAI_CONFIG.1, "", CONFIG);
    config.is_some_and(|config| DesiredPrograms::by(config.json()).is_stopped)
}

/// Whether the Deployments of a namespace follow the Config's current generation.
pub fn follow(config: ObjectView<'_>, inventory: &ObjectInventory, namespace: &str) -> bool {
    let wanted = DesiredPrograms::by(config.json()).generation.to_string();
    let mut found = DEPLOYMENTS
        .iter()
        .filter_map(|name| inventory.find("Deployment", namespace, name));
    found.all(|one| one.annotation(GENERATION) == Some(&wanted))
}

/// The settings of a Config that are not in effect. Without programs under KAI's names, only those that hold anyway
/// are in effect.
pub fn unsupported(config: ObjectView<'_>, has_programs: bool) -> Vec<String> {
    let mut unsupported = Vec::new();
    let fields = config.json()["spec"].as_object().into_iter().flatten();
    for (field, value) in fields.filter(|(field, _)| !NEEDLESS.contains(&field.as_str())) {
        let path = format!("/{field}");
        let is_known = [ENABLED, PULL_SECRETS, BLOCK]
            .iter()
            .any(|known| known.starts_with(&format!("{path}/")));
        if is_known && value.is_object() {
            check_support(&path, value, has_programs, &mut unsupported)
        } else {
            unsupported.push(format!("spec.{field}"))
        }
    }
    unsupported
}

fn check_support(path: &str, value: &Value, has_programs: bool, unsupported: &mut Vec<String>) {
    if let Some(fields) = value.as_object() {
        for (field, value) in fields {
            check_support(&format!("{path}/{field}"), value, has_programs, unsupported);
        }
        return;
    }
    let (is_meant, is_so_anyway) = match path {
        ENABLED => (value.is_boolean(), *value == true),
        PULL_SECRETS => (value.is_array(), *value == json!([])),
        BLOCK => (value.is_boolean(), *value == false),
        _ => (false, false),
    };
    if !(is_so_anyway || is_meant && has_programs) {
        unsupported.push(format!("spec{}", path.replace('/', ".")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(name: &str) -> Value {
        json!({"metadata": {"name": name, "resourceVersion": "7"}, "spec": {"replicas": 2, "template": {"spec": {
            "imagePullSecrets": [{"name": "own"}],
            "containers": [{"name": "main", "args": ["--listen=0.0.0.0:1"]}]}}}})
    }

    fn config(generation: i64, spec: &Value) -> Value {
        json!({"metadata": {"name": CONFIG, "generation": generation}, "spec": spec})
    }

    /// As the API server applies a merge patch.
    fn merged(onto: &Value, patch: &Value) -> Value {
        let Some(fields) = patch.as_object() else {
            return patch.clone();
        };
        let mut onto = onto.as_object().cloned().unwrap_or_default();
        for (field, value) in fields {
            if value.is_null() {
                onto.remove(field);
            } else {
                let new = merged(onto.get(field).unwrap_or(&Value::Null), value);
                onto.insert(field.clone(), new);
            }
        }
        onto.into()
    }

    #[test]
    fn what_a_config_changes_is_taken_back_with_it() {
        let wishes = json!({"scheduler": {"service": {"enabled": false}},
            "global": {"additionalImagePullSecrets": ["own", "other"]},
            "admission": {"blockNvidiaVisibleDevices": true}});
        for name in DEPLOYMENTS {
            let before = deployment(name);
            let wanted = DesiredPrograms::by(&config(2, &wishes));
            let patch = wanted.change(&before).expect("something is wanted");
            let during = merged(&before, &patch);
            assert_eq!(wanted.change(&during), None, "{during}");
            let replicas = if name == SCHEDULER { 0 } else { 2 };
            assert_eq!(during["spec"]["replicas"], replicas);
            let pod = &during["spec"]["template"]["spec"];
            assert_eq!(
                pod["imagePullSecrets"],
                json!([{"name": "own"}, {"name": "other"}])
            );
            let options = pod["containers"][0]["args"].as_array().expect("a list");
            assert_eq!(options.iter().any(|one| one == BLOCKS), name == WEBHOOK);

            let back = DesiredPrograms::by(&config(3, &json!({})));
            let patch = back.change(&during).expect("it is taken back");
            let after = merged(&during, &patch);
            assert_eq!(after["spec"], before["spec"]);
            assert_eq!(
                after["metadata"]["annotations"],
                json!({GENERATION: "3"}),
                "{name}"
            );
        }
    }

    #[test]
    fn what_the_chart_chose_stays() {
        let mut webhook = deployment(WEBHOOK);
        webhook["spec"]["template"]["spec"]["containers"][0]["args"] = json!([BLOCKS_ANYWAY]);
        let wanted = DesiredPrograms::by(&config(
            1,
            &json!({"admission": {"blockNvidiaVisibleDevices": true}}),
        ));
        let patch = wanted.change(&webhook).expect("the generation is noted");
        assert_eq!(patch["spec"], json!({}));
        let mut stopped = deployment(SCHEDULER);
        stopped["spec"]["replicas"] = json!(0);
        let patch = DesiredPrograms::by(&config(1, &json!({}))).change(&stopped);
        assert_eq!(patch.expect("the generation is noted")["spec"], json!({}));
    }

    #[test]
    fn what_is_not_in_effect_is_named() {
        let spec = json!({"namespace": "kai-scheduler", "global": {"additionalImagePullSecrets": ["a"], "vpa": {"enabled": true}},
            "scheduler": {"service": {"enabled": true}}, "binder": {"replicas": 2}});
        let config = config(1, &spec);
        let unsupported = |has_programs| unsupported(ObjectView::new(&config), has_programs);
        assert_eq!(
            unsupported(true),
            ["spec.binder", "spec.global.vpa.enabled"]
        );
        assert_eq!(
            unsupported(false),
            [
                "spec.binder",
                "spec.global.additionalImagePullSecrets",
                "spec.global.vpa.enabled"
            ]
        );
    }
}
