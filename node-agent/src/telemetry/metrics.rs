//! The latest view as Prometheus metrics. [`definitions`] is the table of metrics; this module renders its rows as
//! text.
//!
//! A scrape asks neither the driver nor the ledger. Each series belongs to a GPU that exists or to a live share.
//! Labels are Kubernetes names or values from fixed sets, never a pid or free text. So the node's size bounds the
//! number of series, and [`MOST_SHARES`] does if that fails.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use apportion_bounded::{ConnectionLimiter, HttpLimiter};
use hyper::body::Bytes;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::telemetry::view::AgentView;

mod definitions;
mod samples;
mod snapshot;

use definitions::{AgentMetric, ROWS, SeriesKind};
pub(crate) use samples::{FAILED, QUOTA, reason};
use snapshot::{MOST_SHARES, ScrapeSnapshot};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricsFormat {
    /// For clients that accept it, such as Prometheus.
    OpenMetrics,
    Plain,
}

/// How long to reuse a text while the view is the same. Some values change without a new view, such as its age.
const FRESH: Duration = Duration::from_millis(250);

/// The state between scrapes.
#[derive(Debug, Default)]
pub(crate) struct ScrapeState {
    /// The number of series left out. Written and read by scrapes only; relaxed, as it orders nothing else.
    dropped: AtomicU64,
    /// Count the dropped connections.
    own: Option<HttpLimiter>,
    others: Vec<ConnectionLimiter>,
    /// The last text of each format.
    texts: Mutex<[Option<CachedScrape>; 2]>,
}

/// A rendered text, its view and its time.
#[derive(Debug)]
struct CachedScrape {
    view: Arc<AgentView>,
    since: Instant,
    text: Bytes,
}

impl ScrapeState {
    /// A state that also exports the connections that these listeners dropped.
    pub(crate) fn new(own: HttpLimiter, others: Vec<ConnectionLimiter>) -> Self {
        Self {
            own: Some(own),
            others,
            ..Self::default()
        }
    }

    /// Returns the view as text. Concurrent clients share it.
    pub(crate) fn show(&self, view: &Arc<AgentView>, format: MetricsFormat) -> Bytes {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        let [open, plain] = &mut *texts;
        let last = match format {
            MetricsFormat::OpenMetrics => open,
            MetricsFormat::Plain => plain,
        };
        if let Some(last) = last
            .as_mut()
            .filter(|last| Arc::ptr_eq(&last.view, view) && last.since.elapsed() < FRESH)
        {
            return last.text.clone();
        }
        let text = Bytes::from(self.render(view, format));
        *last = Some(CachedScrape {
            view: view.clone(),
            since: Instant::now(),
            text: text.clone(),
        });
        text
    }

    fn render(&self, view: &Arc<AgentView>, format: MetricsFormat) -> String {
        let (shares, left_out) = snapshot::shares(&view.list.allocations, MOST_SHARES);
        let left_out = u64::try_from(left_out * definitions::per_share()).unwrap_or(u64::MAX);
        let dropped = self.dropped.fetch_add(left_out, Ordering::Relaxed) + left_out;
        let own = self.own.as_ref().map_or(0, HttpLimiter::dropped);
        let others = self
            .others
            .iter()
            .map(|limiter| (limiter.name(), limiter.dropped()));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ScrapeSnapshot {
            view: view.clone(),
            shares,
            dropped,
            connections: std::iter::once(("metrics", own)).chain(others).collect(),
        }));
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &registry) {
            // Writing to a string fails only if a metric is malformed; a scraper then sees a parse error.
            let _ = write!(text, "# {error}");
        }
        match format {
            MetricsFormat::OpenMetrics => text,
            MetricsFormat::Plain => plain(&text),
        }
    }
}

/// Converts OpenMetrics to Prometheus' older text format. OpenMetrics names a counter without `_total` in its
/// descriptor, and marks the end of the text.
fn plain(text: &str) -> String {
    let counters = ROWS
        .iter()
        .filter(|row| matches!(row.kind, SeriesKind::Counter));
    let counters: Vec<_> = counters.map(|row| row.name).collect();
    let mut plain = String::with_capacity(text.len());
    for line in text.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        let described = (words.next(), words.next(), words.next(), words.next());
        let renamed = match described {
            (Some("#"), Some(word), Some(name), Some(rest)) => counters
                .iter()
                .find(|counter| counter.strip_suffix("_total") == Some(name))
                .map(|counter| format!("# {word} {counter} {rest}")),
            _ => None,
        };
        plain.push_str(renamed.as_deref().unwrap_or(line));
        plain.push('\n');
    }
    plain
}

impl Collector for ScrapeSnapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        ROWS.iter()
            .try_for_each(|row| write_row(row, self, &mut encoder))
    }
}

fn write_row(
    row: &AgentMetric,
    facts: &ScrapeSnapshot,
    encoder: &mut DescriptorEncoder,
) -> fmt::Result {
    let (kind, name) = match row.kind {
        SeriesKind::Gauge => (MetricType::Gauge, row.name),
        // The encoder adds it again.
        SeriesKind::Counter => (MetricType::Counter, row.name.trim_end_matches("_total")),
        SeriesKind::Histogram => (MetricType::Histogram, row.name),
    };
    let labels = row.labels();
    let mut family = encoder.encode_descriptor(name, row.help, None, kind)?;
    for (value, histogram) in row.spread(facts).into_iter().flatten() {
        let labels: Vec<_> = labels.iter().map(|label| (*label, *value)).collect();
        histogram.encode(family.encode_family(&labels)?)?;
    }
    for (values, value) in row.samples(facts) {
        if labels.is_empty() {
            write_value(row.kind, value, &mut family)?;
            continue;
        }
        let labels: Vec<_> = labels.iter().copied().zip(values).collect();
        write_value(row.kind, value, &mut family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn write_value(kind: SeriesKind, value: f64, encoder: &mut MetricEncoder) -> fmt::Result {
    match kind {
        SeriesKind::Gauge => encoder.encode_gauge(&value),
        SeriesKind::Counter => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
        // It has buckets and no single value.
        SeriesKind::Histogram => Ok(()),
    }
}

#[cfg(test)]
mod tests;
