//! Converts the view to the status of a `GpuNode`. Pure: the status has nothing that is not in the view.

use std::collections::BTreeSet;

use apportion_abi::ContainerRef;
use apportion_crds::{CardHealth, GpuCard, GpuHolder, GpuNodeStatus, GpuTotals, LimitEnforcement};
use apportion_proto::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::telemetry::suspension::{is_reclaimed, sleeps};
use crate::telemetry::view::AgentView;

/// The condition that says whether shares can be granted.
pub(super) const READY: &str = "Ready";

const MIB: u64 = 1 << 20;

/// The status for the view. The transition time of its condition is a placeholder, which the writer replaces.
pub(super) fn of(view: &AgentView) -> GpuNodeStatus {
    let list = &view.list;
    let node = list.node.clone().unwrap_or_default();
    let cards: Vec<_> = list
        .cards
        .iter()
        .map(|found| card(found, &list.allocations))
        .collect();
    GpuNodeStatus {
        agent_version: node.agent_version,
        driver_version: node.driver_version,
        // The writer sets it.
        last_heartbeat_time: None,
        simulated: node.simulated,
        agent_address: None,
        overcommit_percent: Some(i64::from(node.overcommit_hundredths)).filter(|of| *of > 0),
        totals: totals(list, &cards),
        conditions: vec![ready(view, &cards)],
        enforcement: enforcement(view),
        cards,
    }
}

/// What keeps limits on the node.
fn enforcement(view: &AgentView) -> Vec<LimitEnforcement> {
    let node = view.list.node.clone().unwrap_or_default();
    let idle = view.idle.as_deref();
    let library = "programs with a share load it; it refuses at the share";
    let watch = if view.is_ready {
        "each share is compared with the driver's count"
    } else {
        "the NVIDIA driver does not answer"
    };
    let driver = match node.driver_limits.as_str() {
        "" => node.driver_limits_absence,
        backend => format!("{backend}; a container is refused a context above its share"),
    };
    let row = |name: &str, active: bool, message: &str| LimitEnforcement {
        name: name.to_owned(),
        active: active && idle.is_none(),
        message: idle.unwrap_or(message).to_owned(),
    };
    vec![
        row("Library", true, library),
        row("NvmlWatch", view.is_ready, watch),
        row("DriverLimits", !node.driver_limits.is_empty(), &driver),
    ]
}

fn card(card: &v1::Card, allocations: &[v1::Allocation]) -> GpuCard {
    GpuCard {
        uuid: card.uuid.clone(),
        model: card.model.clone(),
        index: card.index.into(),
        memory_bytes: signed(card.total_bytes),
        reserved_bytes: signed(card.reserved_bytes),
        allocatable_bytes: signed(card.allocatable_bytes),
        allocated_bytes: signed(card.granted_bytes),
        free_bytes: signed(card.free_bytes),
        used_bytes: signed(card.used_bytes),
        unmanaged_bytes: signed(card.unmanaged_bytes),
        health: match card.health() {
            v1::CardHealth::Unspecified => CardHealth::Unknown,
            v1::CardHealth::Healthy => CardHealth::Healthy,
            v1::CardHealth::Unhealthy => CardHealth::Unhealthy,
            v1::CardHealth::Lost => CardHealth::Lost,
        },
        holders: holders(&card.uuid, allocations),
    }
}

fn holders(uuid: &str, allocations: &[v1::Allocation]) -> Vec<GpuHolder> {
    let shares = allocations
        .iter()
        .flat_map(|of| of.grants.iter().map(move |grant| (of, grant)));
    let on_card = shares.filter(|(_, grant)| grant.card == uuid);
    on_card
        .map(|(allocation, grant)| {
            let holder = holder(&allocation.name, grant);
            let guaranteed_bytes = if is_reclaimed(allocation) {
                Some(0)
            } else {
                holder.guaranteed_bytes
            };
            GpuHolder {
                suspended: sleeps(allocation.suspension()),
                idle: allocation.idle,
                guaranteed_bytes,
                ..holder
            }
        })
        .collect()
}

