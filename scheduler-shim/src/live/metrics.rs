//! The metrics for Prometheus, under KAI's names where KAI has one.
//!
//! Queues use the same numbers that explain why pods wait. A deleted queue takes its series with it. Amounts of cards
//! are charged amounts: a share of two cards counts twice.

use std::time::Duration;

use apportion_bounded::HttpLimiter;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use apportion_policy::amounts::ResourceKind;
use apportion_policy::share::QueueShare;

use apportion_explain::decided_cluster::DecidedCluster;
use apportion_explain::waiting::{WaitReason, WaitingPod};

/// The labels of a queue's series. KAI has three names for a queue, the scheduler has one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    queue_name: String,
    queue_metadata_name: String,
    queue_display_name: String,
}

type FloatGauge = Gauge<f64, std::sync::atomic::AtomicU64>;
type QueueGauge = Family<QueueLabels, FloatGauge>;

/// One metric of every queue.
struct QueueMetric {
    name: &'static str,
    help: &'static str,
    read: fn(&QueueShare) -> f64,
}

const ROWS: &[QueueMetric] = &[
    QueueMetric {
        name: "kai_queue_deserved_gpus",
        help: "GPU quota of the queue; -1 is unlimited",
        read: |queue| queue.of(ResourceKind::Gpu).deserved,
    },
    QueueMetric {
        name: "kai_queue_quota_cpu_cores",
        help: "CPU core quota of the queue; -1 is unlimited",
        read: |queue| cores(queue.of(ResourceKind::Cpu).deserved),
    },
    QueueMetric {
        name: "kai_queue_quota_memory_bytes",
        help: "Memory quota of the queue; -1 is unlimited",
        read: |queue| queue.of(ResourceKind::Memory).deserved,
    },
    QueueMetric {
        name: "kai_queue_allocated_gpus",
        help: "GPUs allocated to the queue's pods",
        read: |queue| queue.of(ResourceKind::Gpu).allocated,
    },
    QueueMetric {
        name: "kai_queue_allocated_cpu_cores",
        help: "CPU cores allocated to the queue's pods",
        read: |queue| cores(queue.of(ResourceKind::Cpu).allocated),
    },
    QueueMetric {
        name: "kai_queue_allocated_memory_bytes",
        help: "Memory allocated to the queue's pods",
        read: |queue| queue.of(ResourceKind::Memory).allocated,
    },
    QueueMetric {
        name: "kai_queue_fair_share_gpu",
        help: "Fair share of GPUs",
        read: |queue| queue.of(ResourceKind::Gpu).fair,
    },
    QueueMetric {
        name: "kai_queue_fair_share_cpu_cores",
        help: "Fair share of CPU cores",
        read: |queue| cores(queue.of(ResourceKind::Cpu).fair),
    },
    QueueMetric {
        name: "kai_queue_fair_share_memory_gb",
        help: "Fair share of memory, in billions of bytes",
        read: |queue| queue.of(ResourceKind::Memory).fair.max(0.0) / 1e9,
    },
    QueueMetric {
        name: "kai_queue_gpu_usage",
        help: "Part of all GPUs that the queue used in the past, if past usage counts",
        read: |queue| queue.of(ResourceKind::Gpu).usage,
    },
    QueueMetric {
        name: "kai_queue_cpu_usage",
        help: "Part of all CPU cores that the queue used in the past, if past usage counts",
        read: |queue| queue.of(ResourceKind::Cpu).usage,
    },
    QueueMetric {
        name: "kai_queue_memory_usage",
        help: "Part of all memory that the queue used in the past, if past usage counts",
        read: |queue| queue.of(ResourceKind::Memory).usage,
    },
];

fn cores(millis: f64) -> f64 {
    if millis < 0.0 {
        millis
    } else {
        millis / 1000.0
    }
}

/// The counters of the HTTP listener.
#[derive(Debug)]
struct ListenerMetrics(HttpLimiter);

impl Collector for ListenerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let dropped = ConstCounter::new(self.0.dropped());
        let metric = encoder.encode_descriptor(
            "apportion_scheduler_connections_dropped",
            "Connections dropped because the listener had too many",
            None,
            dropped.metric_type(),
        )?;
        dropped.encode(metric)
    }
}

pub(crate) struct SchedulerMetrics {
    registry: Registry,
    queues: Vec<QueueGauge>,
    round: FloatGauge,
    bound: Histogram,
    evicted: Counter,
    refused: Counter,
    waiting: FloatGauge,
    slotless: FloatGauge,
}

