//! The reference of object kinds: ours field by field, and the KAI kinds that are supported.

use apportion_crds::{GpuNode, kai};
use apportion_reference::{cell, code, hold, table};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

/// KAI's documentation of its kinds.
const KAI: &str = "https://github.com/kai-scheduler/KAI-Scheduler/tree/main/docs";

#[test]
fn the_reference_has_every_field_of_a_gpu_node() {
    let kind = serde_json::to_value(GpuNode::crd()).expect("a manifest is JSON");
    let version = &kind["spec"]["versions"][0];
    let mut rows = Vec::new();
    fields(&version["schema"]["openAPIV3Schema"], "", &mut rows);
    hold(
        "crds",
        "gpunode fields",
        &table(["field", "type", "meaning"], rows),
    );
    let columns = version["additionalPrinterColumns"]
        .as_array()
        .expect("it has columns");
    let rows = columns.iter().map(|column| {
        let text = |field: &str| column[field].as_str().unwrap_or_default();
        let wide = column["priority"].as_i64().unwrap_or_default() > 0;
        let shown = if wide { "with `-o wide`" } else { "" };
        [cell(text("name")), code(text("jsonPath")), shown.to_owned()]
    });
    hold(
        "crds",
        "gpunode columns",
        &table(["column", "field", "shown"], rows),
    );
}

/// The conditions, whose fields Kubernetes documents.
const CONDITIONS: &str = ".status.conditions[]";

/// Every field below `schema`, with its description.
fn fields(schema: &Value, path: &str, rows: &mut Vec<[String; 3]>) {
    let properties = schema["properties"].as_object().into_iter().flatten();
    for (name, field) in properties {
        let path = format!("{path}.{name}");
        let inner = if field["type"] == "array" {
            &field["items"]
        } else {
            field
        };
        let path = if field["type"] == "array" {
            format!("{path}[]")
        } else {
            path
        };
        let meaning = field["description"].as_str().unwrap_or_default();
        rows.push([
            code(&path),
            form(field),
            cell(meaning.trim_end_matches('.')),
        ]);
        if path != CONDITIONS {
            fields(inner, &path, rows);
        }
    }
}

fn form(field: &Value) -> String {
    let text = |key: &str| field[key].as_str().unwrap_or_default();
    if let Some(values) = field["enum"].as_array() {
        let values: Vec<String> = values.iter().filter_map(Value::as_str).map(code).collect();
        return values.join(", ");
    }
    match (text("type"), text("format")) {
        ("array", _) => "list".to_owned(),
        ("string", "date-time") => "time".to_owned(),
        (kind, _) => kind.to_owned(),
    }
}

#[test]
fn the_reference_has_every_kind_of_kai_that_is_served() {
    let rows = kai::manifests().into_iter().map(row);
    let titles = ["kind", "apiVersion", "scope", "meaning", "KAI's page"];
    hold("crds", "KAI's kinds", &table(titles, rows));
}

fn row(manifest: CustomResourceDefinition) -> [String; 5] {
    let spec = manifest.spec;
    let kind = spec.names.kind;
    let page = match kind.as_str() {
        "Queue" => "queues",
        "PodGroup" => "batch",
        "Topology" => "topology",
        other => panic!("{other} has no page"),
    };
    let version = &spec.versions[0];
    let schema = version
        .schema
        .as_ref()
        .and_then(|schema| schema.open_api_v3_schema.as_ref());
    let meaning = schema
        .and_then(|schema| schema.description.clone())
        .unwrap_or_default();
    [
        code(&kind),
        code(&format!("{}/{}", spec.group, version.name)),
        spec.scope,
        cell(meaning.trim_end_matches('.')),
        format!("[{page}]({KAI}/{page})"),
    ]
}
