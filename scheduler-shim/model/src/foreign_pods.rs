//! Pods of other schedulers, as far as affinity terms concern them.
//!
//! A cluster has thousands of them, and few pods ask about their neighbours. So they are passed on only if some pod
//! does. Those with anti-affinity terms of their own always are.

use std::sync::Arc;

use apportion_policy::cluster::{ForeignPod, Job, PreferredTerm, Task};

use super::namespaces::NamespaceResolver;
use super::object_warnings::ObjectWarnings;
use super::parsed_objects::ParsedPod;
use super::pod_affinity::port;

/// Those of these pods that matter to affinity terms.
pub(crate) fn bystanders(
    there: &[&ParsedPod],
    jobs: &[Arc<Job>],
    namespaces: &mut NamespaceResolver<'_>,
    warnings: &mut ObjectWarnings,
) -> Vec<ForeignPod> {
    let mut tasks = jobs.iter().flat_map(|job| &job.tasks);
    let somebody_asks = tasks.any(asks);
    let running = there.iter().filter_map(|read| {
        let task = read.seen()?;
        let counts = somebody_asks || !task.apart.is_empty();
        Some((read.node()?, task)).filter(|_| counts)
    });
    running
        .map(|(node, task)| {
            let mut apart = task.apart.clone();
            for neighbours in &mut apart {
                namespaces.name(neighbours, warnings);
            }
            ForeignPod {
                node: node.to_owned(),
                labels: task.labels.clone(),
                apart,
            }
        })
        .collect()
}

/// Whether a pod asks about its neighbours. One that only needs a host port does not: the pods that have the port
/// keep it away.
fn asks(task: &Task) -> bool {
    !task.near.is_empty()
        || !task.even.is_empty()
        || task.apart.iter().any(|one| port(one).is_none())
        || task
            .prefers
            .iter()
            .any(|one| matches!(&one.term, PreferredTerm::Near(_) | PreferredTerm::Even(_)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::super::cards::CardInventory;
    use super::super::inventory::ObjectInventory;
    use super::super::snapshot::snapshot;
    use super::*;

    fn pod(name: &str, scheduler: &str, spec: &Value) -> Value {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"name": name, "namespace": "default", "labels": {"app": name}}});
        pod["spec"]["schedulerName"] = scheduler.into();
        pod
    }

    fn required(kind: &str) -> Value {
        let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}});
        json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
    }

    // Not a closure: rustc 1.95 reuses a constant argument of a closure that changes it (rust-lang/rust#155241).
    fn on(node: &str, mut spec: Value) -> Value {
        spec["nodeName"] = node.into();
        spec
    }

    /// The bystanders of one of our pods, and how many anti-affinity terms each has.
    fn around(ours: &Value) -> Vec<(String, usize)> {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        let mut over = pod("over", "another", &on("n", json!({})));
        over["status"]["phase"] = "Succeeded".into();
        let all = vec![
            node,
            pod("ours", "kai-scheduler", ours),
            pod("plain", "another", &on("n", json!({}))),
            pod("dreads", "another", &on("n", required("podAntiAffinity"))),
            pod("elsewhere", "another", &on("nowhere", json!({}))),
            pod("waits", "another", &json!({})),
            over,
        ];
        let mut warnings = ObjectWarnings::default();
        let inventory = ObjectInventory::of(all, &mut warnings);
        let schedulers = ["kai-scheduler".to_owned()];
        let (nobody, nothing) = (BTreeMap::new(), CardInventory::default());
        let now = Duration::ZERO;
        let read = snapshot(
            &inventory,
            &schedulers,
            &nobody,
            &nothing,
            now,
            &mut warnings,
        );
        let found = read.cluster.bystanders.iter();
        found
            .map(|one| (one.labels.get("app").unwrap().clone(), one.apart.len()))
            .collect()
    }

    #[test]
    fn all_are_told_of_where_somebody_asks_who_is_around() {
        let both = [("dreads".to_owned(), 1), ("plain".to_owned(), 0)];
        assert_eq!(around(&required("podAffinity")), both);
        let rule = json!([{"topologyKey": "zone", "labelSelector": {}}]);
        assert_eq!(around(&json!({"topologySpreadConstraints": rule})), both);
    }

    #[test]
    fn only_those_that_want_others_away_count_where_nobody_asks() {
        let one = [("dreads".to_owned(), 1)];
        assert_eq!(around(&json!({})), one);
        let port = json!({"containers": [{"ports": [{"hostPort": 80}]}]});
        assert_eq!(around(&port), one);
    }
}