impl SchedulerMetrics {
    /// All zero. `bounds` is the limiter of the listener that serves them.
    pub(crate) fn new(bounds: HttpLimiter) -> Self {
        // The registry adds `_total` to counters.
        let mut registry = Registry::default();
        let queues = ROWS.iter().map(|row| {
            let series = QueueGauge::default();
            registry.register(row.name, row.help, series.clone());
            series
        });
        let queues = queues.collect();
        let metrics = Self {
            queues,
            round: FloatGauge::default(),
            bound: Histogram::new([
                5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2560.0, 60_000.0,
            ]),
            evicted: Counter::default(),
            refused: Counter::default(),
            waiting: FloatGauge::default(),
            slotless: FloatGauge::default(),
            registry: Registry::default(),
        };
        registry.register(
            "kai_e2e_scheduling_latency_milliseconds",
            "Duration of the last scheduling round",
            metrics.round.clone(),
        );
        registry.register(
            "kai_task_bind_latency_milliseconds",
            "Time from the decision about a pod to its binding",
            metrics.bound.clone(),
        );
        registry.register(
            "kai_pod_group_evicted_pods",
            "Pods evicted to make room for other pods",
            metrics.evicted.clone(),
        );
        registry.register(
            "apportion_scheduler_refusals",
            "Pods that an agent refused",
            metrics.refused.clone(),
        );
        registry.register(
            "apportion_scheduler_waiting_pods",
            "Pods that wait to be scheduled",
            metrics.waiting.clone(),
        );
        registry.register(
            "apportion_scheduler_pods_without_slot",
            "Waiting pods that must be created again, because no webhook added a slot for their share",
            metrics.slotless.clone(),
        );
        registry.register_collector(Box::new(ListenerMetrics(bounds)));
        Self {
            registry,
            ..metrics
        }
    }

    /// Records the duration of a round.
    pub(crate) fn round(&self, took: Duration) {
        self.round.set(took.as_secs_f64() * 1000.0);
    }

    /// Records the time from a decision to its binding.
    pub(crate) fn bound(&self, took: Duration) {
        self.bound.observe(took.as_secs_f64() * 1000.0);
    }

    pub(crate) fn evicted(&self) {
        self.evicted.inc();
    }

    /// Counts a refusal by an agent.
    pub(crate) fn refused(&self) {
        self.refused.inc();
    }

    /// Sets the metrics of queues and waiting pods.
    pub(crate) fn cluster(&self, decided: &DecidedCluster<'_>, waiting: &[WaitingPod]) {
        self.waiting.set(waiting.len() as f64);
        let slotless = waiting
            .iter()
            .filter(|one| one.reason == WaitReason::NoSlot);
        self.slotless.set(slotless.count() as f64);
        for (row, series) in ROWS.iter().zip(&self.queues) {
            series.clear();
            for queue in decided.queues.all() {
                let name = || queue.uid.clone();
                let labels = QueueLabels {
                    queue_name: name(),
                    queue_metadata_name: name(),
                    queue_display_name: name(),
                };
                series.get_or_create(&labels).set((row.read)(queue));
            }
        }
    }

    /// All metrics as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        match prometheus_client::encoding::text::encode(&mut text, &self.registry) {
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
        let all = SchedulerMetrics::new(HttpLimiter::within(Duration::ZERO));
        let queue = QueueLabels {
            queue_name: String::new(),
            queue_metadata_name: String::new(),
            queue_display_name: String::new(),
        };
        for series in &all.queues {
            series.get_or_create(&queue).set(0.0);
        }
        let mut served = served(&all.text());
        assert!(served.len() > ROWS.len(), "{served:?}");
        for metric in &mut served {
            let labels = "queue_name, queue_metadata_name, queue_display_name";
            metric.labels = metric.labels.replace(labels, "…");
        }
        hold("metrics", "scheduler", &metrics(served));
    }

    #[test]
    fn the_chart_asks_for_what_is_served() {
        let chart = "../deploy/chart/apportion";
        let chart = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(chart);
        let metrics = SchedulerMetrics::new(HttpLimiter::within(Duration::ZERO));
        let text = metrics.text();
        for file in ["rules/scheduler.yaml", "dashboards/queues.json"] {
            let asking = std::fs::read_to_string(chart.join(file)).unwrap();
            let words = asking.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let asked: Vec<&str> = words
                .filter(|word| {
                    ["kai_", "apportion_scheduler_"]
                        .iter()
                        .any(|start| word.starts_with(start))
                })
                .collect();
            assert!(asked.len() > 10, "{file}: {asked:?}");
            for name in asked {
                let stem = name.trim_end_matches("_bucket").trim_end_matches("_count");
                let stem = stem.strip_suffix("_total").unwrap_or(stem);
                assert!(
                    text.contains(&format!("# HELP {stem} "))
                        || ROWS.iter().any(|row| row.name == stem),
                    "{file} asks for {name}"
                );
            }
        }
    }
}
