//! KAI's SchedulingShard and Config: those of their settings that this scheduler has, too.
//!
//! A shard's settings override those of the command line, at once and without a restart. There is one scheduler for
//! all nodes: of several shards the one named `default` counts, or the first without a label value. What is not
//! understood is named in the condition `Supported` of the object and changes nothing.

use std::collections::BTreeSet;

use apportion_groups::ObjectView;
use apportion_kubernetes::parse_duration;
use apportion_policy::cluster::{
    PlacementStrategy, PolicySettings, SharedCardPreference, StalenessGracePeriod,
};
use apportion_policy::{Action, Cluster};
use serde_json::Value;

use super::inventory::ObjectInventory;
use super::object_kinds::{KAI_CONFIG, SCHEDULING_SHARD};

pub mod kinds;
mod levels;
pub mod programs;

/// The shard that KAI creates if nobody names one.
const DEFAULT: &str = "default";
/// Fields that need nothing here: the memory and the time of KAI's own program.
const NEEDLESS: &[&str] = &["goMemLimitRatio", "goMemLimit", "scenarioSearchBudgets"];

/// The settings of an object that are not understood: the path of each field, or why.
pub type Unsupported = Vec<String>;

/// What a shard may set.
#[derive(Debug, Default)]
struct ShardSettings {
    settings: PolicySettings,
    /// Whether node labels say which kind of pods a node takes.
    keeps_kinds: bool,
    /// Whether queues with a parent are treated as if all had the same one.
    ignores_levels: bool,
    /// The resources that no kubelet aligns, if pods are aligned with NUMA zones.
    numa: Option<BTreeSet<String>>,
}

/// Applies the shard that counts. `numa` is whether pods are aligned with NUMA zones, and which resources are not.
pub fn enter(
    inventory: &ObjectInventory,
    cluster: &mut Cluster,
    numa: &mut Option<BTreeSet<String>>,
) {
    let Some(shard) = counting(inventory) else {
        return;
    };
    let mut chosen = ShardSettings {
        settings: std::mem::take(&mut cluster.settings),
        numa: numa.take(),
        ..ShardSettings::default()
    };
    let _ = read(shard, &mut chosen);
    cluster.settings = chosen.settings;
    *numa = chosen.numa;
    if chosen.keeps_kinds {
        kinds::keep_apart(cluster);
    }
    if chosen.ignores_levels {
        levels::ignore(cluster);
    }
}

/// The settings of each shard and each Config that are not in effect. Those of a Config are, if there are programs to
/// change.
pub fn unsupported(
    inventory: &ObjectInventory,
    has_programs: bool,
) -> Vec<(ObjectView<'_>, Unsupported)> {
    let counting = counting(inventory).map(ObjectView::name);
    let shards = inventory.all(SCHEDULING_SHARD.1).map(|shard| {
        if Some(shard.name()) == counting {
            return (shard, read(shard, &mut ShardSettings::default()));
        }
        let why = "one shard counts, for all nodes; this is another";
        (shard, vec![why.to_owned()])
    });
    let configs = inventory.all(KAI_CONFIG.1).map(|config| {
        let has_programs = has_programs && config.name() == programs::CONFIG;
        (config, programs::unsupported(config, has_programs))
    });
    shards.chain(configs).collect()
}

fn counting(inventory: &ObjectInventory) -> Option<ObjectView<'_>> {
    let named = inventory.find(SCHEDULING_SHARD.1, "", DEFAULT);
    named.or_else(|| {
        inventory.all(SCHEDULING_SHARD.1).find(|shard| {
            let label = shard.json()["spec"]["partitionLabelValue"].as_str();
            label.is_none_or(str::is_empty)
        })
    })
}

/// Applies a shard's settings. Returns those that are not understood.
fn read(shard: ObjectView<'_>, chosen: &mut ShardSettings) -> Unsupported {
    let mut unsupported = Unsupported::new();
    let spec = shard.json()["spec"].as_object().into_iter().flatten();
    for (field, value) in spec {
        let parts = value.as_object().into_iter().flatten();
        for_each(field, value, parts, chosen, &mut unsupported);
    }
    unsupported
}

fn for_each<'v>(
    field: &str,
    value: &Value,
    parts: impl Iterator<Item = (&'v String, &'v Value)>,
    chosen: &mut ShardSettings,
    unsupported: &mut Unsupported,
) {
    let part: fn(&mut ShardSettings, &str, &Value) -> Option<()> = match field {
        "placementStrategy" => placement,
        "queueDepthPerAction" => queue_depth,
        "minRuntime" => min_runtime,
        "args" => argument,
        "plugins" => plugin,
        field if NEEDLESS.contains(&field) => return,
        "partitionLabelValue" if *value == "" => return,
        _ => {
            unsupported.push(format!("spec.{field}"));
            return;
        }
    };
    for (name, value) in parts {
        if part(chosen, name, value).is_none() {
            unsupported.push(format!("spec.{field}.{name}: {value}"));
        }
    }
}

