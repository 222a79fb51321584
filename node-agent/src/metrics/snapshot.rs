//! What a scrape shows, gathered once: the view, and its shares by the labels that they are shown with.

use std::collections::BTreeMap;
use std::sync::Arc;

use apportion_abi::ContainerRef;
use apportion_proto::v1;

use crate::view::AgentView;

/// Everything that rows are made of.
#[derive(Debug)]
pub(super) struct ScrapeSnapshot {
    pub(super) view: Arc<AgentView>,
    pub(super) shares: Vec<(ShareLabels, ShareMetrics)>,
    /// Series that were left out, in this scrape and those before it.
    pub(super) dropped: u64,
    /// Connections that each listener dropped.
    pub(super) connections: Vec<(&'static str, u64)>,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ContainerLabels {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
}

/// A container's share of a card.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ShareLabels {
    pub(super) container: ContainerLabels,
    pub(super) gpu_uuid: String,
}

/// What a container has of a card.
#[derive(Clone, Debug, Default)]
pub(super) struct ShareMetrics {
    pub(super) limit: u64,
    pub(super) used: u64,
    pub(super) nvml: u64,
    pub(super) peak: u64,
    pub(super) context: u64,
    pub(super) overhead: u64,
    pub(super) module: u64,
    /// Claimed for neither contexts nor code.
    pub(super) buffer: u64,
    /// By the family of calls.
    pub(super) denied: BTreeMap<String, u64>,
    pub(super) denied_bytes: u64,
    pub(super) last_denied: u64,
    /// Of the card's time, in per cent.
    pub(super) utilisation: Option<u32>,
    /// The allocations' states.
    pub(super) states: Vec<v1::EnforcementState>,
}

impl ScrapeSnapshot {
    /// The allocations of which something is shown.
    pub(super) fn shown(&self) -> impl Iterator<Item = &v1::Allocation> {
        self.view.list.allocations.iter().take(super::MOST_SHARES)
    }
}

/// The names under which an allocation's container is shown.
pub(super) fn container(allocation: &v1::Allocation) -> ContainerLabels {
    match ContainerRef::of(&allocation.name) {
        Some(workload) => ContainerLabels {
            namespace: workload.namespace.to_owned(),
            pod: workload.pod.to_owned(),
            container: workload.container.to_owned(),
        },
        // No pod: what people call the program, and a number, because two programs may be called the same. The
        // whole id names the account's folder, and is of no use to who reads metrics.
        None => ContainerLabels {
            namespace: String::new(),
            pod: String::new(),
            container: format!("{}/{}", allocation.name, serial(&allocation.id)),
        },
    }
}

/// The number of an allocation, which no other of this agent has.
fn serial(id: &str) -> &str {
    id.rsplit_once('-').map_or(id, |(_, serial)| serial)
}

/// The first `most` shares, and how many there are beyond. A pod that ends while its successor of the
/// same name starts is one with it: a series must not be there twice.
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
                all.entry(name).or_default().add(grant, utilisation);
            }
        }
    }
    (all.into_iter().collect(), left_out)
}

/// What the processes of `allocation` take together of the card's time; `None` where nobody says it.
fn utilisation(card: &str, allocation: &v1::Allocation) -> Option<u32> {
    let uses = allocation.processes.iter().flat_map(|of| &of.uses);
    let here = uses.filter(|used| used.card == card);
    here.filter_map(|used| used.utilisation_percent)
        .reduce(|a, b| a + b)
}

impl ShareMetrics {
    fn add(&mut self, grant: &v1::Grant, utilisation: Option<u32>) {
        self.limit += grant.limit_bytes;
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
        // Processes' parts are rounded each by itself.
        let sum = self.utilisation.into_iter().chain(utilisation);
        self.utilisation = sum.reduce(|a, b| (a + b).min(100));
        self.states.push(grant.enforcement());
    }
}
