//! What the scheduler will ignore of an object that is taken all the same.
//!
//! KAI takes pods and pod groups whose durations it cannot read, and goes on as if they were not there. So do we, but
//! whoever creates the object is warned.

use apportion_abi::names::{ANNOTATION_DELAY, ANNOTATION_GRACE};
use apportion_groups::{not_a_duration, parse_duration};
use serde_json::Value;

/// The durations of a pod or a pod group that cannot be read, one sentence each.
#[must_use]
pub fn durations(object: &Value) -> Vec<String> {
    let annotations = &object["metadata"]["annotations"];
    let spec = &object["spec"];
    // A grace that is below zero never ends.
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
