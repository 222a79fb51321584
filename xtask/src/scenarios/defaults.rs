//! The defaults of a scenario.

use super::format::ScenarioSettings;

pub(super) fn settings() -> ScenarioSettings {
    ScenarioSettings {
        plugins: None,
        predicates: yes(),
        dra_feature_gate: false,
        node_placement: None,
        gpu_placement: None,
        staleness_grace_period_s: 0.0,
        max_consolidation_preemptees: no_limit(),
        allow_consolidating_reclaim: yes(),
        as_kai: Vec::new(),
    }
}

pub(super) fn yes() -> bool {
    true
}

pub(super) fn no_limit() -> i64 {
    -1
}

pub(super) fn card() -> u64 {
    100
}

pub(super) fn cpu() -> f64 {
    20_000_000.0
}

pub(super) fn memory() -> f64 {
    20e9
}

pub(super) fn pods() -> i64 {
    110
}

pub(super) fn priority() -> i32 {
    100
}

pub(super) fn set() -> String {
    "default".to_owned()
}

pub(super) fn millis() -> f64 {
    1000.0
}

pub(super) fn bytes() -> f64 {
    1e9
}

pub(super) fn unlimited() -> f64 {
    -1.0
}

pub(super) fn one() -> f64 {
    1.0
}

pub(super) fn any_number() -> usize {
    usize::MAX
}
