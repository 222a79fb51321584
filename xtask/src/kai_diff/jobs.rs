//! Generates the jobs of a random cluster, and starts some of them where there is room.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::generate::LEVELS;
use super::random::ClusterRng;
use super::remaining_capacity::{GeneratedRequest, RemainingCapacity};
use super::theme::ClusterTheme;

/// Generates the jobs of one cluster.
pub(crate) struct JobGenerator<'a> {
    theme: &'a ClusterTheme,
    random: &'a mut ClusterRng,
    leaves: &'a [String],
    nodes: Vec<RemainingCapacity>,
    /// The labels of running pods with affinity terms.
    present: BTreeSet<String>,
}

impl<'a> JobGenerator<'a> {
    /// Generates jobs for the queues `leaves` on `nodes`.
    pub(crate) fn of(
        theme: &'a ClusterTheme,
        random: &'a mut ClusterRng,
        nodes: &[Value],
        leaves: &'a [String],
    ) -> Vec<Value> {
        let nodes = nodes.iter().map(RemainingCapacity::of).collect();
        let mut making = Self {
            theme,
            random,
            leaves,
            nodes,
            present: BTreeSet::new(),
        };
        making.scatter();
        let count = making.random.between(theme.jobs.0, theme.jobs.1);
        let mut ages: Vec<usize> = (1..=count).collect();
        making.random.shuffle(&mut ages);
        let busy = making.random.of(&[40, 60, 80, 90]);
        let numbered = ages.into_iter().enumerate();
        numbered
            .map(|(number, age)| making.job(number, age, busy))
            .collect()
    }

    /// Limits what running jobs take of each node, so that free GPUs are scattered.
    fn scatter(&mut self) {
        if !self.theme.fragmented {
            return;
        }
        for room in &mut self.nodes {
            room.idle = room.idle.min(self.random.between(1, 4));
        }
    }

    fn job(&mut self, number: usize, age: usize, busy: u64) -> Value {
        let name = format!("job{number:02}");
        let priority = if self.random.chance(self.theme.urgent) {
            self.random.of(&[60, 75, 100, 125])
        } else {
            50
        };
        let ask = self.ask();
        let pods = match ask {
            GeneratedRequest::Whole(gpus) if gpus >= 4 => self.random.between(1, 2),
            _ => self.random.of(&[1, 1, 1, 2, 2, 3, 4]),
        };
        let (subgroups, sets) = self.subgroups(pods);
        let (cpu, memory) = if self.theme.cpu_quotas {
            (
                self.random.of(&[500.0, 1000.0, 2000.0, 4000.0]),
                self.random.of(&[1e9, 2e9, 4e9, 8e9]),
            )
        } else {
            (1000.0, 1e9)
        };
        let affinity_terms = self.affinity_terms();
        let tasks: Vec<Value> = (0..pods)
            .map(|pod| {
                let mut task = json!({
                    "id": format!("{name}-{pod}"),
                    "state": "Pending",
                    "subgroup": sets[pod],
                    "gpu": ask.json(),
                    "cpu_millis": cpu,
                    "mem_bytes": memory,
                });
                for (field, value) in &affinity_terms {
                    task[*field] = value.clone();
                }
                task
            })
            .collect();
        let mut job = json!({
            "name": name,
            "queue": self.leaves[self.random.between(0, self.leaves.len() - 1)],
            "priority": priority,
            "preemptible": priority < 100,
            "age_minutes": age,
            "subgroups": subgroups,
            "tasks": tasks,
        });
        if self.random.chance(self.theme.delayed) {
            job["preemption_delay_s"] = json!(self.random.of(&[30, 600]));
        }
        if self.random.chance(busy) {
            self.start(&mut job, ask, cpu, memory);
        }
        job
    }

    fn ask(&mut self) -> GeneratedRequest {
        let devices = if self.random.chance(self.theme.several_devices) {
            self.random.between(2, 3)
        } else {
            1
        };
        if self.random.chance(self.theme.fraction) {
            GeneratedRequest::Fraction(
                self.random.of(&[100, 200, 250, 300, 500, 500, 750]),
                devices,
            )
        } else if self.random.chance(self.theme.memory) {
            GeneratedRequest::Memory(
                self.random.of(&[100, 300, 500, 500, 800, 1000, 1500, 2000]),
                devices,
            )
        } else if self.theme.cpu_quotas && self.random.chance(25) {
            GeneratedRequest::Whole(0)
        } else {
            GeneratedRequest::Whole(self.random.of(&[1, 1, 1, 1, 2, 2, 3, 4]))
        }
    }

