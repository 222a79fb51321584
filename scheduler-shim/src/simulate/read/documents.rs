//! Parses text into values: YAML documents, JSON, and lists of either.
//!
//! To parse YAML takes longer than JSON, and for deep nesting so much longer that a file of 200 kB took 20 seconds.
//! So YAML has a size limit of its own, and text that is nested deeper than objects ever are is refused before it is
//! parsed ([`nesting`]). The parser limits aliases.

use serde::Deserialize;
use serde_json::Value;

use super::nesting::{self, DEEPEST};

/// The largest YAML text that is parsed.
const LARGEST_YAML: usize = 64 << 20;

/// The documents of a text.
pub(super) fn documents(text: &str) -> Result<Vec<Value>, String> {
    if text.trim_start().starts_with(['{', '[']) {
        let values = serde_json::Deserializer::from_str(text).into_iter();
        if let Ok(values) = values.collect::<Result<Vec<Value>, _>>() {
            return Ok(values);
        }
    }
    if text.len() > LARGEST_YAML {
        let most = LARGEST_YAML >> 20;
        return Err(format!(
            "it is YAML of more than {most} MiB; JSON may have more"
        ));
    }
    if nesting::is_too_deep(text) {
        return Err(format!("it is nested more than {DEEPEST} levels deep"));
    }
    unchecked(text)
}

/// The documents of YAML that passed these checks.
pub(super) fn unchecked(text: &str) -> Result<Vec<Value>, String> {
    let documents = serde_norway::Deserializer::from_str(text);
    documents
        .map(|document| Value::deserialize(document).map_err(|error| error.to_string()))
        .filter(|document| !matches!(document, Ok(Value::Null)))
        .collect()
}

/// Replaces a list by its items. Those of a typed list (`PodList`) do not name their kind.
pub(super) fn flatten(document: Value, objects: &mut Vec<Value>) {
    let mut document = match document {
        Value::Array(entries) => {
            entries
                .into_iter()
                .for_each(|entry| flatten(entry, objects));
            return;
        }
        other => other,
    };
    let kind = document["kind"].as_str().unwrap_or_default();
    let Some(kind) = kind.strip_suffix("List").map(str::to_owned) else {
        objects.push(document);
        return;
    };
    let version = document["apiVersion"].clone();
    let Some(Value::Array(items)) = document.get_mut("items").map(Value::take) else {
        return;
    };
    for mut item in items {
        if let Some(fields) = item.as_object_mut().filter(|_| !kind.is_empty()) {
            fields.entry("kind").or_insert_with(|| kind.as_str().into());
            fields
                .entry("apiVersion")
                .or_insert_with(|| version.clone());
        }
        flatten(item, objects);
    }
}
