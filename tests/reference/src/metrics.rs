//! Tables of metrics.

use crate::table::{cell, table};

/// One metric as documented.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentedMetric {
    /// The name of its series.
    pub name: String,
    /// `gauge`, `counter` or `histogram`.
    pub kind: String,
    /// Its labels.
    pub labels: String,
    /// Its help text.
    pub help: String,
}

/// The table of metrics.
#[must_use]
pub fn metrics(metrics: impl IntoIterator<Item = DocumentedMetric>) -> String {
    let rows = metrics.into_iter().map(|metric| {
        [
            format!("`{}`", metric.name),
            metric.kind,
            unit(&metric.name).to_owned(),
            metric.labels,
            cell(metric.help.trim_end_matches('.')),
        ]
    });
    table(["metric", "kind", "unit", "labels", "meaning"], rows)
}

/// The unit, from the metric's name.
fn unit(name: &str) -> &'static str {
    let base = name.trim_end_matches("_total");
    let known = [
        ("_timestamp_seconds", "seconds since 1970"),
        ("_milliseconds", "milliseconds"),
        ("_seconds", "seconds"),
        ("_bytes", "bytes"),
        ("_gb", "GB (10^9 bytes)"),
        ("_ratio", "0 to 1"),
        ("_usage", "0 to 1"),
        ("_cores", "cores"),
        ("_gpus", "GPUs"),
        ("_gpu", "GPUs"),
    ];
    let found = known.iter().find(|(end, _)| base.ends_with(end));
    found.map_or("", |(_, unit)| unit)
}

/// The metrics in the text that a program serves. Each must have a series there.
#[must_use]
pub fn served(text: &str) -> Vec<DocumentedMetric> {
    let mut found: Vec<DocumentedMetric> = Vec::new();
    for line in text.lines() {
        if let Some((name, help)) = comment(line, "# HELP ") {
            found.push(DocumentedMetric {
                name: name.to_owned(),
                kind: String::new(),
                labels: String::new(),
                help: help.to_owned(),
            });
        }
        let Some(metric) = found.last_mut() else {
            continue;
        };
        if let Some((_, kind)) = comment(line, "# TYPE ") {
            kind.clone_into(&mut metric.kind);
        } else if let Some((labels, series)) = series(line) {
            metric.labels = labels;
            // The HELP line has a counter's name without its suffix.
            if metric.kind == "counter" {
                series.clone_into(&mut metric.name);
            }
        }
    }
    found
}

fn comment<'a>(line: &'a str, begin: &str) -> Option<(&'a str, &'a str)> {
    line.strip_prefix(begin)?.split_once(' ')
}

/// The labels and the name of a series. `le` is omitted: every histogram has it.
fn series(line: &str) -> Option<(String, &str)> {
    let name = line
        .split(['{', ' '])
        .next()
        .filter(|_| !line.starts_with('#'))?;
    let inside = line
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let labels = inside.map_or("", |(labels, _)| labels).split(',');
    let names = labels.filter_map(|label| label.split_once('=').map(|(name, _)| name));
    let names: Vec<_> = names.filter(|name| *name != "le").collect();
    Some((names.join(", "), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_served_says_its_name_kind_and_labels() {
        let text = "# HELP q_seconds Time.\n# TYPE q_seconds histogram\nq_seconds_sum 0\n\
                    q_seconds_bucket{le=\"1\"} 0\n# HELP n Times.\n# TYPE n counter\nn_total{a=\"1\",b=\"2\"} 0\n# EOF\n";
        let found = served(text);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].name.as_str(), found[0].labels.as_str()),
            ("q_seconds", "")
        );
        assert_eq!(
            (found[1].name.as_str(), found[1].labels.as_str()),
            ("n_total", "a, b")
        );
        let table = metrics(found);
        assert!(
            table.contains("| `q_seconds` | histogram | seconds |  | Time |"),
            "{table}"
        );
    }
}
