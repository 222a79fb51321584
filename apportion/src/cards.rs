//! Converts the agent's list for the policy.

use apportion_abi::{BurstWeight, Bytes, CardCapacity, CardUuid, Holder};
use apportion_exit::CommandFailure;
use apportion_policy::CandidateCard;
use apportion_proto::v1::{self, CardHealth, ListReply, SuspensionState};

/// The cards of `list` with their holders. A card whose UUID can't be read is left out.
pub(crate) fn for_policy(list: &ListReply) -> Vec<CandidateCard> {
    list.cards
        .iter()
        .filter_map(|card| one(card, list))
        .collect()
}

fn one(card: &v1::Card, list: &ListReply) -> Option<CandidateCard> {
    let shares = list.allocations.iter().flat_map(|allocation| {
        let held = allocation
            .grants
            .iter()
            .filter(|grant| grant.card == card.uuid);
        let holders = held.map(|grant| Holder {
            name: allocation.name.clone(),
            bytes: held_by(allocation, grant),
        });
        holders.filter(|holder| holder.bytes > Bytes::ZERO)
    });
    Some(CandidateCard {
        uuid: card.uuid.parse().ok()?,
        capacity: capacity(card),
        holders: shares.collect(),
        unmanaged: Bytes(card.unmanaged_bytes),
        is_healthy: card.health() == CardHealth::Healthy,
    })
}

/// What nobody else can get because of a grant. A suspended one holds what the driver still reports, and its guarantee if
/// the agent has suspended it for somebody else, or if it is a pod: its scheduler counts its guarantee.
fn held_by(allocation: &v1::Allocation, grant: &v1::Grant) -> Bytes {
    let left = Bytes(grant.nvml_bytes);
    match allocation.suspension() {
        SuspensionState::Suspended if allocation.called_in || is_of_pod(allocation) => {
            left.max(guaranteed(grant))
        }
        SuspensionState::Suspended => left,
        SuspensionState::Unspecified
        | SuspensionState::Running
        | SuspensionState::Suspending
        | SuspensionState::Resuming => firm(grant),
    }
}

fn is_of_pod(allocation: &v1::Allocation) -> bool {
    let holder = allocation.holder.as_ref().and_then(|of| of.kind.as_ref());
    matches!(holder, Some(v1::holder::Kind::PodUid(_)))
}

/// The list as it would be if no program used more than its guarantee: what a guarantee that is called in can get.
pub(crate) fn without_bursts(list: &ListReply) -> ListReply {
    let mut list = list.clone();
    let grants = list.allocations.iter_mut().flat_map(|of| &mut of.grants);
    for grant in grants.filter(|grant| is_elastic(grant)) {
        grant.limit_bytes = guaranteed(grant).0;
    }
    list
}

/// The weight of an allocation beside others that burst. Older agents treat all alike.
pub(crate) fn weight(allocation: &v1::Allocation) -> f64 {
    let usual = BurstWeight::default().thousandths();
    let thousandths = allocation.burst_weight_thousandths.unwrap_or(usual);
    f64::from(thousandths) / 1000.0
}

/// What is guaranteed by a grant. Older agents only say the limit.
pub(crate) fn guaranteed(grant: &v1::Grant) -> Bytes {
    match grant.guaranteed_bytes {
        0 => Bytes(grant.limit_bytes),
        guaranteed => Bytes(guaranteed),
    }
}

/// The limit of a grant as it was asked for.
pub(crate) fn ceiling(grant: &v1::Grant) -> Bytes {
    Bytes(grant.limit_bytes.max(grant.ceiling_bytes))
}

/// Whether the limit is above what is guaranteed.
pub(crate) fn is_elastic(grant: &v1::Grant) -> bool {
    ceiling(grant) > guaranteed(grant)
}

/// What nobody else can get because of a grant: all of it, or what is guaranteed and what is used above that.
fn firm(grant: &v1::Grant) -> Bytes {
    if !is_elastic(grant) {
        return Bytes(grant.limit_bytes);
    }
    let used = grant.used_bytes.max(grant.nvml_bytes);
    guaranteed(grant).max(Bytes(used.min(grant.limit_bytes)))
}

/// Who uses how much above what is guaranteed, most first.
pub(crate) fn bursts(list: &ListReply) -> Vec<Holder> {
    let mut bursts = Vec::new();
    for allocation in &list.allocations {
        for grant in &allocation.grants {
            let bytes = firm(grant).minus(guaranteed(grant));
            if is_elastic(grant) && bytes > Bytes::ZERO {
                let name = allocation.name.clone();
                bursts.push(Holder { name, bytes });
            }
        }
    }
    bursts.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    bursts
}

