//! A pod's rules about other pods: required and preferred affinity and anti-affinity, and topology spread.
//!
//! Selectors are read completely, as Kubernetes reads them. Namespaces and host ports become pseudo-labels of pods.
//! No pod can have these as real labels, because of the space. A term with a namespace selector uses further
//! pseudo-labels until `namespaces` replaces them by names, so what is kept of a pod depends on the pod alone.
//!
//! For topology spread only nodes count that admit the pod. That is Kubernetes' `nodeAffinityPolicy: Honor` and
//! `nodeTaintsPolicy: Honor`, and nothing else is offered.

use std::collections::BTreeSet;
use std::sync::Arc;

use apportion_groups::ObjectView;
use apportion_policy::cluster::{
    LabelRequirement, PodAffinityTerm, PreferredTerm, SpreadConstraint, Task, WeightedPreference,
};
use serde_json::Value;

use super::labels::{HOSTNAME, texts};
use super::object_warnings::{ObjectWarnings, called};
use super::{pod_occupancy, selector};

/// The pseudo-label with a pod's namespace.
pub const NAMESPACE: &str = " namespace";
/// Prefix of pseudo-labels for the labels of a pod's namespace.
pub const OF_NAMESPACE: &str = " namespace ";
/// Prefix of pseudo-labels for host ports.
const PORT: &str = " port ";
/// The weight of a preferred topology spread: as much as an affinity can have.
const EVENLY: i64 = 100;

/// Adds a pod's rules about other pods, and the labels by which others select it.
pub fn enter(pod: ObjectView<'_>, task: &mut Task, warnings: &mut ObjectWarnings) {
    let mut reader = AffinityReader { pod, warnings };
    task.near = reader.required("podAffinity");
    task.apart = reader.required("podAntiAffinity");
    task.prefers = reader.preferred("podAffinity", 1);
    task.prefers.extend(reader.preferred("podAntiAffinity", -1));
    reader.spreads(task);
    let mut labels = texts(&pod.json()["metadata"]["labels"]);
    labels.insert(NAMESPACE.to_owned(), pod.namespace().to_owned());
    // Anti-affinity keeps pods with the same host port apart.
    for port in pod_occupancy::ports(pod) {
        let (label, value) = (format!("{PORT}{port}"), String::new());
        let term = PodAffinityTerm::with([(&label, &value)], HOSTNAME);
        task.apart.push(term);
        labels.insert(label, value);
    }
    task.labels = Arc::new(labels.into_iter().collect());
}

/// The host port that a term is about, if it is about one.
pub fn port(neighbours: &PodAffinityTerm) -> Option<&str> {
    let mut labels = neighbours.labels.iter();
    labels.find_map(|(label, _)| label.strip_prefix(PORT))
}

/// Reads the terms of one pod.
struct AffinityReader<'a> {
    pod: ObjectView<'a>,
    warnings: &'a mut ObjectWarnings,
}

