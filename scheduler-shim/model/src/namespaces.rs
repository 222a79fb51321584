//! Resolves namespace selectors of affinity terms to names.
//!
//! A namespace whose object is missing has only the label with its name, which Kubernetes gives to each.

use std::collections::{BTreeMap, BTreeSet};

use apportion_policy::cluster::{LabelRequirement, PodAffinityTerm, PreferredTerm, Task};

use super::inventory::ObjectInventory;
use super::labels::texts;
use super::object_kinds::NAMESPACE as KIND;
use super::object_warnings::{ObjectWarnings, called};
use super::pod_affinity::{NAMESPACE, OF_NAMESPACE};

/// The label with a namespace's name.
const NAME: &str = "kubernetes.io/metadata.name";

type Labels = BTreeMap<String, String>;

/// The namespaces, and which ones each selector chooses.
#[derive(Debug)]
pub(crate) struct NamespaceResolver<'a> {
    inventory: &'a ObjectInventory,
    /// The labels of all namespaces, once they are needed.
    all: Option<BTreeMap<String, Labels>>,
    chosen: BTreeMap<Vec<(String, LabelRequirement)>, BTreeSet<String>>,
}

impl<'a> NamespaceResolver<'a> {
    pub(crate) const fn of(inventory: &'a ObjectInventory) -> Self {
        Self {
            inventory,
            all: None,
            chosen: BTreeMap::new(),
        }
    }

    /// Resolves all terms of a task.
    pub(crate) fn name_all(&mut self, task: &mut Task, warnings: &mut ObjectWarnings) {
        let Task {
            near,
            apart,
            even,
            prefers,
            ..
        } = task;
        let wishes = prefers.iter_mut().filter_map(|one| match &mut one.term {
            PreferredTerm::Near(like) => Some(like),
            PreferredTerm::Even(spread) => Some(&mut spread.like),
            PreferredTerm::Label(_) => None,
        });
        let spreads = even.iter_mut().map(|spread| &mut spread.like);
        for neighbours in near.iter_mut().chain(apart).chain(spreads).chain(wishes) {
            self.name(neighbours, warnings);
        }
    }

    pub(crate) fn name(&mut self, neighbours: &mut PodAffinityTerm, warnings: &mut ObjectWarnings) {
        let labels = &mut neighbours.labels;
        let of_namespace =
            |(label, _): &(String, LabelRequirement)| label.starts_with(OF_NAMESPACE);
        if !labels.iter().any(of_namespace) {
            return;
        }
        let (asked, mut rest): (Vec<_>, Vec<_>) = labels.drain(..).partition(of_namespace);
        let mut chosen = self.chosen(asked, warnings);
        for (label, requirement) in &rest {
            if let (NAMESPACE, LabelRequirement::In(named)) = (label.as_str(), requirement) {
                chosen.extend(named.iter().cloned());
            }
        }
        rest.retain(|(label, _)| label != NAMESPACE);
        rest.push((NAMESPACE.to_owned(), LabelRequirement::In(chosen)));
        rest.sort();
        *labels = rest;
    }

    /// The names of the namespaces whose labels match.
    fn chosen(
        &mut self,
        asked: Vec<(String, LabelRequirement)>,
        warnings: &mut ObjectWarnings,
    ) -> BTreeSet<String> {
        if let Some(known) = self.chosen.get(&asked) {
            return known.clone();
        }
        let all = (self.all).get_or_insert_with(|| labels(self.inventory, warnings));
        let chosen = all.iter().filter(|(_, has)| {
            asked.iter().all(|(label, requirement)| {
                let label = label.strip_prefix(OF_NAMESPACE).unwrap_or(label);
                requirement.holds(has.get(label).map(String::as_str))
            })
        });
        let chosen: BTreeSet<String> = chosen.map(|(name, _)| name.clone()).collect();
        self.chosen.insert(asked, chosen.clone());
        chosen
    }
}

/// The labels of each namespace that is given, or that a pod is in.
fn labels(inventory: &ObjectInventory, warnings: &mut ObjectWarnings) -> BTreeMap<String, Labels> {
    let given = inventory.all(KIND.1);
    let mut all: BTreeMap<String, Labels> = given
        .map(|one| {
            (
                one.name().to_owned(),
                texts(&one.json()["metadata"]["labels"]),
            )
        })
        .collect();
    for (pod, _) in inventory.pods() {
        if !all.contains_key(pod.namespace()) {
            all.insert(pod.namespace().to_owned(), Labels::new());
            warnings.add(
                called(KIND.1, "", pod.namespace()),
                "pods select namespaces by labels, but this namespace is not given; only its name label is assumed",
            );
        }
    }
    for (name, labels) in &mut all {
        labels.insert(NAME.to_owned(), name.clone());
    }
    all
}