fn placement(chosen: &mut ShardSettings, of: &str, how: &Value) -> Option<()> {
    let settings = &mut chosen.settings;
    let strategy = match how.as_str()? {
        "binpack" => PlacementStrategy::Binpack,
        "spread" => PlacementStrategy::Spread,
        _ => return None,
    };
    match of {
        "cpu" => settings.cpu_nodes = strategy,
        "gpu" => {
            settings.gpu_nodes = strategy;
            settings.cards = strategy;
            settings.shared_cards = match strategy {
                PlacementStrategy::Spread => SharedCardPreference::NoMatter,
                PlacementStrategy::Binpack | PlacementStrategy::ByName => SharedCardPreference::Any,
            };
        }
        _ => return None,
    }
    Some(())
}

fn queue_depth(chosen: &mut ShardSettings, action: &str, jobs: &Value) -> Option<()> {
    let action = Action::ALL
        .into_iter()
        .find(|one| action_name(*one) == action)?;
    let jobs = usize::try_from(jobs.as_u64()?).ok()?;
    chosen.settings.queue_depth.insert(action, jobs);
    Some(())
}

fn min_runtime(chosen: &mut ShardSettings, against: &str, time: &Value) -> Option<()> {
    let settings = &mut chosen.settings;
    let time = parse_duration(time.as_str()?)?;
    match against {
        "preemptMinRuntime" => settings.preempt_min_runtime = time,
        "reclaimMinRuntime" => settings.reclaim_min_runtime = time,
        _ => return None,
    }
    Some(())
}

/// A plugin of KAI's scheduler. Only the one for NUMA zones is not always on.
fn plugin(chosen: &mut ShardSettings, name: &str, config: &Value) -> Option<()> {
    if name != "numa" {
        return None;
    }
    let arguments = config["arguments"].as_object().into_iter().flatten();
    let mut ignored = BTreeSet::new();
    for (argument, value) in arguments {
        match (argument.as_str(), value.as_str()?) {
            ("ignoreList", names) => {
                let names = names.split(',').map(str::trim).map(str::to_owned);
                ignored.extend(names.filter(|name| !name.is_empty()));
            }
            // What is free in a zone is always computed.
            ("reconstructAvailable", "true") => {}
            _ => return None,
        }
    }
    chosen.numa = (config["enabled"] != false).then_some(ignored);
    Some(())
}

/// An option of KAI's scheduler. Both names of the first are in use.
fn argument(chosen: &mut ShardSettings, name: &str, value: &Value) -> Option<()> {
    let text = value.as_str()?;
    let settings = &mut chosen.settings;
    match name {
        "max-consolidation-preemptees" | "max-number-consolidation-preemptees" => {
            settings.max_consolidated = at_most(text)?;
        }
        "allow-consolidating-reclaim" => settings.consolidating_reclaim = text.parse().ok()?,
        "default-staleness-grace-period" => settings.grace = grace(text)?,
        "restrict-node-scheduling" => chosen.keeps_kinds = text.parse().ok()?,
        "full-hierarchy-fairness" => chosen.ignores_levels = !text.parse::<bool>().ok()?,
        _ => return None,
    }
    Some(())
}

/// A number; a negative one is no limit.
fn at_most(text: &str) -> Option<Option<usize>> {
    let number: i64 = text.parse().ok()?;
    Some(usize::try_from(number).ok())
}

fn grace(text: &str) -> Option<StalenessGracePeriod> {
    match text.strip_prefix('-') {
        Some(rest) => parse_duration(rest).map(|_| StalenessGracePeriod::Forever),
        None => parse_duration(text).map(StalenessGracePeriod::For),
    }
}

