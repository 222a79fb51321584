//! What must hold for several devices of a claim together.
//!
//! A device is added before it is allocated and removed when another is tried. A constraint that fails never holds
//! again with more devices, so the search can stop there.

use crate::attribute::AttributeValues;
use crate::objects::{Device, DeviceConstraint};

/// A constraint, and the devices that were added to it.
#[derive(Debug)]
pub(crate) struct ConstraintState<'a> {
    requests: &'a [String],
    rule: ConstraintRule<'a>,
    /// For the same value: what all devices so far share, after each of them. For different values: those of each.
    values: Vec<AttributeValues>,
}

#[derive(Debug)]
enum ConstraintRule<'a> {
    SameValue(&'a str),
    DifferentValues(&'a str),
}

/// The request that a device is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestName<'a> {
    pub(crate) request: &'a str,
    pub(crate) alternative: Option<&'a str>,
}

impl RequestName<'_> {
    /// Whether a list names the request, or this alternative of it.
    pub(crate) fn is_in(&self, names: &[String]) -> bool {
        let full = self.to_string();
        names
            .iter()
            .any(|name| *name == self.request || *name == full)
    }
}

impl std::fmt::Display for RequestName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.alternative {
            Some(alternative) => write!(f, "{}/{alternative}", self.request),
            None => f.write_str(self.request),
        }
    }
}

impl<'a> ConstraintState<'a> {
    /// A constraint without devices, or nothing if its kind is unknown.
    pub(crate) fn new(constraint: &'a DeviceConstraint) -> Option<Self> {
        let same = constraint.match_attribute.as_deref();
        let different = constraint.distinct_attribute.as_deref();
        let rule = match (same, different) {
            (Some(name), _) => ConstraintRule::SameValue(name),
            (None, Some(name)) => ConstraintRule::DifferentValues(name),
            (None, None) => return None,
        };
        Some(Self {
            requests: &constraint.requests,
            rule,
            values: Vec::new(),
        })
    }

    fn is_about(&self, request: RequestName<'_>) -> bool {
        self.requests.is_empty() || request.is_in(self.requests)
    }

    /// Adds a device, if the constraint holds with it.
    pub(crate) fn add(&mut self, request: RequestName<'_>, driver: &str, device: &Device) -> bool {
        if !self.is_about(request) {
            return true;
        }
        let (ConstraintRule::SameValue(name) | ConstraintRule::DifferentValues(name)) = self.rule;
        let attribute = device.attribute(driver, name);
        let Some(values) = attribute.map(|found| &found.values) else {
            return false;
        };
        if !values.is_comparable() {
            return false;
        }
        let common = match (&self.rule, self.values.last()) {
            (ConstraintRule::SameValue(_), Some(shared)) => shared.shared_with(values),
            (ConstraintRule::SameValue(_), None) => Some(values.clone()),
            (ConstraintRule::DifferentValues(_), _) => {
                let mut taken = self.values.iter();
                let is_taken = taken.any(|taken| taken.shared_with(values).is_some());
                (!is_taken).then(|| values.clone())
            }
        };
        let is_kept = common.is_some();
        self.values.extend(common);
        is_kept
    }

    /// Removes the device that was added last.
    pub(crate) fn remove(&mut self, request: RequestName<'_>) {
        if self.is_about(request) {
            self.values.pop();
        }
    }
}