impl AffinityReader<'_> {
    fn required(&mut self, kind: &str) -> Vec<PodAffinityTerm> {
        let terms = terms(self.pod, kind, "required").filter_map(|term| self.term(kind, term));
        terms.collect()
    }

    fn preferred(&mut self, kind: &str, sign: i64) -> Vec<WeightedPreference> {
        let terms = terms(self.pod, kind, "preferred").filter_map(|term| {
            Some(WeightedPreference {
                term: PreferredTerm::Near(self.term(kind, &term["podAffinityTerm"])?),
                weight: sign * term["weight"].as_i64()?,
            })
        });
        terms.collect()
    }

    /// The topology spread constraints, required and preferred ones.
    fn spreads(&mut self, task: &mut Task) {
        const KIND: &str = "topologySpreadConstraints";
        for rule in list(&self.pod.json()["spec"][KIND]) {
            let Some(like) = self.term(KIND, rule) else {
                continue;
            };
            let policies = ["nodeAffinityPolicy", "nodeTaintsPolicy"];
            if policies.iter().any(|policy| rule[policy] == "Ignore") {
                self.warn("its topologySpreadConstraints set nodeAffinityPolicy or nodeTaintsPolicy to Ignore; Honor is used");
            }
            let spread = SpreadConstraint {
                like,
                skew: rule["maxSkew"].as_u64().unwrap_or(1),
                least_domains: rule["minDomains"].as_u64().unwrap_or(0),
            };
            match rule["whenUnsatisfiable"].as_str() {
                Some("ScheduleAnyway") => task.prefers.push(WeightedPreference {
                    term: PreferredTerm::Even(spread),
                    weight: EVENLY,
                }),
                Some(_) | None => task.even.push(spread),
            }
        }
    }

    /// One term; `None` if it is invalid, with a warning.
    fn term(&mut self, kind: &str, term: &Value) -> Option<PodAffinityTerm> {
        let read = neighbours(self.pod, term);
        read.map_err(|why| self.warn(&format!("one term of its {kind} is ignored: {why}")))
            .ok()
    }

    fn warn(&mut self, message: &str) {
        let object = called("Pod", self.pod.namespace(), self.pod.name());
        self.warnings.add(object, message);
    }
}

fn terms<'a>(pod: ObjectView<'a>, kind: &str, how: &str) -> impl Iterator<Item = &'a Value> {
    let affinity = &pod.json()["spec"]["affinity"][kind];
    list(&affinity[format!("{how}DuringSchedulingIgnoredDuringExecution")])
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The pods that a term selects, in one order however it is written.
fn neighbours(pod: ObjectView<'_>, term: &Value) -> Result<PodAffinityTerm, String> {
    let domain = term["topologyKey"]
        .as_str()
        .ok_or("it has no topologyKey")?
        .to_owned();
    let chosen = &term["labelSelector"];
    // A missing selector selects nothing, unlike an empty one.
    let mut labels = if chosen.is_object() {
        let mut labels = selector::requirements(chosen)?;
        labels.extend(alike(pod, term));
        labels.extend(namespaces(pod, term)?);
        labels
    } else {
        vec![(NAMESPACE.to_owned(), LabelRequirement::In(BTreeSet::new()))]
    };
    labels.sort();
    labels.dedup();
    Ok(PodAffinityTerm { labels, domain })
}

/// Requirements that follow from the pod's own label values. API servers write some of them into the selector as
/// well.
fn alike<'a>(
    pod: ObjectView<'a>,
    term: &'a Value,
) -> impl Iterator<Item = (String, LabelRequirement)> + use<'a> {
    let of = move |field: &str, ask: fn(BTreeSet<String>) -> LabelRequirement| {
        let keys = list(&term[field]).filter_map(Value::as_str);
        keys.filter_map(move |key| {
            let own = pod.label(key)?.to_owned();
            Some((key.to_owned(), ask([own].into())))
        })
    };
    of("matchLabelKeys", LabelRequirement::In)
        .chain(of("mismatchLabelKeys", LabelRequirement::NotIn))
}

/// Requirements about the namespace: none, one of several names, or labels.
fn namespaces(
    pod: ObjectView<'_>,
    term: &Value,
) -> Result<Vec<(String, LabelRequirement)>, String> {
    let names = list(&term["namespaces"]).filter_map(Value::as_str);
    let mut names: BTreeSet<String> = names.map(str::to_owned).collect();
    let chosen = &term["namespaceSelector"];
    let mut asked = Vec::new();
    if chosen.is_object() {
        let labels = selector::requirements(chosen)?;
        if labels.is_empty() {
            return Ok(asked);
        }
        asked.extend(
            labels
                .into_iter()
                .map(|(label, asked)| (format!("{OF_NAMESPACE}{label}"), asked)),
        );
    } else if names.is_empty() {
        names.insert(pod.namespace().to_owned());
    }
    if !names.is_empty() {
        asked.push((NAMESPACE.to_owned(), LabelRequirement::In(names)));
    }
    Ok(asked)
}

#[cfg(test)]
mod tests;