/// The capacity of a card.
pub(crate) fn capacity(card: &v1::Card) -> CardCapacity {
    CardCapacity {
        total: Bytes(card.total_bytes),
        reserved: Bytes(card.reserved_bytes),
    }
}

/// Keeps the cards that `wanted` names; all of them if it names none.
pub(crate) fn only(
    cards: Vec<CandidateCard>,
    wanted: &[CardUuid],
) -> Result<Vec<CandidateCard>, CommandFailure> {
    if wanted.is_empty() {
        return Ok(cards);
    }
    if let Some(unknown) = wanted
        .iter()
        .find(|uuid| !cards.iter().any(|card| card.uuid == **uuid))
    {
        let what = format!("this machine has no GPU with the UUID {unknown}");
        return Err(CommandFailure::new(what).hint("`apportion gpus` lists the GPUs"));
    }
    Ok(cards
        .into_iter()
        .filter(|card| wanted.contains(&card.uuid))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_proto::v1::{Allocation, Grant};

    const UUID: &str = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

    fn list() -> ListReply {
        let card = v1::Card {
            uuid: UUID.into(),
            total_bytes: 1000,
            reserved_bytes: 100,
            unmanaged_bytes: 7,
            health: CardHealth::Healthy.into(),
            ..v1::Card::default()
        };
        let grant = Grant {
            card: card.uuid.clone(),
            limit_bytes: 300,
            used_bytes: 5,
            ..Grant::default()
        };
        let train = Allocation {
            name: "train".into(),
            grants: vec![grant],
            ..Allocation::default()
        };
        ListReply {
            cards: vec![card],
            allocations: vec![train],
            ..ListReply::default()
        }
    }

    #[test]
    fn a_holder_holds_its_limit_and_not_what_it_uses() {
        let cards = for_policy(&list());
        assert_eq!(
            cards[0].holders,
            [Holder {
                name: "train".into(),
                bytes: Bytes(300)
            }]
        );
        assert_eq!(cards[0].capacity.allocatable(), Bytes(900));
        assert_eq!(cards[0].unmanaged, Bytes(7));
    }

    #[test]
    fn a_suspended_holder_holds_what_the_driver_reports() {
        let mut list = list();
        list.allocations[0].suspension = SuspensionState::Suspended.into();
        assert_eq!(for_policy(&list)[0].holders, []);
        list.allocations[0].grants[0].nvml_bytes = 40;
        assert_eq!(for_policy(&list)[0].holders[0].bytes, Bytes(40));
    }

    #[test]
    fn a_holder_that_was_called_in_holds_its_guarantee() {
        let mut list = list();
        let train = &mut list.allocations[0];
        train.suspension = SuspensionState::Suspended.into();
        train.called_in = true;
        let grant = &mut train.grants[0];
        (grant.guaranteed_bytes, grant.ceiling_bytes) = (100, 600);
        assert_eq!(for_policy(&list)[0].holders[0].bytes, Bytes(100));
    }

    #[test]
    fn without_bursts_guarantees_are_left() {
        let mut list = list();
        let grant = &mut list.allocations[0].grants[0];
        (grant.guaranteed_bytes, grant.ceiling_bytes) = (100, 600);
        grant.used_bytes = 300;
        let less = without_bursts(&list);
        assert_eq!(for_policy(&less)[0].holders[0].bytes, Bytes(100));
    }

    #[test]
    fn an_elastic_holder_holds_its_guarantee_or_what_it_uses_above_that() {
        let mut list = list();
        for (used, held) in [(5, 100), (150, 150), (1000, 300)] {
            let grant = &mut list.allocations[0].grants[0];
            (grant.guaranteed_bytes, grant.ceiling_bytes) = (100, 600);
            grant.used_bytes = used;
            assert_eq!(for_policy(&list)[0].holders[0].bytes, Bytes(held));
        }
    }

    #[test]
    fn an_unknown_card_is_named() {
        let other: CardUuid = UUID.replace("0a1b", "ffff").parse().unwrap();
        let failure = only(for_policy(&list()), &[other]).unwrap_err().to_string();
        assert!(
            failure.contains("GPU-ffff2c3d") && failure.contains("apportion gpus"),
            "{failure}"
        );
        assert_eq!(
            only(for_policy(&list()), &[UUID.parse().unwrap()])
                .unwrap()
                .len(),
            1
        );
    }
}
