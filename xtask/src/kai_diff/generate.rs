//! Makes random clusters: nodes, a tree of queues, and jobs of which some run.

use serde_json::{Map, Value, json};

use super::jobs::Jobs;
use super::random::Random;
use super::theme::Theme;

/// The plugins of KAI's default configuration. A list of plugins says that things are to be as KAI has them.
const PLUGINS: [&str; 20] = [
    "predicates",
    "proportion",
    "priority",
    "elastic",
    "kubeflow",
    "ray",
    "nodeavailability",
    "gpusharingorder",
    "gpupack",
    "resourcetype",
    "subgrouporder",
    "taskorder",
    "nominatednode",
    "dynamicresources",
    "nodeplacement",
    "minruntime",
    "topology",
    "snapshot",
    "sg-nodelocalgreedy",
    "sg-multinodegang",
];

/// Labels of a zone and of a rack.
pub(crate) const LEVELS: [&str; 2] = ["zone", "rack"];

/// MiB of each GPU, where its memory matters.
pub(crate) const GPU_MEMORY: usize = 1000;

/// The cluster of a theme that a seed makes.
pub(crate) fn cluster(theme: &Theme, seed: u64) -> Value {
    let mut random = Random::new(seed);
    let nodes = nodes(theme, &mut random);
    let (queues, leaves) = queues(theme, &mut random);
    let jobs = Jobs::of(theme, &mut random, &nodes, &leaves);
    let placement = if theme.spread { "spread" } else { "binpack" };
    let topologies = match theme.topology {
        true => json!([{"name": "tree", "levels": LEVELS}]),
        false => json!([]),
    };
    json!({
        "id": format!("{}:{seed}", theme.name),
        "mode": "cycle",
        "features": [theme.name],
        "actions": ["allocate", "consolidation", "reclaim", "preempt", "stalegangeviction"],
        "settings": {
            "plugins": PLUGINS,
            "predicates": true,
            "node_placement": {"cpu": placement, "gpu": placement},
            "gpu_placement": if theme.spread { "spread" } else { "pack" },
            "staleness_grace_period_s": 60,
        },
        "nodes": nodes,
        "topologies": topologies,
        "queues": queues,
        "jobs": jobs,
        "expected": {},
    })
}

fn nodes(theme: &Theme, random: &mut Random) -> Vec<Value> {
    let count = random.between(theme.nodes.0, theme.nodes.1);
    let usual = random.of(&[2, 4, 8]);
    let racks = random.between(1, 3);
    let node = |number: usize| {
        let name = format!("node{number:02}");
        let gpus = if random.chance(70) {
            usual
        } else {
            random.of(&[1, 2, 4, 8])
        };
        let mut labels = Map::new();
        labels.insert("kai.scheduler/type".to_owned(), json!(name));
        if theme.topology {
            let rack = random.between(0, racks);
            labels.insert(LEVELS[0].to_owned(), json!(format!("zone{}", rack % 2)));
            labels.insert(LEVELS[1].to_owned(), json!(format!("rack{rack}")));
        }
        let mut node = json!({
            "name": name,
            "gpus_allocatable": gpus,
            "gpu_memory_mib": GPU_MEMORY,
            "mem_bytes": 200e9,
            "labels": labels,
        });
        if theme.cpu_quotas {
            node["cpu_millis"] = json!(1000 * random.of(&[8, 12, 16, 24]));
            node["mem_bytes"] = json!(1e9 * random.of(&[16.0, 24.0, 48.0]));
        }
        node
    };
    (0..count).map(node).collect()
}

/// The queues, and the names of those that jobs can be in.
fn queues(theme: &Theme, random: &mut Random) -> (Vec<Value>, Vec<String>) {
    let mut queues: Vec<Value> = Vec::new();
    let mut leaves = Vec::new();
    let tops = match theme.levels {
        1 => random.between(1, 2),
        _ => random.between(1, 3),
    };
    let mut open: Vec<(String, Option<String>, usize)> =
        (0..tops).map(|top| (format!("q{top}"), None, 1)).collect();
    while let Some((name, parent, level)) = open.pop() {
        let is_leaf = level == theme.levels || (level > 1 && random.chance(15));
        if is_leaf {
            leaves.push(name.clone());
        } else {
            for below in 0..random.between(1, 3) {
                open.push((format!("{name}{below}"), Some(name.clone()), level + 1));
            }
        }
        queues.push(queue(theme, random, &name, parent, is_leaf));
    }
    let mut ages: Vec<usize> = (0..queues.len()).collect();
    random.shuffle(&mut ages);
    for (queue, age) in queues.iter_mut().zip(ages) {
        queue["created_order"] = json!(age);
    }
    leaves.sort();
    (queues, leaves)
}

fn queue(
    theme: &Theme,
    random: &mut Random,
    name: &str,
    parent: Option<String>,
    is_leaf: bool,
) -> Value {
    let deserved: f64 = match is_leaf {
        true => random.of(&[0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 4.0]),
        false => random.of(&[-1.0, 0.0, 2.0, 3.0, 4.0, 6.0, 8.0]),
    };
    let limit = match random.chance(75) {
        true => -1.0,
        false => deserved.max(0.0) + random.of(&[1.0, 2.0, 4.0]),
    };
    let mut queue = json!({
        "name": name,
        "parent": parent,
        "deserved_gpus": deserved,
        "max_gpus": limit,
        "over_quota_weight": random.of(&[0.0, 1.0, 1.0, 1.0, 2.0, 3.0]),
    });
    if theme.queue_priorities {
        queue["priority"] = json!(random.of(&[100, 100, 100, 50, 150]));
        if deserved > 0.0 && random.chance(30) {
            queue["deserved_gpus"] = json!(deserved - 0.5);
        }
    }
    if theme.cpu_quotas && random.chance(60) {
        queue["deserved_cpu_millis"] = json!(1000 * random.between(0, 12));
        queue["deserved_mem_bytes"] = json!(1e9 * random.between(0, 24) as f64);
        if random.chance(30) {
            queue["max_cpu_millis"] = json!(1000 * random.between(12, 20));
        }
    }
    if theme.min_runtimes && random.chance(50) {
        let runtimes = [0, 30, 120, 600];
        queue["preempt_min_runtime_s"] = json!(random.of(&runtimes));
        queue["reclaim_min_runtime_s"] = json!(random.of(&runtimes));
    }
    queue
}
