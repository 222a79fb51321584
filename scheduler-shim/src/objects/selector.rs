//! Label selectors, as Kubernetes reads them: all that is asked must hold, and nothing asked holds for all.

use apportion_groups::Object;
use serde_json::Value;

/// Whether a selector chooses an object; a selector that is not there chooses nothing.
pub(crate) fn matches(selector: &Value, object: Object<'_>) -> bool {
    if !selector.is_object() {
        return false;
    }
    let mut labels = selector["matchLabels"].as_object().into_iter().flatten();
    let mut expressions = selector["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten();
    let found = |key: &str| object.json()["metadata"]["labels"][key].as_str();
    labels.all(|(key, value)| found(key) == value.as_str())
        && expressions.all(|one| {
            let found = found(one["key"].as_str().unwrap_or_default());
            let mut values = one["values"].as_array().into_iter().flatten();
            let is_in = found.is_some() && values.any(|value| value.as_str() == found);
            match one["operator"].as_str().unwrap_or_default() {
                "In" => is_in,
                "NotIn" => !is_in,
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_selector_chooses_what_holds_all_of_it() {
        let object = json!({"metadata": {"labels": {"app": "web", "tier": "front"}}});
        let chooses = |selector: Value| matches(&selector, Object::new(&object));
        assert!(chooses(json!({})));
        assert!(!chooses(Value::Null));
        assert!(chooses(
            json!({"matchLabels": {"app": "web", "tier": "front"}})
        ));
        assert!(!chooses(
            json!({"matchLabels": {"app": "web", "tier": "back"}})
        ));
        let expression = |operator: &str, values: &[&str]| {
            chooses(
                json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}),
            )
        };
        assert!(expression("In", &["web", "db"]));
        assert!(!expression("NotIn", &["web"]));
        assert!(expression("Exists", &[]));
        assert!(!expression("DoesNotExist", &[]));
        assert!(!expression("Unheard", &[]));
    }
}
