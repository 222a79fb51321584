//! Label selectors, as Kubernetes reads them: all requirements must hold, and an empty selector matches everything.

use std::collections::BTreeSet;

use apportion_groups::ObjectView;
use apportion_policy::cluster::LabelRequirement;
use serde_json::Value;

use super::labels::texts;

/// Whether a selector matches an object. One that is missing or invalid matches nothing.
pub(crate) fn matches(selector: &Value, object: ObjectView<'_>) -> bool {
    let asked = Some(selector)
        .filter(|selector| selector.is_object())
        .and_then(|selector| requirements(selector).ok());
    asked.is_some_and(|asked| {
        let mut asked = asked.iter();
        asked.all(|(label, requirement)| requirement.holds(object.label(label)))
    })
}

/// The requirements of a selector, or why it is invalid.
pub(crate) fn requirements(selector: &Value) -> Result<Vec<(String, LabelRequirement)>, String> {
    let labels = texts(&selector["matchLabels"])
        .into_iter()
        .map(|(label, value)| Ok((label, LabelRequirement::In([value].into()))));
    let expressions = selector["matchExpressions"].as_array();
    labels
        .chain(expressions.into_iter().flatten().map(requirement))
        .collect()
}

fn requirement(expression: &Value) -> Result<(String, LabelRequirement), String> {
    let label = expression["key"]
        .as_str()
        .ok_or("an expression of its selector has no key")?;
    let values = || {
        let values = expression["values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        values.map(str::to_owned).collect::<BTreeSet<String>>()
    };
    let requirement = match expression["operator"].as_str().unwrap_or_default() {
        "In" => LabelRequirement::In(values()),
        "NotIn" => LabelRequirement::NotIn(values()),
        "Exists" => LabelRequirement::Exists,
        "DoesNotExist" => LabelRequirement::DoesNotExist,
        unknown => {
            return Err(format!(
                "its selector has the unknown operator \"{unknown}\""
            ));
        }
    };
    Ok((label.to_owned(), requirement))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_selector_chooses_what_holds_all_of_it() {
        let object = json!({"metadata": {"labels": {"app": "web", "tier": "front"}}});
        let chooses = |selector: Value| matches(&selector, ObjectView::new(&object));
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
