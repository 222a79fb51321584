//! The agent's list for programs: the JSON of `top` and `gpus`.
//!
//! Amounts are bytes, times are milliseconds since the Unix epoch. Fields are added, never renamed.

use apportion_proto::v1::{self, holder::Kind};
use serde::Serialize;

use crate::cards;

#[derive(Debug, Serialize)]
pub(crate) struct AgentReport {
    node: ReportedNode,
    cards: Vec<ReportedCard>,
    allocations: Vec<ReportedAllocation>,
    sampled_at_ms: u64,
}

#[derive(Debug, Serialize)]
struct ReportedNode {
    agent_version: String,
    driver_version: String,
    simulated: bool,
    generation: u64,
    instance_dir: String,
    metrics_address: String,
    policy: String,
    pid: u32,
}

#[derive(Debug, Serialize)]
pub(crate) struct ReportedCard {
    uuid: String,
    model: String,
    index: u32,
    total_bytes: u64,
    reserved_bytes: u64,
    allocatable_bytes: u64,
    granted_bytes: u64,
    free_bytes: u64,
    used_bytes: u64,
    unmanaged_bytes: u64,
    health: String,
    utilisation_percent: Option<u32>,
    context_reserve_bytes: u64,
}

#[derive(Debug, Serialize)]
struct ReportedAllocation {
    id: String,
    name: String,
    state: String,
    suspension: String,
    /// Whether the agent has suspended it for a guarantee, and wakes it.
    called_in: bool,
    burst_weight: f64,
    burst_priority: i32,
    /// Whether the agent has suspended it because it was idle, and wakes it when it is called.
    idle: bool,
    /// Whether it was called and waits for its memory.
    waits_to_wake: bool,
    /// After how long without a CUDA call it is suspended; 0 for never.
    suspend_when_idle_ms: u64,
    holder: Option<ReportedHolder>,
    created_at_ms: u64,
    expires_at_ms: Option<u64>,
    account_dir: String,
    enforcement: String,
    grants: Vec<ReportedGrant>,
    processes: Vec<ReportedProcess>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum ReportedHolder {
    Pid(u32),
    PodUid(String),
    Claim(ReportedClaim),
}

#[derive(Debug, Serialize)]
struct ReportedClaim {
    uid: String,
    name: String,
}

#[derive(Debug, Serialize)]
struct ReportedGrant {
    card: String,
    guaranteed_bytes: u64,
    limit_bytes: u64,
    allowance_bytes: u64,
    used_bytes: u64,
    claimed_bytes: u64,
    overhead_bytes: u64,
    context_bytes: u64,
    peak_bytes: u64,
    denied_count: u64,
    denied_bytes: u64,
    last_denied_bytes: u64,
    nvml_bytes: u64,
    enforcement: String,
}

#[derive(Debug, Serialize)]
struct ReportedProcess {
    pid: u32,
    name: String,
    uses: Vec<ReportedProcessUse>,
}

#[derive(Debug, Serialize)]
struct ReportedProcessUse {
    card: String,
    claimed_bytes: u64,
    nvml_bytes: Option<u64>,
    utilisation_percent: Option<u32>,
}

/// The name of an enum's value in lower case, without the common prefix.
pub(crate) fn lower(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix)
        .unwrap_or(name)
        .to_ascii_lowercase()
}

impl AgentReport {
    /// The report of `list`.
    pub(crate) fn new(list: v1::ListReply) -> Self {
        Self {
            node: list.node.unwrap_or_default().into(),
            cards: list.cards.into_iter().map(Into::into).collect(),
            allocations: list.allocations.into_iter().map(Into::into).collect(),
            sampled_at_ms: list.sampled_at_ms,
        }
    }

    pub(crate) fn cards(self) -> Vec<ReportedCard> {
        self.cards
    }
}

impl From<v1::Node> for ReportedNode {
    fn from(node: v1::Node) -> Self {
        Self {
            policy: lower(node.policy().as_str_name(), "OFFENDER_POLICY_"),
            agent_version: node.agent_version,
            driver_version: node.driver_version,
            simulated: node.simulated,
            generation: node.generation,
            instance_dir: node.instance_dir,
            metrics_address: node.metrics_address,
            pid: node.pid,
        }
    }
}

