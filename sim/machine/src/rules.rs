//! Faults and latencies on request: rules that name a function and say what happens to its calls.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What happens to calls of one function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    /// The function by its exported name, e.g. `cuMemAlloc_v2`.
    pub function: String,
    /// Only the n-th call from now on, counted from 1 over all processes. None for every call.
    #[serde(default)]
    pub nth: Option<u64>,
    /// What happens.
    pub effect: FaultEffect,
}

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultEffect {
    /// It fails with this `CUresult` and changes nothing.
    Error(i32),
    /// It takes this many microseconds longer.
    Microseconds(u64),
}

/// What the rules say about one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallAdmission {
    /// How long the call is held back.
    pub delay: Duration,
    /// The `CUresult` that the call returns instead of doing its work.
    pub error: Option<i32>,
}

/// The active rules, each with the number of calls that it has seen.
#[derive(Debug, Default)]
pub(crate) struct FaultRules(Vec<(FaultRule, u64)>);

impl FaultRules {
    pub(crate) fn add(&mut self, rule: FaultRule) {
        self.0.push((rule, 0));
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// The functions that any rule names.
    pub(crate) fn functions(&self) -> Vec<String> {
        self.0
            .iter()
            .map(|(rule, _)| rule.function.clone())
            .collect()
    }

    /// Counts a call of `function` and says what happens to it.
    pub(crate) fn admit(&mut self, function: &str) -> CallAdmission {
        let mut admission = CallAdmission::default();
        for (rule, calls) in self
            .0
            .iter_mut()
            .filter(|(rule, _)| rule.function == function)
        {
            *calls += 1;
            if rule.nth.is_some_and(|nth| nth != *calls) {
                continue;
            }
            match rule.effect {
                FaultEffect::Error(code) => admission.error = Some(code),
                FaultEffect::Microseconds(more) => admission.delay += Duration::from_micros(more),
            }
        }
        admission
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_nth_call_of_the_named_function_fails() {
        let mut rules = FaultRules::default();
        rules.add(FaultRule {
            function: "cuInit".into(),
            nth: Some(2),
            effect: FaultEffect::Error(3),
        });
        let errors =
            ["cuInit", "cuMemFree_v2", "cuInit", "cuInit"].map(|name| rules.admit(name).error);
        assert_eq!(errors, [None, None, Some(3), None]);
    }

    #[test]
    fn latencies_add_up() {
        let mut rules = FaultRules::default();
        for micros in [5, 7] {
            let effect = FaultEffect::Microseconds(micros);
            rules.add(FaultRule {
                function: "cuInit".into(),
                nth: None,
                effect,
            });
        }
        assert_eq!(rules.admit("cuInit").delay, Duration::from_micros(12));
    }
}