fn holder(name: &str, grant: &v1::Grant) -> GpuHolder {
    let limit_bytes = signed(grant.ceiling_bytes);
    let guaranteed = signed(grant.guaranteed_bytes);
    let guaranteed_bytes = Some(guaranteed).filter(|guaranteed| *guaranteed < limit_bytes);
    match ContainerRef::of(name) {
        Some(workload) => GpuHolder {
            namespace: Some(workload.namespace.to_owned()),
            pod: Some(workload.pod.to_owned()),
            container: workload.container.to_owned(),
            limit_bytes,
            guaranteed_bytes,
            suspended: false,
            idle: false,
        },
        None => GpuHolder {
            namespace: None,
            pod: None,
            container: name.to_owned(),
            limit_bytes,
            guaranteed_bytes,
            suspended: false,
            idle: false,
        },
    }
}

fn totals(list: &v1::ListReply, cards: &[GpuCard]) -> GpuTotals {
    let models: BTreeSet<_> = cards.iter().map(|card| card.model.as_str()).collect();
    let models: Vec<_> = models.into_iter().collect();
    let healthy = cards
        .iter()
        .filter(|card| card.health == CardHealth::Healthy);
    let sum = |of: fn(&v1::Card) -> u64| amount(list.cards.iter().map(of).sum());
    GpuTotals {
        cards: count(cards.len()),
        healthy: count(healthy.count()),
        model: models.join(", "),
        holders: count(cards.iter().map(|card| card.holders.len()).sum()),
        allocatable: sum(|card| card.allocatable_bytes),
        allocated: sum(|card| card.granted_bytes),
        free: sum(|card| card.free_bytes),
        used: sum(|card| card.used_bytes),
    }
}