    /// The subgroups of a job, and the pod set of each pod.
    fn subgroups(&mut self, pods: usize) -> (Value, Vec<String>) {
        let minimum = |random: &mut ClusterRng, pods: usize, elastic| {
            if random.chance(elastic) {
                random.between(1, pods)
            } else {
                pods
            }
        };
        let elastic = self.theme.elastic;
        let mut root = json!({ "name": "" });
        if let Some(constraint) = self.constraint() {
            root["topology"] = constraint;
        }
        if pods < 2 || !self.random.chance(self.theme.subgroups) {
            let least = minimum(self.random, pods, elastic);
            root["pod_sets"] = json!([{"name": "default", "min_available": least}]);
            return (root, vec!["default".to_owned(); pods]);
        }
        let count = self.random.between(2, pods.min(3));
        let of: Vec<usize> = (0..pods).map(|pod| pod % count).collect();
        let mut sets = Vec::new();
        for set in 0..count {
            let members = of.iter().filter(|of| **of == set).count();
            let least = minimum(self.random, members, elastic);
            let mut made = json!({"name": format!("set{set}"), "min_available": least});
            if let Some(constraint) = self.constraint() {
                made["topology"] = constraint;
            }
            sets.push(made);
        }
        if self.random.chance(25) {
            root["min_sub_groups"] = json!(self.random.between(1, count));
        }
        if self.random.chance(25) {
            let last = sets.pop();
            root["groups"] = json!([{"name": "group", "pod_sets": [last]}]);
        }
        root["pod_sets"] = json!(sets);
        (root, of.iter().map(|set| format!("set{set}")).collect())
    }

    fn constraint(&mut self) -> Option<Value> {
        if !self.random.chance(self.theme.constrained) {
            return None;
        }
        let level = self.random.of(&LEVELS);
        let kind = self
            .random
            .of(&["required_level", "required_level", "preferred_level"]);
        Some(json!({"topology": "tree", kind: level}))
    }

    /// The affinity or anti-affinity terms of a job's pods.
    fn affinity_terms(&mut self) -> Vec<(&'static str, Value)> {
        if !self.random.chance(self.theme.affinity) {
            return Vec::new();
        }
        if self.random.chance(40) {
            let mut names: Vec<String> = self.nodes.iter().map(|room| room.name.clone()).collect();
            self.random.shuffle(&mut names);
            names.truncate(self.random.between(1, names.len()));
            return vec![("node_affinity", json!(names))];
        }
        let key = self
            .random
            .of(&["kai.scheduler/type", "kai.scheduler/type", "rack"]);
        let kind = self
            .random
            .of(&["affinity_topology_key", "anti_affinity_topology_key"]);
        let label = self.random.of(&["a", "b"]);
        let affinity_terms = json!({"labels": {"app": label}, kind: key});
        vec![("pod_affinity", affinity_terms)]
    }

    /// Starts a job if there is room for its minimum.
    fn start(&mut self, job: &mut Value, ask: GeneratedRequest, cpu: f64, memory: f64) {
        let pods = job["tasks"].as_array().map_or(0, Vec::len);
        let is_plain = job["subgroups"]["pod_sets"][0]["name"] == "default";
        let least = if is_plain {
            job["subgroups"]["pod_sets"][0]["min_available"].as_u64()
        } else {
            None
        };
        let least = least.map_or(pods, |least| least as usize);
        let is_stale = least > 1 && self.random.chance(self.theme.stale);
        let count = if is_stale {
            self.random.between(1, least - 1)
        } else {
            self.random.between(least, pods)
        };
        let Some(places) = self.places(job, ask, cpu, memory, count) else {
            return;
        };
        let is_ending = self.random.chance(self.theme.releasing);
        let state = if is_ending { "Releasing" } else { "Running" };
        for (pod, (node, groups)) in places.into_iter().enumerate() {
            let task = &mut job["tasks"][pod];
            task["state"] = json!(state);
            task["node"] = json!(node);
            task["gpu_groups"] = json!(groups);
        }
        let ages = [10, 60, 300, 1000];
        job["last_start_age_s"] = if self.theme.min_runtimes {
            json!(self.random.of(&ages))
        } else {
            json!(60)
        };
        if is_stale {
            job["stale_for_s"] = json!(self.random.of(&[30, 90]));
        }
    }
}

impl JobGenerator<'_> {
    /// Allowed places for this many pods of a job; `None` if there is no room for all of them.
    fn places(
        &mut self,
        job: &Value,
        ask: GeneratedRequest,
        cpu: f64,
        memory: f64,
        count: usize,
    ) -> Option<Vec<(String, Vec<String>)>> {
        let first = &job["tasks"][0];
        if let Some(label) = first["pod_affinity"]["labels"]["app"].as_str() {
            // Only one such pod runs, so that no affinity term is violated.
            if count > 1 || !self.present.insert(label.to_owned()) {
                return None;
            }
        }
        let allowed = first["node_affinity"].as_array();
        // A single node satisfies every topology constraint.
        let is_bound =
            self.theme.constrained > 0 && job["subgroups"].to_string().contains("_level");
        let before = self.nodes.clone();
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        if self.theme.spread || self.theme.fragmented || is_bound {
            self.random.shuffle(&mut order);
        }
        order.retain(|&node| {
            let name = &self.nodes[node].name;
            allowed.is_none_or(|allowed| allowed.iter().any(|allowed| allowed == name))
        });
        order.truncate(if is_bound { 1 } else { order.len() });
        let mut places = Vec::new();
        for _ in 0..count {
            let place = order.iter().find_map(|&node| {
                let room = &mut self.nodes[node];
                let groups = room.take(ask, cpu, memory)?;
                Some((room.name.clone(), groups))
            });
            let Some(place) = place else {
                self.nodes = before;
                return None;
            };
            places.push(place);
        }
        Some(places)
    }
}
