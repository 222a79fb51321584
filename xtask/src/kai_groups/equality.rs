//! When two answers are equal.
//!
//! Zero, empty and absent are equal, as everywhere in the oracles. A group that the API server would refuse (with a
//! negative number of members) counts as an error. The texts of errors are not compared, because ours differ on
//! purpose. The oracles check the texts that KAI's own tests state.

use serde_json::{Map, Value};

use crate::oracle_pod_groups::{CallOutcome, trimmed};

use super::kai::GrouperAnswer;

/// A field of KAI's answer that is not compared: our scheduler reads it from the pod's annotation instead.
const UNCOMPARED: &str = "stalenessGracePeriod";
const TOP_OWNER: &str = "kai.scheduler/top-owner-metadata";

/// The fields in which the answers differ, with both values.
pub(super) fn differences(kai: &GrouperAnswer, ours: &CallOutcome) -> Vec<String> {
    let theirs = match kai {
        GrouperAnswer::Group(group) if !is_refused(group) => Ok(group),
        GrouperAnswer::Group(_) => Err("the API server refuses its group"),
        GrouperAnswer::Error(error) => Err(error.as_str()),
        GrouperAnswer::Unaskable(_) => Err("it cannot be asked"),
    };
    match (theirs, ours.error.as_deref()) {
        (Err(_), Some(_)) => Vec::new(),
        (Err(theirs), None) => vec![format!("KAI complains: {theirs}; ours makes a group")],
        (Ok(_), Some(ours)) => vec![format!("ours complains: {ours}; KAI makes a group")],
        (Ok(theirs), None) => fields(theirs, ours.result()),
    }
}

fn fields(theirs: &Value, ours: &Value) -> Vec<String> {
    let (theirs, ours) = (comparable(theirs), comparable(ours));
    let keys: std::collections::BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    let value = |of: &Map<String, Value>, key: &String| of.get(key).cloned().unwrap_or_default();
    keys.into_iter()
        .map(|key| (key, value(&theirs, key), value(&ours, key)))
        .filter(|(_, theirs, ours)| theirs != ours)
        .map(|(key, theirs, ours)| format!("{key}: KAI {theirs}, ours {ours}"))
        .collect()
}

fn comparable(group: &Value) -> Map<String, Value> {
    let mut group = group.clone();
    if let Some(text) = group["annotations"].get_mut(TOP_OWNER)
        && let Some(read) = text
            .as_str()
            .and_then(|text| serde_json::from_str(text).ok())
    {
        *text = read;
    }
    match trimmed(&group) {
        Value::Object(mut fields) => {
            fields.remove(UNCOMPARED);
            fields
        }
        _ => Map::new(),
    }
}

/// The schema of PodGroups allows no negative numbers.
fn is_refused(group: &Value) -> bool {
    let negative = |part: &Value| {
        ["minAvailable", "minSubGroup"]
            .iter()
            .any(|field| part[field].as_i64().is_some_and(|count| count < 0))
    };
    let parts = group["subGroups"].as_array();
    negative(group) || parts.into_iter().flatten().any(negative)
}
