//! Files to objects: YAML documents, JSON, and lists of either.
//!
//! A file that can't be read as what it claims to be is a failure. An object that makes no sense is
//! not: that is a remark of whoever reads the object.

use std::fs;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::failure::Failure;

/// All objects of a file.
pub(super) fn objects(path: &Path) -> Result<Vec<Value>, Failure> {
    let text = text(path).map_err(|error| {
        Failure::new(format!("failed to read {}: {error}", path.display()))
            .hint("give a file with Kubernetes objects, or - for standard input")
    })?;
    let documents = documents(&text).map_err(|error| {
        Failure::new(format!("failed to read {}: {error}", path.display()))
            .hint("the file must be YAML or JSON, as kubectl get -o yaml prints it")
    })?;
    let mut objects = Vec::new();
    for document in documents {
        flatten(document, &mut objects);
    }
    if let Some(odd) = objects.iter().find(|object| !object.is_object()) {
        let odd: String = odd.to_string().chars().take(40).collect();
        return Err(Failure::new(format!(
            "failed to read {}: {odd} is not a Kubernetes object",
            path.display()
        ))
        .hint("an object has apiVersion, kind and metadata"));
    }
    Ok(objects)
}

fn text(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    fs::read_to_string(path)
}

fn documents(text: &str) -> Result<Vec<Value>, String> {
    if text.trim_start().starts_with(['{', '[']) {
        let values = serde_json::Deserializer::from_str(text).into_iter();
        if let Ok(values) = values.collect::<Result<Vec<Value>, _>>() {
            return Ok(values);
        }
    }
    let documents = serde_norway::Deserializer::from_str(text);
    documents
        .map(|document| Value::deserialize(document).map_err(|error| error.to_string()))
        .filter(|document| !matches!(document, Ok(Value::Null)))
        .collect()
}

/// A list becomes its items; those of a typed list (`PodList`) say nothing of their own kind.
fn flatten(document: Value, objects: &mut Vec<Value>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<String> {
        let mut objects = Vec::new();
        for document in documents(text).expect("the text is YAML or JSON") {
            flatten(document, &mut objects);
        }
        let kind = |object: &Value| object["kind"].as_str().unwrap_or("none").to_owned();
        objects.iter().map(kind).collect()
    }

    #[test]
    fn reads_documents_and_lists_of_any_form() {
        assert_eq!(kinds("kind: A\n---\n# nothing\n---\nkind: B\n"), ["A", "B"]);
        let list = "kind: List\nitems: [{kind: A}, {kind: BList, items: [{}, {}]}]";
        assert_eq!(kinds(list), ["A", "B", "B"]);
        assert_eq!(kinds(r#"{"kind": "A"} {"kind": "B"}"#), ["A", "B"]);
        assert_eq!(kinds("{kind: A, labels: {x: y}}"), ["A"]);
    }
}
