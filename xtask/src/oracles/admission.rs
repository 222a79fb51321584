//! Admission of pods, queues, pod groups and topologies, with the answers and changes of KAI's webhooks.
//!
//! The component of a case is a rule of the admission crate. Its answer and its changes are compared with the expected
//! ones (docs/development/kai-cases.md).

use anyhow::{Result, bail};
use apportion_admission::pod_group::{self, ReviewedPodGroup};
use apportion_admission::queue::{self, ReviewedQueue};
use apportion_admission::topology::{self, ReviewedTopology};
use apportion_admission::{
    Pod, devices, fraction_container, is_shared, limit_memory, request, set_runtime_class,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::differs;

mod checks;

const ENTROPY: u64 = 0x1234_5678_9abc_def0;

/// The answer of a rule.
#[derive(Default)]
struct RuleAnswer {
    error: Option<String>,
    warnings: Vec<String>,
}

impl RuleAnswer {
    fn of<E: ToString>(result: std::result::Result<(), E>) -> Self {
        Self {
            error: result.err().map(|error| error.to_string()),
            warnings: Vec::new(),
        }
    }
}

pub(super) fn ask(case: &Value) -> Result<Option<String>> {
    let component = case["component"].as_str().unwrap_or_default();
    let operation = case["operation"].as_str().unwrap_or_default();
    let expected = &case["expected"];
    match (component, operation) {
        ("podgroup", "validate") => return findings(case),
        (_, "mutate") => {
            let mut pod = Pod::read(&case["object"])?;
            let result = mutate(component, &mut pod, &case["settings"])?;
            let wrong = judge(&RuleAnswer::of(result), expected);
            return Ok(wrong.or_else(|| checks::all(&pod, expected)));
        }
        _ => {}
    }
    let answer = match component {
        "gpu_request" | "gpu_sharing" | "device_access" | "hamicore" | "runtime_class" => {
            RuleAnswer::of(validate(
                component,
                &Pod::read(&case["object"])?,
                &case["settings"],
            )?)
        }
        "queue" => queue(operation, case)?,
        "topology" if operation == "delete" => RuleAnswer::default(),
        "topology" => RuleAnswer::of(topology::check(&ReviewedTopology::deserialize(
            &case["object"],
        )?)),
        "podgroup" => {
            let group = ReviewedPodGroup::deserialize(&case["object"])?;
            let verdict = pod_group::check(&group, operation == "update");
            RuleAnswer {
                error: verdict.refusal,
                warnings: verdict.warnings,
            }
        }
        other => bail!("unknown component {other}"),
    };
    Ok(judge(&answer, expected))
}

type RuleOutcome = std::result::Result<(), apportion_admission::PodRefusal>;

fn validate(component: &str, pod: &Pod, settings: &Value) -> Result<RuleOutcome> {
    Ok(match component {
        "gpu_request" => request::check(pod),
        "gpu_sharing" => apportion_admission::validate(pod, &switched(settings)),
        "device_access" => devices::check(pod),
        "hamicore" | "runtime_class" => Ok(()),
        other => bail!("unknown component {other}"),
    })
}

fn mutate(component: &str, pod: &mut Pod, settings: &Value) -> Result<RuleOutcome> {
    Ok(match component {
        "gpu_sharing" => apportion_admission::mutate(pod, &switched(settings), ENTROPY),
        "device_access" => devices::block(pod),
        "hamicore" if is_shared(pod) && !pod.spec.containers.is_empty() => {
            fraction_container(pod).and_then(|place| limit_memory(pod, place))
        }
        "hamicore" => Ok(()),
        "runtime_class" => {
            let class = settings["gpu_fraction_runtime_class_name"].as_str();
            if let Some(class) = class.filter(|class| !class.is_empty()) {
                set_runtime_class(pod, class);
            }
            Ok(())
        }
        other => bail!("unknown component {other}"),
    })
}

/// A cluster where KAI binds, with only the settings that the case has.
fn switched(settings: &Value) -> apportion_admission::AdmissionSettings {
    apportion_admission::AdmissionSettings {
        sharing: settings["gpu_sharing_enabled"]
            .as_bool()
            .unwrap_or_default(),
        delivery: apportion_admission::GpuDelivery::ConfigMaps {
            with_memory_limit: false,
        },
        block_visible_devices: false,
        runtime_class: None,
        strict: None,
        count_shares: false,
        request_below_limit: apportion_admission::RequestBelowLimit::default(),
    }
}

fn queue(operation: &str, case: &Value) -> Result<RuleAnswer> {
    let queue = ReviewedQueue::deserialize(&case["object"])?;
    if operation == "delete" {
        return Ok(RuleAnswer::of(queue::check_deletion(&queue)));
    }
    let old = &case["old_object"];
    let old = (!old.is_null())
        .then(|| ReviewedQueue::deserialize(old))
        .transpose()?;
    let verdict = queue::check(old.as_ref(), &queue, &|_: &str| None, false);
    Ok(RuleAnswer {
        error: verdict.refusal.map(|refusal| refusal.to_string()),
        warnings: verdict.warnings,
    })
}

fn findings(case: &Value) -> Result<Option<String>> {
    let group = ReviewedPodGroup::deserialize(&case["object"])?;
    let found = pod_group::find(&group.spec);
    let shown = |mistake: &pod_group::PodGroupError| json!({"type": mistake.kind(), "text": mistake.to_string()});
    let answer = json!({
        "structural_error": found.structure.as_ref().map(shown),
        "min_definition_errors": found.minimums.iter().map(shown).collect::<Vec<_>>(),
    });
    Ok(differs(&answer, &case["expected"]))
}

/// What is wrong with the answer of a rule.
fn judge(answer: &RuleAnswer, expected: &Value) -> Option<String> {
    let allowed = expected["allowed"].as_bool().unwrap_or(true);
    if allowed != answer.error.is_none() {
        return Some(format!(
            "allowed should be {allowed}, said {:?}",
            answer.error
        ));
    }
    let error = answer.error.as_deref().unwrap_or_default();
    if let Some(text) = expected["error"].as_str().filter(|text| *text != error) {
        return Some(format!("said {error:?}, not {text:?}"));
    }
    for part in texts(&expected["error_contains"]) {
        if !error.contains(part) {
            return Some(format!("{error:?} does not contain {part:?}"));
        }
    }
    match &expected["warnings"] {
        Value::Array(_) if !answer.warnings.is_empty() => {
            Some(format!("warned of {:?}", answer.warnings))
        }
        wanted => {
            let missing = texts(&wanted["contains"]).find(|part| {
                let mut warnings = answer.warnings.iter();
                !warnings.any(|warning| warning.contains(part))
            });
            missing.map(|part| format!("no warning of {:?} contains {part:?}", answer.warnings))
        }
    }
}

/// The strings of a list; none if it is absent.
fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(expected: Value) -> Value {
        json!({"component": "gpu_request", "operation": "validate", "expected": expected,
            "object": {"metadata": {"annotations": {"gpu-memory": "8Gi"}}, "spec": {"containers": [{}]}}})
    }

    #[test]
    fn passes_what_is_so_and_nothing_else() {
        let said = "gpu-memory annotation value must be a positive integer greater than 0";
        for (expected, passes) in [
            (json!({"allowed": false, "error": said}), true),
            (json!({"allowed": false, "error": "another"}), false),
            (json!({"allowed": true, "error": null}), false),
            (
                json!({"allowed": false, "error_contains": ["positive", "zero"]}),
                false,
            ),
            (
                json!({"allowed": false, "warnings": {"contains": ["positive"]}}),
                false,
            ),
        ] {
            let wrong = ask(&case(expected.clone())).expect("it can be asked");
            assert_eq!(wrong.is_none(), passes, "{expected}: {wrong:?}");
        }
    }

    #[test]
    fn a_component_that_nobody_knows_does_not_pass() {
        assert!(ask(&json!({"component": "else", "operation": "validate"})).is_err());
        assert!(ask(&json!({"component": "else", "operation": "mutate"})).is_err());
    }
}
