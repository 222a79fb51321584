//! What a pod says about the pods around it: near whom and apart from whom it has to be, or would rather be, and
//! among whom it is to be spread.
//!
//! Selectors are read whole, as Kubernetes reads them. Whose labels they are about is said by pseudo-labels that no
//! pod can have, because of the space: the namespace of a pod is one, and each port that it takes of its host. A
//! term that chooses namespaces by their labels asks for more pseudo-labels, until somebody who knows the namespaces
//! puts their names in that place (`namespaces`); what is kept of a pod thus depends on the pod alone.
//!
//! Where pods are spread, only nodes count that admit the pod; that is Kubernetes' reading of
//! `nodeAffinityPolicy: Honor` and `nodeTaintsPolicy: Honor`, and nothing else is offered.

use std::collections::BTreeSet;

use apportion_groups::ObjectView;
use apportion_policy::cluster::{
    LabelRequirement, PodAffinityTerm, PreferredTerm, SpreadConstraint, Task, WeightedPreference,
};
use serde_json::Value;

use super::inventory::called;
use super::nodes::{HOSTNAME, texts};
use super::object_warnings::ObjectWarnings;
use super::occupancy;
use super::selector;

/// The namespace of a pod.
pub(crate) const NAMESPACE: &str = " namespace";
/// What precedes the label of a namespace where its pods are chosen by that.
pub(crate) const OF_NAMESPACE: &str = " namespace ";
/// What precedes a port of a host.
const PORT: &str = " port ";
/// How much it counts that pods are spread evenly where that is only wished for: as the dearest affinity.
const EVENLY: i64 = 100;

/// Enters what a pod says about other pods, and what others may say about it.
pub(crate) fn enter(pod: ObjectView<'_>, task: &mut Task, remarks: &mut ObjectWarnings) {
    let mut reader = AffinityReader { pod, remarks };
    task.near = reader.required("podAffinity");
    task.apart = reader.required("podAntiAffinity");
    task.prefers = reader.preferred("podAffinity", 1);
    task.prefers.extend(reader.preferred("podAntiAffinity", -1));
    reader.spreads(task);
    task.labels = texts(&pod.json()["metadata"]["labels"]);
    task.labels
        .insert(NAMESPACE.to_owned(), pod.namespace().to_owned());
    // Two pods that take one port of their host are kept apart.
    for port in occupancy::ports(pod) {
        let label = [(format!("{PORT}{port}"), String::new())].into();
        task.apart.push(PodAffinityTerm::with(&label, HOSTNAME));
        task.labels.extend(label);
    }
}

/// The port of the host that other pods are to leave, if that is what is asked of them.
pub(crate) fn port(neighbours: &PodAffinityTerm) -> Option<&str> {
    let mut labels = neighbours.labels.iter();
    labels.find_map(|(label, _)| label.strip_prefix(PORT))
}

/// Reads the terms of one pod.
struct AffinityReader<'a> {
    pod: ObjectView<'a>,
    remarks: &'a mut ObjectWarnings,
}

impl AffinityReader<'_> {
    fn required(&mut self, kind: &str) -> Vec<PodAffinityTerm> {
        let terms = terms(self.pod, kind, "required").filter_map(|term| self.term(kind, term));
        terms.collect()
    }

    fn preferred(&mut self, kind: &str, sign: i64) -> Vec<WeightedPreference> {
        let terms = terms(self.pod, kind, "preferred").filter_map(|term| {
            Some(WeightedPreference {
                wish: PreferredTerm::Near(self.term(kind, &term["podAffinityTerm"])?),
                weight: sign * term["weight"].as_i64()?,
            })
        });
        terms.collect()
    }

    /// The rules about even spreading: those that have to hold, and those that are only wishes.
    fn spreads(&mut self, task: &mut Task) {
        const KIND: &str = "topologySpreadConstraints";
        for rule in list(&self.pod.json()["spec"][KIND]) {
            let Some(like) = self.term(KIND, rule) else {
                continue;
            };
            let policies = ["nodeAffinityPolicy", "nodeTaintsPolicy"];
            if policies.iter().any(|policy| rule[policy] == "Ignore") {
                self.note("its topologySpreadConstraints set nodeAffinityPolicy or nodeTaintsPolicy to Ignore; Honor is used");
            }
            let spread = SpreadConstraint {
                like,
                skew: rule["maxSkew"].as_u64().unwrap_or(1),
                least_domains: rule["minDomains"].as_u64().unwrap_or(0),
            };
            match rule["whenUnsatisfiable"].as_str() {
                Some("ScheduleAnyway") => task.prefers.push(WeightedPreference {
                    wish: PreferredTerm::Even(spread),
                    weight: EVENLY,
                }),
                Some(_) | None => task.even.push(spread),
            }
        }
    }

    /// One term; none where it makes no sense, which is noted.
    fn term(&mut self, kind: &str, term: &Value) -> Option<PodAffinityTerm> {
        let read = neighbours(self.pod, term);
        let note = |why| self.note(&format!("one term of its {kind} is ignored: {why}"));
        read.map_err(note).ok()
    }

    fn note(&mut self, message: &str) {
        let object = called("Pod", self.pod.namespace(), self.pod.name());
        self.remarks.note(object, message);
    }
}

fn terms<'a>(pod: ObjectView<'a>, kind: &str, how: &str) -> impl Iterator<Item = &'a Value> {
    let affinity = &pod.json()["spec"]["affinity"][kind];
    list(&affinity[format!("{how}DuringSchedulingIgnoredDuringExecution")])
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The pods that a term chooses; the same in one order, however it is written.
fn neighbours(pod: ObjectView<'_>, term: &Value) -> Result<PodAffinityTerm, String> {
    let domain = term["topologyKey"].as_str();
    let domain = domain.ok_or("it has no topologyKey")?.to_owned();
    let chosen = &term["labelSelector"];
    // A selector that is not there chooses nothing, unlike an empty one.
    let mut labels = match chosen.is_object() {
        false => vec![(NAMESPACE.to_owned(), LabelRequirement::In(BTreeSet::new()))],
        true => {
            let mut labels = selector::requirements(chosen)?;
            labels.extend(alike(pod, term));
            labels.extend(namespaces(pod, term)?);
            labels
        }
    };
    labels.sort();
    labels.dedup();
    Ok(PodAffinityTerm { labels, domain })
}

/// What is asked of labels by the pod's own values of them. API servers write some of it into the selector as well.
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

/// What is asked of the namespace of pods: nothing, that it is one of those that are named, or has labels.
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
        let of_namespace = |(label, asked)| (format!("{OF_NAMESPACE}{label}"), asked);
        asked.extend(labels.into_iter().map(of_namespace));
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
