//! Generates random clusters: nodes, a tree of queues, and jobs of which some run.

use serde_json::{Map, Value, json};

use super::jobs::JobGenerator;
use super::random::ClusterRng;
use super::theme::ClusterTheme;

/// The plugins of KAI's default configuration. With a list of plugins the policy follows KAI's configuration.
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

/// The memory of each GPU in MiB, where it matters.
pub(crate) const GPU_MEMORY: usize = 1000;

/// The cluster for a theme and a seed.
pub(crate) fn cluster(theme: &ClusterTheme, seed: u64) -> Value {
    let mut random = ClusterRng::new(seed);
    let nodes = nodes(theme, &mut random);
    let (queues, leaves) = queues(theme, &mut random);
    let jobs = JobGenerator::of(theme, &mut random, &nodes, &leaves);
    let placement = if theme.spread { "spread" } else { "binpack" };
    let topologies = if theme.topology {
        json!([{"name": "tree", "levels": LEVELS}])
    } else {
        json!([])
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

fn nodes(theme: &ClusterTheme, random: &mut ClusterRng) -> Vec<Value> {
    let count = random.between(theme.nodes.0, theme.nodes.1);
    let usual = random.of(&[2, 4, 8]);
    let racks = random.between(1, 3);
    (0..count)
        .map(|number| {
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
        })
        .collect()
}

/// The queues, and the names of the leaf queues.
fn queues(theme: &ClusterTheme, random: &mut ClusterRng) -> (Vec<Value>, Vec<String>) {
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
    theme: &ClusterTheme,
    random: &mut ClusterRng,
    name: &str,
    parent: Option<String>,
    is_leaf: bool,
) -> Value {
    let deserved: f64 = if is_leaf {
        random.of(&[0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 4.0])
    } else {
        random.of(&[-1.0, 0.0, 2.0, 3.0, 4.0, 6.0, 8.0])
    };
    let limit = if random.chance(75) {
        -1.0
    } else {
        deserved.max(0.0) + random.of(&[1.0, 2.0, 4.0])
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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::super::pod_outcomes::{jobs, tasks};
    use super::super::theme;
    use super::*;
    use crate::scenarios::cluster_of;

    #[test]
    fn the_same_seed_makes_the_same_cluster_and_another_another() {
        for theme in &theme::ALL {
            assert_eq!(cluster(theme, 7), cluster(theme, 7));
            assert_ne!(cluster(theme, 7)["jobs"], cluster(theme, 8)["jobs"]);
        }
    }

    #[test]
    fn every_cluster_can_be_read_and_names_only_what_exists() {
        for (theme, seed) in theme::ALL
            .iter()
            .flat_map(|theme| (0..20).map(move |seed| (theme, seed)))
        {
            let made = cluster(theme, seed);
            let read = cluster_of(&made).unwrap();
            let queues: BTreeSet<&str> = read
                .queues
                .iter()
                .map(|queue| queue.name.as_str())
                .collect();
            assert!(
                read.jobs
                    .iter()
                    .all(|job| queues.contains(job.queue.as_str()))
            );
            let parents = read
                .queues
                .iter()
                .filter_map(|queue| queue.parent.as_deref());
            assert!(parents.into_iter().all(|parent| queues.contains(parent)));
        }
    }

    #[test]
    fn what_runs_fits_its_node() {
        for (theme, seed) in theme::ALL
            .iter()
            .flat_map(|theme| (0..20).map(move |seed| (theme, seed)))
        {
            let made = cluster(theme, seed);
            let mut held: BTreeMap<String, u64> = BTreeMap::new();
            let mut shared: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for task in jobs(&made)
                .flat_map(tasks)
                .filter(|task| !task["node"].is_null())
            {
                let node = task["node"].as_str().unwrap().to_owned();
                *held.entry(node.clone()).or_default() += task["gpu"]["gpus"].as_u64().unwrap();
                let groups = task["gpu_groups"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|group| group.as_str().unwrap().to_owned());
                shared.entry(node).or_default().extend(groups);
            }
            for node in made["nodes"].as_array().unwrap() {
                let name = node["name"].as_str().unwrap();
                let whole = held.get(name).copied().unwrap_or(0);
                let parts = shared.get(name).map_or(0, BTreeSet::len) as u64;
                let has = node["gpus_allocatable"].as_u64().unwrap();
                assert!(whole + parts <= has, "{}: {name}", made["id"]);
            }
        }
    }

    #[test]
    fn every_theme_has_jobs_that_run_and_jobs_that_wait() {
        for theme in &theme::ALL {
            let states: BTreeSet<String> = (0..20)
                .map(|seed| cluster(theme, seed))
                .flat_map(|made| {
                    let tasks: Vec<Value> = jobs(&made).flat_map(tasks).cloned().collect();
                    tasks.into_iter().map(|task| task["state"].to_string())
                })
                .collect();
            assert!(states.len() >= 2, "{}: {states:?}", theme.name);
        }
    }
}
