//! The data of one scrape: the view, and its shares by their labels.

use std::collections::BTreeMap;
use std::sync::Arc;

use apportion_abi::ContainerRef;
use apportion_proto::v1;

use crate::telemetry::view::AgentView;

/// The most shares that are exported. A node has fewer; more are a bug that must not overload Prometheus.
pub(super) const MOST_SHARES: usize = 1024;

/// The input of all rows.
#[derive(Debug)]
pub(super) struct ScrapeSnapshot {
    pub(super) view: Arc<AgentView>,
    pub(super) shares: Vec<(ShareLabels, ShareMetrics)>,
    /// Series left out in this scrape and all before.
    pub(super) dropped: u64,
    /// Connections that each listener dropped.
    pub(super) connections: Vec<(&'static str, u64)>,
}

/// The labels of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ContainerLabels {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
}

/// The labels of a container's share of a card.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ShareLabels {
    pub(super) container: ContainerLabels,
    pub(super) gpu_uuid: String,
}

/// The values of a share.
#[derive(Clone, Debug, Default)]
pub(super) struct ShareMetrics {
    /// The limit as it was asked for.
    pub(super) limit: u64,
    pub(super) guaranteed: u64,
    /// What may be used now.
    pub(super) allowance: u64,
    pub(super) used: u64,
    /// What of it is on the card: all, or for a suspended share what NVML says.
    pub(super) resident: u64,
    pub(super) nvml: u64,
    pub(super) peak: u64,
    pub(super) context: u64,
    pub(super) overhead: u64,
    pub(super) module: u64,
    /// Claimed for neither contexts nor code.
    pub(super) buffer: u64,
    /// By family of calls.
    pub(super) denied: BTreeMap<String, u64>,
    pub(super) denied_bytes: u64,
    pub(super) last_denied: u64,
    /// Per cent of the card's time.
    pub(super) utilisation: Option<u32>,
    /// The states of its allocations.
    pub(super) states: Vec<v1::EnforcementState>,
}

impl ScrapeSnapshot {
    /// The allocations that are exported.
    pub(super) fn exported(&self) -> impl Iterator<Item = &v1::Allocation> {
        self.view.list.allocations.iter().take(MOST_SHARES)
    }
}

/// The labels of an allocation's container.
pub(super) fn container(allocation: &v1::Allocation) -> ContainerLabels {
    match ContainerRef::of(&allocation.name) {
        Some(workload) => ContainerLabels {
            namespace: workload.namespace.to_owned(),
            pod: workload.pod.to_owned(),
            container: workload.container.to_owned(),
        },
        // Without a pod: the program's name and the allocation's number, because two programs may have one name. The
        // full id would only name the account's folder.
        None => ContainerLabels {
            namespace: String::new(),
            pod: String::new(),
            container: format!("{}/{}", allocation.name, serial(&allocation.id)),
        },
    }
}

/// The number of an allocation, which is unique for this agent.
fn serial(id: &str) -> &str {
    id.rsplit_once('-').map_or(id, |(_, serial)| serial)
}

/// The first `most` shares, and how many more there are. A pod that ends and its successor of the same name are
/// merged, because a series must not appear twice.
pub(super) fn shares(
    allocations: &[v1::Allocation],
    most: usize,
) -> (Vec<(ShareLabels, ShareMetrics)>, usize) {
    let mut all: BTreeMap<ShareLabels, ShareMetrics> = BTreeMap::new();
    let mut left_out = 0;
    for allocation in allocations {
        for grant in &allocation.grants {
            let name = ShareLabels {
                container: container(allocation),
                gpu_uuid: grant.card.clone(),
            };
            if all.len() >= most && !all.contains_key(&name) {
                left_out += 1;
            } else {
                let utilisation = utilisation(&grant.card, allocation);
                let is_suspended = allocation.suspension() == v1::SuspensionState::Suspended;
                let share = all.entry(name).or_default();
                share.add(grant, utilisation);
                share.resident += if is_suspended {
                    grant.nvml_bytes
                } else {
                    grant.used_bytes
                };
            }
        }
    }
    (all.into_iter().collect(), left_out)
}

/// The time on the card of all processes of `allocation`; `None` if the driver does not report it.
fn utilisation(card: &str, allocation: &v1::Allocation) -> Option<u32> {
    let uses = allocation.processes.iter().flat_map(|of| &of.uses);
    let here = uses.filter(|used| used.card == card);
    here.filter_map(|used| used.utilisation_percent)
        .reduce(|a, b| a + b)
}

impl ShareMetrics {
    fn add(&mut self, grant: &v1::Grant, utilisation: Option<u32>) {
        self.limit += grant.ceiling_bytes;
        self.guaranteed += grant.guaranteed_bytes;
        self.allowance += grant.limit_bytes;
        self.used += grant.used_bytes;
        self.nvml += grant.nvml_bytes;
        self.peak += grant.peak_bytes;
        self.context += grant.context_bytes;
        self.overhead += grant.overhead_bytes;
        self.module += grant.module_bytes;
        let explained = grant.context_bytes.saturating_add(grant.module_bytes);
        self.buffer += grant.claimed_bytes.saturating_sub(explained);
        for (api, count) in &grant.denied_by_api {
            *self.denied.entry(api.clone()).or_default() += count;
        }
        self.denied_bytes += grant.denied_bytes;
        self.last_denied = grant.last_denied_bytes;
        // Each process's value is rounded, so the sum can exceed 100.
        let sum = self.utilisation.into_iter().chain(utilisation);
        self.utilisation = sum.reduce(|a, b| (a + b).min(100));
        self.states.push(grant.enforcement());
    }
}
