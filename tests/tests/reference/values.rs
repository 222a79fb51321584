//! The chart's values: the file with its comments, and the schema's type of each.

use std::fs;
use std::path::Path;

use apportion_reference::{cell, code, hold, table};
use serde_json::Value;

/// Kubernetes fields, which need no explanation.
const OF_KUBERNETES: [&str; 13] = [
    "affinity",
    "annotations",
    "cpu",
    "hostNetwork",
    "imagePullSecrets",
    "memory",
    "nodeSelector",
    "podAnnotations",
    "podLabels",
    "priorityClassName",
    "pullPolicy",
    "replicas",
    "tolerations",
];

/// One value.
#[derive(Debug, Default, PartialEq, Eq)]
struct ChartValue {
    path: Vec<String>,
    default: String,
    comment: String,
}

#[test]
fn the_reference_has_every_value_of_the_chart() {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart/apportion");
    let text = fs::read_to_string(chart.join("values.yaml")).expect("the chart has values");
    let schema = fs::read_to_string(chart.join("values.schema.json")).expect("and a schema");
    let schema: Value = serde_json::from_str(&schema).expect("the schema is JSON");
    let found = rows(&text);
    for row in &found {
        let name = row.path.last().expect("a value has a name");
        let is_known = OF_KUBERNETES.contains(&name.as_str());
        // A map's comment also covers its members.
        assert!(
            is_known
                || found
                    .iter()
                    .any(|other| !other.comment.is_empty() && row.path.starts_with(&other.path)),
            "{row:?} has no comment in values.yaml"
        );
    }
    let rows = found.iter().map(|row| {
        let form = form(of(&schema, &row.path));
        [
            code(&row.path.join(".")),
            form,
            code(&row.default),
            cell(&row.comment),
        ]
    });
    hold(
        "helm-values",
        "values",
        &table(["value", "type", "default", "meaning"], rows),
    );
}

/// The values of a file, each with the comment above it. A map with a comment is also a row.
fn rows(text: &str) -> Vec<ChartValue> {
    let mut rows = Vec::new();
    let mut above: Vec<(usize, String)> = Vec::new();
    let mut comment = String::new();
    let lines: Vec<&str> = text.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim();
        if let Some(said) = line.strip_prefix('#') {
            comment.push_str(said);
            continue;
        }
        let said = std::mem::take(&mut comment);
        let Some((name, value)) = line.split_once(':').filter(|_| !line.starts_with('-')) else {
            continue;
        };
        above.retain(|(other, _)| *other < indent);
        let path = above.iter().map(|(_, name)| name.clone());
        let path = path.chain([name.to_owned()]).collect();
        let list = list(&lines[number + 1..], indent);
        let is_map = value.is_empty() && list.is_empty();
        if is_map {
            above.push((indent, name.to_owned()));
        }
        if !is_map || !said.is_empty() {
            let default = if value.is_empty() {
                list
            } else {
                value.trim().to_owned()
            };
            let comment = said.split_whitespace().collect::<Vec<_>>().join(" ");
            let comment = comment.trim_end_matches('.').to_owned();
            rows.push(ChartValue {
                path,
                default,
                comment,
            });
        }
    }
    rows
}

/// The list at the beginning of these lines, on one line.
fn list(lines: &[&str], indent: usize) -> String {
    let deeper = lines
        .iter()
        .take_while(|line| line.len() - line.trim_start().len() > indent);
    let items: Vec<&str> = deeper.map(|line| line.trim()).collect();
    match items.first() {
        Some(first) if first.starts_with('-') => items.join(" "),
        _ => String::new(),
    }
}

/// The schema of a value.
fn of<'a>(schema: &'a Value, path: &[String]) -> &'a Value {
    path.iter()
        .fold(schema, |schema, name| match &schema["properties"][name] {
            Value::Null => &schema["additionalProperties"],
            found => found,
        })
}

fn form(schema: &Value) -> String {
    if let Some(values) = schema["enum"].as_array() {
        let values = values
            .iter()
            .filter_map(Value::as_str)
            .filter(|value| !value.is_empty());
        return values.map(code).collect::<Vec<_>>().join(", ");
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.first().and_then(Value::as_str).unwrap_or_default(),
        kind => kind.as_str().unwrap_or_default(),
    };
    let bound = |key: &str| schema[key].as_i64();
    let word = match kind {
        "array" => "list",
        "object" => "map",
        "boolean" => "`true`, `false`",
        kind => kind,
    };
    match (bound("minimum"), bound("maximum")) {
        (Some(least), Some(most)) => format!("{word}, {least} to {most}"),
        (Some(least), None) => format!("{word}, at least {least}"),
        (None, _) => word.to_owned(),
    }
}

#[test]
fn values_are_read_with_their_comments() {
    let text = "# About all.\n\n# How many\n# there are.\ncount: 3\nimage:\n  # Its tag.\n  tag: \"\"\n\
                tolerations:\n  - operator: Exists\n# The log.\nlog:\n  level: info\n";
    let found = rows(text);
    let said: Vec<_> = found
        .iter()
        .map(|row| {
            (
                row.path.join("."),
                row.default.as_str(),
                row.comment.as_str(),
            )
        })
        .collect();
    assert_eq!(
        said,
        [
            ("count".to_owned(), "3", "How many there are"),
            ("image.tag".to_owned(), "\"\"", "Its tag"),
            ("tolerations".to_owned(), "- operator: Exists", ""),
            ("log".to_owned(), "", "The log"),
            ("log.level".to_owned(), "info", ""),
        ]
    );
}