fn ready(view: &AgentView, cards: &[GpuCard]) -> Condition {
    let healthy = cards.iter().any(|card| card.health == CardHealth::Healthy);
    let (is_ready, reason, message) = match (view.is_ready, cards) {
        (false, _) if view.idle.is_some() => {
            (false, "NoDriver", view.idle.as_deref().unwrap_or_default())
        }
        (true, [_, ..]) if view.rival.is_some() => (
            false,
            "OtherDevicePlugin",
            view.rival.as_deref().unwrap_or_default(),
        ),
        (false, _) => (
            false,
            "DriverSilent",
            "the NVIDIA driver does not answer; existing shares keep their limits",
        ),
        (true, []) => (false, "NoCards", "the NVIDIA driver reports no GPUs"),
        (true, _) if healthy => (true, "Serving", "shares of the healthy GPUs can be granted"),
        (true, _) => (false, "NoHealthyCard", "no GPU is healthy"),
    };
    Condition {
        type_: READY.to_owned(),
        status: if is_ready { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: None,
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
    }
}

/// An amount in whole MiB or GiB, as a Kubernetes quantity.
fn amount(bytes: u64) -> String {
    match bytes / MIB {
        0 => "0".to_owned(),
        mib if mib % 1024 == 0 => format!("{}Gi", mib / 1024),
        mib => format!("{mib}Mi"),
    }
}

/// The API has no unsigned numbers, and no card has 2^63 bytes.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::view::AgentStats;

    fn view(is_ready: bool, health: v1::CardHealth) -> AgentView {
        let uuid = "GPU-1".to_owned();
        let grant = v1::Grant {
            card: uuid.clone(),
            limit_bytes: 2 * MIB,
            guaranteed_bytes: 2 * MIB,
            ceiling_bytes: 2 * MIB,
            ..v1::Grant::default()
        };
        let allocation = |name: &str| v1::Allocation {
            name: name.to_owned(),
            grants: vec![grant.clone()],
            ..v1::Allocation::default()
        };
        AgentView {
            list: v1::ListReply {
                cards: vec![v1::Card {
                    uuid: uuid.clone(),
                    model: "A".to_owned(),
                    allocatable_bytes: 1024 * MIB,
                    granted_bytes: 4 * MIB,
                    health: health.into(),
                    ..v1::Card::default()
                }],
                allocations: vec![allocation("team-a/train/main"), allocation("bare")],
                ..v1::ListReply::default()
            },
            sampled: None,
            is_ready,
            counts: AgentStats::default(),
            rival: None,
            idle: None,
        }
    }

    #[test]
    fn a_holder_that_may_burst_shows_its_two_numbers_and_not_what_it_has_now() {
        let mut view = view(true, v1::CardHealth::Healthy);
        let grant = &mut view.list.allocations[0].grants[0];
        (grant.guaranteed_bytes, grant.ceiling_bytes) = (MIB, 8 * MIB);
        let before = of(&view).cards[0].holders[0].clone();
        assert_eq!(before.guaranteed_bytes, Some(1 << 20));
        assert_eq!(before.limit_bytes, 8 << 20);
        view.list.allocations[0].grants[0].limit_bytes = 4 * MIB;
        assert_eq!(of(&view).cards[0].holders[0], before);
    }

    #[test]
    fn holders_are_named_by_pod_and_totals_add_up() {
        let status = of(&view(true, v1::CardHealth::Healthy));
        let holders = &status.cards[0].holders;
        assert_eq!(holders[0].namespace.as_deref(), Some("team-a"));
        assert_eq!(holders[0].pod.as_deref(), Some("train"));
        assert_eq!(holders[0].limit_bytes, 2 << 20);
        assert_eq!(holders[0].guaranteed_bytes, None);
        assert_eq!(
            (holders[1].pod.as_deref(), holders[1].container.as_str()),
            (None, "bare")
        );
        assert_eq!(status.totals.holders, 2);
        assert_eq!(status.totals.allocatable, "1Gi");
        assert_eq!(status.totals.allocated, "4Mi");
    }

    #[test]
    fn it_says_what_keeps_limits_and_why_something_does_not() {
        let shown = |view: &AgentView| {
            let rows = of(view)
                .enforcement
                .into_iter()
                .map(|row| (row.name, row.active, row.message));
            rows.collect::<Vec<_>>()
        };
        let mut view = view(true, v1::CardHealth::Healthy);
        view.list.node = Some(v1::Node {
            driver_limits_absence: "615 or newer is needed".to_owned(),
            ..v1::Node::default()
        });
        let rows = shown(&view);
        let active: Vec<_> = rows.iter().map(|row| (&*row.0, row.1)).collect();
        let expected = [
            ("Library", true),
            ("NvmlWatch", true),
            ("DriverLimits", false),
        ];
        assert_eq!(active, expected);
        assert_eq!(rows[2].2, "615 or newer is needed");
        view.list.node = Some(v1::Node {
            driver_limits: "misc".to_owned(),
            ..v1::Node::default()
        });
        let rows = shown(&view);
        assert!(rows[2].1 && rows[2].2.starts_with("misc; "), "{rows:?}");
        view.is_ready = false;
        assert!(!shown(&view)[1].1);
        let idle = shown(&AgentView::empty(Some("no driver".to_owned())));
        assert!(
            idle.iter().all(|row| !row.1 && row.2 == "no driver"),
            "{idle:?}"
        );
    }

    #[test]
    fn readiness_has_its_reason() {
        let reason = |view: &AgentView| {
            let ready = of(view).conditions.remove(0);
            (ready.status, ready.reason)
        };
        let healthy = v1::CardHealth::Healthy;
        let condition = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
        assert_eq!(reason(&view(true, healthy)), condition("True", "Serving"));
        assert_eq!(
            reason(&view(false, healthy)),
            condition("False", "DriverSilent")
        );
        let lost = view(true, v1::CardHealth::Lost);
        assert_eq!(reason(&lost), condition("False", "NoHealthyCard"));
        let mut shared = view(true, healthy);
        shared.rival = Some("another".to_owned());
        assert_eq!(reason(&shared), condition("False", "OtherDevicePlugin"));
        let idle = AgentView::empty(Some("no driver".to_owned()));
        assert_eq!(reason(&idle), condition("False", "NoDriver"));
        let mut bare = view(true, healthy);
        bare.list.cards.clear();
        assert_eq!(reason(&bare), condition("False", "NoCards"));
    }

    #[test]
    fn how_far_limits_may_exceed_a_gpu_is_published_in_percent() {
        let mut view = view(true, v1::CardHealth::Healthy);
        assert_eq!(of(&view).overcommit_percent, None, "zero is no factor");
        view.list.node = Some(v1::Node {
            overcommit_hundredths: 150,
            ..v1::Node::default()
        });
        assert_eq!(of(&view).overcommit_percent, Some(150));
    }
}