impl From<v1::Card> for ReportedCard {
    fn from(card: v1::Card) -> Self {
        Self {
            health: lower(card.health().as_str_name(), "CARD_HEALTH_"),
            uuid: card.uuid,
            model: card.model,
            index: card.index,
            total_bytes: card.total_bytes,
            reserved_bytes: card.reserved_bytes,
            allocatable_bytes: card.allocatable_bytes,
            granted_bytes: card.granted_bytes,
            free_bytes: card.free_bytes,
            used_bytes: card.used_bytes,
            unmanaged_bytes: card.unmanaged_bytes,
            utilisation_percent: card.utilisation_percent,
            context_reserve_bytes: card.context_reserve_bytes,
        }
    }
}

impl From<v1::Allocation> for ReportedAllocation {
    fn from(allocation: v1::Allocation) -> Self {
        let holder = allocation.holder.clone().and_then(|holder| holder.kind);
        Self {
            state: lower(allocation.state().as_str_name(), "ALLOCATION_STATE_"),
            called_in: allocation.called_in,
            burst_weight: cards::weight(&allocation),
            burst_priority: allocation.burst_priority(),
            idle: allocation.idle,
            waits_to_wake: allocation.waits_to_wake,
            suspend_when_idle_ms: allocation.suspend_when_idle_ms,
            suspension: lower(allocation.suspension().as_str_name(), "SUSPENSION_STATE_"),
            enforcement: lower(allocation.enforcement().as_str_name(), "ENFORCEMENT_STATE_"),
            holder: holder.map(|kind| match kind {
                Kind::Pid(pid) => ReportedHolder::Pid(pid),
                Kind::PodUid(uid) => ReportedHolder::PodUid(uid),
                Kind::Claim(claim) => ReportedHolder::Claim(ReportedClaim {
                    uid: claim.uid,
                    name: claim.name,
                }),
            }),
            id: allocation.id,
            name: allocation.name,
            created_at_ms: allocation.created_at_ms,
            expires_at_ms: allocation.expires_at_ms,
            account_dir: allocation.account_dir,
            grants: allocation.grants.into_iter().map(Into::into).collect(),
            processes: allocation.processes.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<v1::Grant> for ReportedGrant {
    fn from(grant: v1::Grant) -> Self {
        Self {
            enforcement: lower(grant.enforcement().as_str_name(), "ENFORCEMENT_STATE_"),
            guaranteed_bytes: cards::guaranteed(&grant).0,
            limit_bytes: cards::ceiling(&grant).0,
            card: grant.card,
            allowance_bytes: grant.limit_bytes,
            used_bytes: grant.used_bytes,
            claimed_bytes: grant.claimed_bytes,
            overhead_bytes: grant.overhead_bytes,
            context_bytes: grant.context_bytes,
            peak_bytes: grant.peak_bytes,
            denied_count: grant.denied_count,
            denied_bytes: grant.denied_bytes,
            last_denied_bytes: grant.last_denied_bytes,
            nvml_bytes: grant.nvml_bytes,
        }
    }
}

impl From<v1::Process> for ReportedProcess {
    fn from(process: v1::Process) -> Self {
        let uses = process.uses.into_iter().map(|used| ReportedProcessUse {
            card: used.card,
            claimed_bytes: used.claimed_bytes,
            nvml_bytes: used.nvml_bytes,
            utilisation_percent: used.utilisation_percent,
        });
        Self {
            pid: process.pid,
            name: process.name,
            uses: uses.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enums_are_words_and_holders_say_their_kind() {
        let allocation = v1::Allocation {
            holder: Some(v1::Holder {
                kind: Some(Kind::Pid(7)),
            }),
            state: v1::AllocationState::Draining.into(),
            burst_weight_thousandths: Some(2500),
            ..v1::Allocation::default()
        };
        let list = v1::ListReply {
            allocations: vec![allocation],
            ..v1::ListReply::default()
        };
        let json = serde_json::to_value(AgentReport::new(list)).unwrap();
        assert_eq!(json["allocations"][0]["state"], "draining");
        assert_eq!(json["allocations"][0]["holder"]["pid"], 7);
        assert_eq!(json["allocations"][0]["burst_weight"], 2.5);
    }
}
