//! The webhook's metrics.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The labels of a review: its path and the kind of answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReviewLabels {
    path: &'static str,
    answer: &'static str,
}

/// The metrics and their registry.
pub(crate) struct WebhookMetrics {
    registry: Registry,
    reviews: Family<ReviewLabels, Counter>,
    seconds: Histogram,
    expiry: Gauge<f64, AtomicU64>,
    useless: Counter,
    dropped: Counter,
}

impl WebhookMetrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("apportion_admission");
        let reviews = Family::default();
        let seconds = Histogram::new([0.000_1, 0.000_5, 0.001, 0.005, 0.02, 0.1, 1.0]);
        let expiry = Gauge::default();
        let useless = Counter::default();
        let dropped = Counter::default();
        registry.register(
            "reviews",
            "Admission reviews, by path and answer",
            reviews.clone(),
        );
        registry.register(
            "review_seconds",
            "Time taken to answer an admission review",
            seconds.clone(),
        );
        registry.register(
            "certificate_expiry_timestamp_seconds",
            "Expiry time of the served certificate",
            expiry.clone(),
        );
        registry.register(
            "certificate_failures",
            "Failed attempts to get a usable certificate",
            useless.clone(),
        );
        registry.register(
            "connections_dropped",
            "Connections for questions that were dropped because there were too many",
            dropped.clone(),
        );
        Self {
            registry,
            reviews,
            seconds,
            expiry,
            useless,
            dropped,
        }
    }

    pub(crate) fn count(&self, path: &'static str, answer: &'static str, took: Duration) {
        self.reviews
            .get_or_create(&ReviewLabels { path, answer })
            .inc();
        self.seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn certificate_ends(&self, at: SystemTime) {
        let since = at
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        self.expiry.set(since.as_secs_f64());
    }

    pub(crate) fn count_useless(&self) {
        self.useless.inc();
    }

    pub(crate) fn count_dropped(&self) {
        self.dropped.inc();
    }

    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => text,
            Err(std::fmt::Error) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use apportion_reference::{hold, metrics, served};

    use super::*;

    #[test]
    fn the_reference_has_every_metric() {
        let all = WebhookMetrics::new();
        all.count("", "", Duration::ZERO);
        hold("metrics", "webhook", &metrics(served(&all.render())));
    }

    #[test]
    fn the_chart_asks_for_what_is_served() {
        let chart = "../../deploy/chart/apportion";
        let chart = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(chart);
        let all = WebhookMetrics::new();
        all.count("", "", Duration::ZERO);
        let text = all.render();
        for file in ["rules/scheduler.yaml", "dashboards/queues.json"] {
            let asking = std::fs::read_to_string(chart.join(file)).unwrap();
            let words = asking.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let asked: Vec<&str> = words
                .filter(|word| word.starts_with("apportion_admission_"))
                .collect();
            assert!(asked.len() > 2, "{file}: {asked:?}");
            for name in asked {
                let name = name.trim_end_matches("_bucket").trim_end_matches("_total");
                let help = format!("# HELP {name} ");
                assert!(text.contains(&help), "{file} asks for {name}");
            }
        }
    }
}
