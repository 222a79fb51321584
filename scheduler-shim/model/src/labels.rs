//! Labels and annotations of objects.

use std::collections::BTreeMap;

use serde_json::Value;

/// The label with a node's host name.
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";

/// A map of strings.
pub(crate) fn texts(json: &Value) -> BTreeMap<String, String> {
    let entries = json.as_object().into_iter().flatten();
    entries
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}
