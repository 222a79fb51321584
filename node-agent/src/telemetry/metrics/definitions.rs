//! The metrics, one row each. The exporter, the reference and the tests use this table. Names and base units follow
//! Prometheus' conventions, and the help text is one sentence.

use std::collections::BTreeMap;

use apportion_proto::v1;
use prometheus_client::metrics::histogram::Histogram;

use super::samples::*;
use super::snapshot::{ScrapeSnapshot, ShareLabels, ShareMetrics};

pub(super) struct AgentMetric {
    pub(super) name: &'static str,
    pub(super) kind: SeriesKind,
    pub(super) help: &'static str,
    of: SeriesSource,
}

#[derive(Clone, Copy)]
pub(super) enum SeriesKind {
    Gauge,
    Counter,
    Histogram,
}

/// What a metric has one series for.
enum SeriesSource {
    Node(fn(&ScrapeSnapshot) -> f64),
    /// Each card that reports it.
    Card(fn(&v1::Card) -> Option<f64>),
    /// Each share whose value is known.
    Share(fn(&ShareMetrics) -> Option<f64>),
    /// Each share and each value of one more label.
    ShareBy(&'static str, fn(&ShareMetrics) -> Vec<(&'static str, f64)>),
    /// Any other set of labels.
    Labels(&'static [&'static str], fn(&ScrapeSnapshot) -> Vec<Sample>),
    /// Each value of one label, as a histogram.
    Spread(&'static str, fn(&ScrapeSnapshot) -> &Spread),
}

/// Histograms by label value.
pub(super) type Spread = BTreeMap<&'static str, Histogram>;

const CARD_LABELS: [&str; 1] = ["gpu_uuid"];
const SHARE_LABELS: [&str; 4] = ["namespace", "pod", "container", "gpu_uuid"];

impl AgentMetric {
    pub(super) fn labels(&self) -> Vec<&'static str> {
        match self.of {
            SeriesSource::Node(_) => Vec::new(),
            SeriesSource::Card(_) => CARD_LABELS.to_vec(),
            SeriesSource::Share(_) => SHARE_LABELS.to_vec(),
            SeriesSource::ShareBy(label, _) => [&SHARE_LABELS[..], &[label]].concat(),
            SeriesSource::Labels(labels, _) => labels.to_vec(),
            SeriesSource::Spread(label, _) => vec![label],
        }
    }

    pub(super) fn samples(&self, facts: &ScrapeSnapshot) -> Vec<Sample> {
        match self.of {
            SeriesSource::Node(value) => vec![(Vec::new(), value(facts))],
            SeriesSource::Card(value) => facts
                .view
                .list
                .cards
                .iter()
                .filter_map(|card| Some((vec![card.uuid.clone()], value(card)?)))
                .collect(),
            SeriesSource::Share(value) => facts
                .shares
                .iter()
                .filter_map(|(name, share): &(ShareLabels, ShareMetrics)| {
                    Some((labels(name), value(share)?))
                })
                .collect(),
            SeriesSource::ShareBy(_, values) => facts
                .shares
                .iter()
                .flat_map(|of| each(of, values))
                .collect(),
            SeriesSource::Labels(_, samples) => samples(facts),
            SeriesSource::Spread(..) => Vec::new(),
        }
    }

    /// The histograms, for a row of that kind.
    pub(super) fn spread<'a>(&self, facts: &'a ScrapeSnapshot) -> Option<&'a Spread> {
        match self.of {
            SeriesSource::Spread(_, spread) => Some(spread(facts)),
            SeriesSource::Node(_)
            | SeriesSource::Card(_)
            | SeriesSource::Share(_)
            | SeriesSource::ShareBy(..)
            | SeriesSource::Labels(..) => None,
        }
    }
}

fn labels(name: &ShareLabels) -> Vec<String> {
    let of = &name.container;
    let names = [&of.namespace, &of.pod, &of.container, &name.gpu_uuid];
    names.map(Clone::clone).to_vec()
}

