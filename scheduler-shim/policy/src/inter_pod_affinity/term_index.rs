//! Finds the searches that match a pod without trying each of them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::cluster::{LabelMap, LabelRequirement, PodAffinityTerm};

/// Searches by a label that matching pods must have.
pub(super) struct TermIndex<'w> {
    wanted: &'w [Cow<'w, PodAffinityTerm>],
    by_label: BTreeMap<(&'w str, &'w str), Vec<usize>>,
    /// Searches that ask for no value of any label.
    others: Vec<usize>,
}

impl<'w> TermIndex<'w> {
    pub(super) fn of(wanted: &'w [Cow<'w, PodAffinityTerm>]) -> Self {
        let mut uses: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for one in wanted.iter().flat_map(|one| values(one)).flatten() {
            *uses.entry(one).or_default() += 1;
        }
        let mut finder = Self {
            wanted,
            by_label: BTreeMap::new(),
            others: Vec::new(),
        };
        for (search, wanted) in wanted.iter().enumerate() {
            // The rarest label filters best: all searches may name one namespace, but few the same application.
            let rarest = values(wanted).min_by_key(|values| {
                values
                    .clone()
                    .map(|one| uses.get(&one).copied().unwrap_or(0))
                    .sum::<usize>()
            });
            match rarest {
                Some(values) => {
                    for one in values {
                        finder.by_label.entry(one).or_default().push(search);
                    }
                }
                None => finder.others.push(search),
            }
        }
        finder
    }

    /// The searches that match a pod with these labels.
    pub(super) fn finding(&self, labels: &LabelMap) -> Vec<usize> {
        let by_label = labels
            .iter()
            .filter_map(|(label, value)| self.by_label.get(&(label.as_str(), value.as_str())));
        let likely = by_label.flatten().chain(&self.others).copied();
        let mut found: Vec<usize> = likely
            .filter(|&search| self.wanted[search].are_like(labels))
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// For each label for which a search lists values: the label with each value.
fn values(
    wanted: &PodAffinityTerm,
) -> impl Iterator<Item = impl Iterator<Item = (&str, &str)> + Clone> {
    wanted
        .labels
        .iter()
        .filter_map(|(label, asked)| match asked {
            LabelRequirement::In(values) => {
                Some(values.iter().map(|value| (label.as_str(), value.as_str())))
            }
            LabelRequirement::NotIn(_)
            | LabelRequirement::Exists
            | LabelRequirement::DoesNotExist => None,
        })
}
