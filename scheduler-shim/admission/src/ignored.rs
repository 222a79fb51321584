//! What the scheduler ignores in an object that is admitted.
//!
//! KAI admits pods and pod groups with durations that it cannot parse, and treats them as absent. So do we, but we warn
//! the creator.

use apportion_abi::names::{ANNOTATION_DELAY, ANNOTATION_GRACE};
use apportion_kubernetes::{not_a_duration, parse_duration};
use serde_json::Value;

/// A warning for each duration of a pod or pod group that cannot be parsed.
#[must_use]
pub fn durations(object: &Value) -> Vec<String> {
    let annotations = &object["metadata"]["annotations"];
    let spec = &object["spec"];
    // A negative grace period never ends.
    let fields = [
        ("preemptionDelay", &spec["preemptionDelay"], false),
        ("stalenessGracePeriod", &spec["stalenessGracePeriod"], true),
        (ANNOTATION_DELAY, &annotations[ANNOTATION_DELAY], false),
        (ANNOTATION_GRACE, &annotations[ANNOTATION_GRACE], true),
    ];
    let wrong = fields
        .into_iter()
        .filter_map(|(field, value, may_be_negative)| {
            let text = value.as_str().filter(|text| !text.is_empty())?;
            let is_forever = may_be_negative && text.starts_with('-');
            let is_wrong = !is_forever && parse_duration(text).is_none();
            is_wrong.then(|| format!("{field} {}; it is ignored", not_a_duration(text)))
        });
    wrong.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_duration_that_cannot_be_read_is_said() {
        let group = json!({
            "metadata": {"annotations": {(ANNOTATION_DELAY): "1d", (ANNOTATION_GRACE): "-1"}},
            "spec": {"preemptionDelay": "soon", "stalenessGracePeriod": "5m"},
        });
        let expected = [
            "preemptionDelay \"soon\" is not a duration such as 90s, 30m or 12h; it is ignored"
                .to_owned(),
            format!(
                "{ANNOTATION_DELAY} \"1d\" is not a duration such as 90s, 30m or 12h (write 24h0m0s); it is ignored"
            ),
        ];
        assert_eq!(durations(&group), expected);
        assert_eq!(durations(&json!({})), [""; 0]);
    }
}