fn each(
    (name, share): &(ShareLabels, ShareMetrics),
    values: fn(&ShareMetrics) -> Vec<(&'static str, f64)>,
) -> Vec<Sample> {
    values(share)
        .into_iter()
        .map(|(word, value): (&str, f64)| {
            let mut labels = labels(name);
            labels.push(word.to_owned());
            (labels, value)
        })
        .collect()
}

/// The number of series of one share.
pub(super) fn per_share() -> usize {
    ROWS.iter()
        .map(|row| match row.of {
            SeriesSource::Share(_) => 1,
            SeriesSource::ShareBy(_, values) => values(&ShareMetrics::default()).len(),
            SeriesSource::Node(_)
            | SeriesSource::Card(_)
            | SeriesSource::Labels(..)
            | SeriesSource::Spread(..) => 0,
        })
        .sum()
}

macro_rules! rows {
    ($($kind:ident $name:literal $help:literal $of:expr;)*) => {
        &[$(AgentMetric { name: $name, kind: SeriesKind::$kind, help: $help, of: $of }),*]
    };
}

pub(super) const ROWS: &[AgentMetric] = rows! {
    Gauge "apportion_build_info" "Version of the agent"
        SeriesSource::Labels(&["version"], |f| vec![(vec![node(f).agent_version], 1.0)]);
    Gauge "apportion_node_info" "NVIDIA driver and offender policy of the agent"
        SeriesSource::Labels(&["driver", "simulated", "policy"], node_info);
    Gauge "apportion_ready" "Whether the NVIDIA driver answers and the agent serves requests"
        SeriesSource::Node(|f| flag(f.view.is_ready));
    Gauge "apportion_idle" "Whether the node has no NVIDIA driver with GPUs, and the agent waits for one"
        SeriesSource::Node(|f| flag(f.view.idle.is_some()));
    Gauge "apportion_snapshot_age_seconds" "Age of the NVML sample that these metrics come from"
        SeriesSource::Node(|f| f.view.sampled.map_or(f64::INFINITY, |at| at.elapsed().as_secs_f64()));
    Gauge "apportion_ledger_generation" "Number of changes of the ledger" SeriesSource::Node(|f| number(node(f).generation));
    Gauge "apportion_adopted_grants" "Allocations taken over from an earlier agent"
        SeriesSource::Node(|f| number(f.view.counts.adopted));
    Gauge "apportion_orphaned_grants" "Accounts without a record whose processes are running"
        SeriesSource::Node(orphaned);
    Counter "apportion_scheduler_disagreements_total" "Refusals of pods that were bound to this node without an allocation in the ledger"
        SeriesSource::Labels(&["kind"], disagreements);
    Counter "apportion_grants_total" "Allocation requests, by result and reason of refusal"
        SeriesSource::Labels(&["result", "reason"], grants);
    Counter "apportion_offences_total" "Processes that exceeded or bypassed a limit, by kind"
        SeriesSource::Labels(&["kind"], offences);
    Gauge "apportion_slots" "Device plugin slots, by state"
        SeriesSource::Labels(&["state"], slots);
    Gauge "apportion_cdi_enabled" "Whether containers get their GPUs by CDI (1) or by device files of slots (0)"
        SeriesSource::Labels(&[], cdi_enabled);
    Gauge "apportion_kubelet_registered" "Whether the device plugin of the resource is registered with the kubelet"
        SeriesSource::Labels(&["resource"], registered);
    Histogram "apportion_prestart_duration_seconds" "Time that PreStartContainer took, by result"
        SeriesSource::Spread("result", |f| &f.view.counts.kubelet.container_starts);
    Counter "apportion_identity_lookups_total" "Lookups of slot owners at the kubelet, by source and result"
        SeriesSource::Labels(&["source", "result"], lookups);
    Gauge "apportion_nri_connected" "Whether the agent is connected to the container runtime as an NRI plugin"
        SeriesSource::Labels(&[], nri_connected);
    Counter "apportion_nri_verdicts_total" "Containers checked through NRI, by verdict and reason"
        SeriesSource::Labels(&["verdict", "reason"], nri_verdicts);
    Gauge "apportion_driver_limits_active" "Whether the driver keeps memory limits of containers, and who does it: dmem (the kernel) or misc (the driver)"
        SeriesSource::Labels(&["backend"], driver_limits_active);
    Gauge "apportion_driver_limited_containers" "Containers that have a memory limit of the driver"
        SeriesSource::Node(|f| number(f.view.counts.driver_limits.containers as u64));
    Counter "apportion_driver_limit_failures_total" "Memory limits of containers that the driver refused"
        SeriesSource::Node(|f| number(f.view.counts.driver_limits.failures));
    Counter "apportion_suspensions_total" "Suspensions and resumes of programs, by clients, for guarantees and because they were idle, by action and result"
        SeriesSource::Labels(&["action", "result"], suspensions);
    Histogram "apportion_suspension_duration_seconds" "Time that it took to put programs to sleep or to wake them, by action"
        SeriesSource::Spread("action", |f| &f.view.counts.suspensions.durations);
    Counter "apportion_idle_suspensions_total" "Suspensions of shares that were idle and resumes of those that were called again, by action and result"
        SeriesSource::Labels(&["action", "result"], idle_suspensions);
    Histogram "apportion_idle_wake_duration_seconds" "Time that calls waited which woke an idle share, by whether its memory was free: at_once or after_waiting"
        SeriesSource::Spread("result", |f| &f.view.counts.idle.wakes);
    Counter "apportion_guarantee_calls_total" "New allocations whose guarantee was used by others, by result"
        SeriesSource::Labels(&["result"], guarantee_calls);
    Histogram "apportion_guarantee_call_duration_seconds" "Time until a new allocation got a guarantee that was used by others, by result"
        SeriesSource::Spread("result", |f| &f.view.counts.calls.durations);
    Gauge "apportion_suspended_shares" "Shares that are suspended, by cause" SeriesSource::Labels(&["cause"], suspended_shares);
    Gauge "apportion_suspended_bytes" "GPU memory of suspended shares that is in the host, by cause"
        SeriesSource::Labels(&["cause"], suspended_bytes);
    Histogram "apportion_burst_answer_duration_seconds" "Time to answer a program that asks for a larger allowance, by result"
        SeriesSource::Spread("result", |f| &f.view.counts.burst_answers);
    Counter "apportion_series_dropped_total" "Series left out of scrapes because there were too many"
        SeriesSource::Node(|f| number(f.dropped));
    Counter "apportion_connections_dropped_total" "Connections dropped because the listener had too many"
        SeriesSource::Labels(&["listener"], connections_dropped);
    Gauge "apportion_gpu_info" "Model and index of the GPU"
        SeriesSource::Labels(&["gpu_uuid", "model", "index"], gpu_info);
    Gauge "apportion_gpu_healthy" "Whether the GPU is healthy and can be granted"
        SeriesSource::Card(|c| Some(flag(c.health() == v1::CardHealth::Healthy)));
    Counter "apportion_gpu_errors_total" "Errors that the GPU reported, by fault"
        SeriesSource::Labels(&["gpu_uuid", "fault"], faults);
    Gauge "apportion_gpu_recovery_action" "Whether the driver says that the GPU needs this action to recover"
        SeriesSource::Labels(&["gpu_uuid", "action"], recoveries);
    Gauge "apportion_gpu_throttled" "Whether this reason lowers the clocks of the GPU"
        SeriesSource::Labels(&["gpu_uuid", "reason"], throttled);
    Gauge "apportion_gpu_memory_total_bytes" "Physical memory of the GPU" SeriesSource::Card(|c| some(c.total_bytes));
    Gauge "apportion_gpu_memory_reserved_bytes" "Memory that the driver reserves"
        SeriesSource::Card(|c| some(c.reserved_bytes));
    Gauge "apportion_gpu_memory_allocatable_bytes" "Memory that can be granted: total less reserved"
        SeriesSource::Card(|c| some(c.allocatable_bytes));
    Gauge "apportion_gpu_memory_granted_bytes" "Sum of what is guaranteed on the GPU"
        SeriesSource::Card(|c| some(c.granted_bytes));
    Gauge "apportion_gpu_memory_free_bytes" "Memory that can still be granted" SeriesSource::Card(|c| some(c.free_bytes));
    Gauge "apportion_gpu_memory_used_bytes" "Memory in use, by NVML" SeriesSource::Card(|c| some(c.used_bytes));
    Gauge "apportion_gpu_memory_unmanaged_bytes" "Memory of processes without an allocation"
        SeriesSource::Card(|c| some(c.unmanaged_bytes));
    Gauge "apportion_gpu_context_reserve_bytes" "Memory charged for the first CUDA context of a process"
        SeriesSource::Card(|c| some(c.context_reserve_bytes));
    Gauge "apportion_gpu_utilisation_ratio" "Share of time in which a kernel ran"
        SeriesSource::Card(|c| c.utilisation_percent.map(ratio));
    Gauge "apportion_reconcile_drift_bytes" "Memory use of the GPU that neither accounts nor unmanaged processes explain"
        SeriesSource::Labels(&CARD_LABELS, drift);
    Gauge "apportion_container_info" "UID of the pod of the container"
        SeriesSource::Labels(&["namespace", "pod", "container", "pod_uid"], container_info);
    Gauge "apportion_container_processes" "Running processes of the container"
        SeriesSource::Labels(&["namespace", "pod", "container"], processes);
    Gauge "apportion_container_suspended" "Whether its processes sleep and its GPU memory is free for others"
        SeriesSource::Labels(&["namespace", "pod", "container"], suspended);
    Gauge "apportion_container_memory_limit_bytes" "Memory limit of all its processes together"
        SeriesSource::Share(|s| some(s.limit));
    Gauge "apportion_container_memory_guaranteed_bytes" "Memory that is always there for its processes"
        SeriesSource::Share(|s| some(s.guaranteed));
    Gauge "apportion_container_memory_allowance_bytes" "Memory that its processes may use now: from what is guaranteed up to the limit"
        SeriesSource::Share(|s| some(s.allowance));
    Gauge "apportion_container_memory_used_bytes" "Memory in use, by source"
        SeriesSource::ShareBy("source", |s| vec![("account", number(s.used)), ("nvml", number(s.nvml))]);
    Gauge "apportion_container_memory_peak_bytes" "Highest memory use so far" SeriesSource::Share(|s| some(s.peak));
    Gauge "apportion_container_memory_context_bytes" "Memory charged for contexts" SeriesSource::Share(|s| some(s.context));
    Gauge "apportion_container_memory_module_bytes" "Memory charged for code and its variables" SeriesSource::Share(|s| some(s.module));
    Gauge "apportion_container_memory_buffer_bytes" "Memory charged for everything else" SeriesSource::Share(|s| some(s.buffer));
    Gauge "apportion_container_memory_overhead_bytes" "Memory that the driver uses beyond what was charged"
        SeriesSource::Share(|s| some(s.overhead));
    Counter "apportion_container_memory_denied_total" "Refused charges, by family of calls"
        SeriesSource::ShareBy("api", denied);
    Counter "apportion_container_memory_denied_bytes_total" "Bytes of all refused charges"
        SeriesSource::Share(|s| some(s.denied_bytes));
    Gauge "apportion_container_memory_last_denied_bytes" "Bytes of the last refused charge"
        SeriesSource::Share(|s| some(s.last_denied));
    Gauge "apportion_container_utilisation_ratio" "Share of time in which a kernel of its processes ran, by NVML"
        SeriesSource::Share(|s| s.utilisation.map(ratio));
    Gauge "apportion_container_enforcement_state" "Whether the limit is enforced, by state"
        SeriesSource::ShareBy("state", states);
};
