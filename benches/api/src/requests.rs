//! The requests to the API server, by its own metric `apiserver_request_total`.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_tests::control_plane::ControlPlane;

const SERIES: &str = "apiserver_request_total{";

/// The number of requests so far, by verb and resource.
pub(crate) struct RequestCounts(BTreeMap<String, f64>);

impl RequestCounts {
    pub(crate) fn of(plane: &ControlPlane) -> Self {
        let mut counts = BTreeMap::new();
        for line in plane.kubectl(&["get", "--raw", "/metrics"]).lines() {
            let Some((labels, count)) = line
                .strip_prefix(SERIES)
                .and_then(|rest| rest.rsplit_once("} "))
            else {
                continue;
            };
            let name = format!(
                "{} {}",
                label(labels, "verb"),
                [label(labels, "resource"), label(labels, "subresource")].join("/")
            );
            *counts.entry(name).or_insert(0.0) += count.parse().unwrap_or(0.0);
        }
        Self(counts)
    }

    /// The requests since `before`, which is this long ago, as a rate; most frequent first. A watch counts when it ends.
    pub(crate) fn each_minute_since(&self, before: &Self, time: Duration) -> Vec<(String, f64)> {
        let minutes = time.as_secs_f64() / 60.0;
        let mut counts: Vec<_> = self
            .0
            .iter()
            .map(|(name, count)| {
                let more = count - before.0.get(name).unwrap_or(&0.0);
                (name.clone(), more / minutes)
            })
            .filter(|(_, count)| *count > 0.0)
            .collect();
        counts.sort_by(|left, right| right.1.total_cmp(&left.1));
        counts
    }
}

/// The value of a label; empty if the label is missing.
fn label<'l>(labels: &'l str, name: &str) -> &'l str {
    let quoted = format!("{name}=\"");
    let mut at = labels.match_indices(&quoted);
    // `subresource` also ends in `resource`.
    let at = at.find(|(at, _)| *at == 0 || labels[..*at].ends_with(','));
    let value = at.map(|(at, _)| &labels[at + quoted.len()..]);
    value
        .and_then(|value| value.split('"').next())
        .unwrap_or_default()
}