/// An action by KAI's name.
pub const fn action_name(action: Action) -> &'static str {
    match action {
        Action::Allocate => "allocate",
        Action::Consolidate => "consolidation",
        Action::Reclaim => "reclaim",
        Action::Preempt => "preempt",
        Action::EvictStaleGangs => "stalegangeviction",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::object_warnings::ObjectWarnings;

    fn shard(name: &str, spec: &Value) -> Value {
        json!({"apiVersion": "kai.scheduler/v1", "kind": "SchedulingShard",
            "metadata": {"name": name, "uid": name}, "spec": spec})
    }

    fn entered(inventory: &ObjectInventory) -> Cluster {
        let mut cluster = Cluster::default();
        enter(inventory, &mut cluster, &mut None);
        cluster
    }

    fn inventory(objects: Vec<Value>) -> ObjectInventory {
        ObjectInventory::of(objects, &mut ObjectWarnings::default())
    }

    #[test]
    fn what_a_shard_says_counts() {
        let spec = json!({"placementStrategy": {"gpu": "spread", "cpu": "binpack"},
            "queueDepthPerAction": {"reclaim": 7}, "goMemLimitRatio": 0.5,
            "minRuntime": {"preemptMinRuntime": "5m", "reclaimMinRuntime": "1h"},
            "args": {"allow-consolidating-reclaim": "false", "default-staleness-grace-period": "-1s",
                "max-consolidation-preemptees": "3"}});
        let inventory = inventory(vec![shard("default", &spec)]);
        let settings = entered(&inventory).settings;
        assert_eq!(settings.gpu_nodes, PlacementStrategy::Spread);
        assert_eq!(settings.cards, PlacementStrategy::Spread);
        assert_eq!(settings.cpu_nodes, PlacementStrategy::Binpack);
        assert_eq!(settings.queue_depth, BTreeMap::from([(Action::Reclaim, 7)]));
        assert_eq!(settings.preempt_min_runtime, Duration::from_secs(300));
        assert_eq!(settings.reclaim_min_runtime, Duration::from_secs(3600));
        assert!(!settings.consolidating_reclaim);
        assert_eq!(settings.grace, StalenessGracePeriod::Forever);
        assert_eq!(settings.max_consolidated, Some(3));
        let message = unsupported(&inventory, false);
        assert!(message[0].1.is_empty(), "{:?}", message[0].1);
    }

    #[test]
    fn what_is_not_understood_is_named_and_changes_nothing() {
        let spec = json!({"placementStrategy": {"gpu": "pack"}, "kValue": 2.0,
            "args": {"leader-elect": "true", "default-staleness-grace-period": "soon"},
            "queueDepthPerAction": {"guess": 1}});
        let inventory = inventory(vec![shard("default", &spec), shard("other", &json!({}))]);
        let settings = entered(&inventory).settings;
        assert_eq!(
            format!("{settings:?}"),
            format!("{:?}", PolicySettings::default())
        );
        let message: BTreeMap<_, _> = unsupported(&inventory, false)
            .into_iter()
            .map(|(object, message)| (object.name(), message))
            .collect();
        assert_eq!(
            message["default"],
            [
                "spec.args.default-staleness-grace-period: \"soon\"",
                "spec.args.leader-elect: \"true\"",
                "spec.kValue",
                "spec.placementStrategy.gpu: \"pack\"",
                "spec.queueDepthPerAction.guess: 1",
            ]
        );
        assert_eq!(message["other"].len(), 1);
    }

    #[test]
    fn the_plugin_for_numa_zones_is_on_where_a_shard_says_so() {
        let numa = |config: &Value, option: bool| {
            let inventory = inventory(vec![shard(
                "default",
                &json!({"plugins": {"numa": config}}),
            )]);
            let mut numa = option.then(BTreeSet::new);
            enter(&inventory, &mut Cluster::default(), &mut numa);
            (numa, unsupported(&inventory, false)[0].1.len())
        };
        let ignored = BTreeSet::from(["cpu".to_owned(), "memory".to_owned()]);
        let arguments = json!({"ignoreList": "cpu, memory", "reconstructAvailable": "true"});
        assert_eq!(
            numa(&json!({"arguments": arguments}), false),
            (Some(ignored), 0)
        );
        assert_eq!(numa(&json!({"enabled": false}), true), (None, 0));
        let odd = json!({"enabled": true, "arguments": {"reconstructAvailable": "false"}});
        assert_eq!(numa(&odd, false), (None, 1));
    }

    #[test]
    fn a_shard_for_some_nodes_does_not_count_for_all() {
        let spread = json!({"placementStrategy": {"gpu": "spread"}, "partitionLabelValue": "pool"});
        let settings = entered(&inventory(vec![shard("pool", &spread)])).settings;
        assert_eq!(settings.gpu_nodes, PlacementStrategy::Binpack);
        let everywhere = json!({"placementStrategy": {"gpu": "spread"}});
        let settings = entered(&inventory(vec![shard("any", &everywhere)])).settings;
        assert_eq!(settings.gpu_nodes, PlacementStrategy::Spread);
    }
}
