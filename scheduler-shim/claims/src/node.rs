//! Which nodes a selector means.

use std::collections::BTreeMap;

use crate::objects::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

/// The field that a selector may name.
const NAME: &str = "metadata.name";

/// What selectors look at: the name and the labels of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
}

impl NodeView<'_> {
    /// Whether the selector means this node. An empty term means none.
    #[must_use]
    pub fn matches(&self, selector: &NodeSelector) -> bool {
        let mut terms = selector.node_selector_terms.iter();
        terms.any(|term| self.matches_term(term))
    }

    fn matches_term(&self, term: &NodeSelectorTerm) -> bool {
        let is_empty = term.match_expressions.is_empty() && term.match_fields.is_empty();
        let mut labels = term.match_expressions.iter();
        let mut fields = term.match_fields.iter();
        !is_empty
            && labels.all(|one| holds(one, self.labels.get(&one.key).map(String::as_str)))
            && fields.all(|one| holds(one, Some(self.name).filter(|_| one.key == NAME)))
    }
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let is_listed = || value.is_some_and(|value| requirement.values.iter().any(|one| one == value));
    let compared = || {
        let bound: i64 = requirement.values.first()?.parse().ok()?;
        Some(value?.parse::<i64>().ok()?.cmp(&bound))
    };
    match requirement.operator.as_str() {
        "In" => is_listed(),
        "NotIn" => !is_listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => compared().is_some_and(std::cmp::Ordering::is_lt),
        _ => false,
    }
}

/// Whether devices that name a node, all nodes or a selector are within reach of this node.
pub(crate) fn reaches(
    node: &NodeView<'_>,
    name: Option<&str>,
    all: bool,
    selector: Option<&NodeSelector>,
) -> bool {
    match name.filter(|name| !name.is_empty()) {
        Some(name) => name == node.name,
        None => all || selector.is_some_and(|selector| node.matches(selector)),
    }
}
