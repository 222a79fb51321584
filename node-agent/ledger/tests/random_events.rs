//! After any events in any order: no memory is promised twice, and all of it comes back.

use std::collections::BTreeSet;
use std::time::Duration;

use apportion_abi::{BurstTerms, Bytes, CardCapacity, CardRequest, CardUuid};
use apportion_ledger::{
    AccountSample, Allocation, AllocationId, AllocationOwner, AllocationPhase, CardSample,
    EpochMillis, Ledger, LedgerEffect, LedgerEvent, NodeSample, OffenderPolicy, PlacementProposal,
    ProcessId, ProcessSample, SuspensionPhase,
};
use proptest::prelude::*;

const ALLOCATABLE: u64 = 1000;
const CARDS: u8 = 3;
const TTL: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
enum LedgerStep {
    Allocate { key: u8, shares: Vec<(u8, u64)> },
    Commit { which: usize, pid: u32 },
    Release { which: usize },
    Resize { which: usize, card: u8, bytes: u64 },
    OwnerGone { which: usize },
    Emptied { which: usize },
    Suspend { which: usize },
    Reclaim { which: usize },
    Suspended { which: usize },
    Resume { which: usize },
    Resumed { which: usize },
    Used { which: usize, bytes: u64 },
    Stranger { card: u8, bytes: u64 },
    Wait { millis: u64 },
}

fn card(number: u8) -> CardUuid {
    CardUuid([number % CARDS; 16])
}

fn asks(shares: &[(u8, u64)]) -> Vec<CardRequest> {
    shares
        .iter()
        .map(|(number, bytes)| CardRequest {
            card: card(*number),
            bytes: Bytes(*bytes),
        })
        .collect()
}

fn proposal(key: u8, shares: &[(u8, u64)]) -> LedgerEvent {
    let (key, name) = (format!("key-{key}"), format!("name-{key}"));
    LedgerEvent::Allocate(PlacementProposal {
        key,
        name,
        asks: asks(shares),
        ceilings: Vec::new(),
        terms: BurstTerms::default(),
        ttl: TTL,
        idle_after: None,
    })
}

fn step() -> impl Strategy<Value = LedgerStep> {
    let which = 0..8_usize;
    let shares = proptest::collection::vec((0..CARDS, 0..700_u64), 0..3);
    prop_oneof![
        4 => (0..12_u8, shares).prop_map(|(key, shares)| LedgerStep::Allocate { key, shares }),
        2 => (which.clone(), 1..4_u32).prop_map(|(which, pid)| LedgerStep::Commit { which, pid }),
        2 => which.clone().prop_map(|which| LedgerStep::Release { which }),
        3 => (which.clone(), 0..CARDS, 0..1200_u64)
            .prop_map(|(which, card, bytes)| LedgerStep::Resize { which, card, bytes }),
        1 => which.clone().prop_map(|which| LedgerStep::OwnerGone { which }),
        2 => which.clone().prop_map(|which| LedgerStep::Suspend { which }),
        1 => which.clone().prop_map(|which| LedgerStep::Reclaim { which }),
        2 => which.clone().prop_map(|which| LedgerStep::Suspended { which }),
        2 => which.clone().prop_map(|which| LedgerStep::Resume { which }),
        2 => which.clone().prop_map(|which| LedgerStep::Resumed { which }),
        2 => (which.clone(), 0..400_u64).prop_map(|(which, bytes)| LedgerStep::Used { which, bytes }),
        2 => which.prop_map(|which| LedgerStep::Emptied { which }),
        2 => (0..CARDS, 0..600_u64).prop_map(|(card, bytes)| LedgerStep::Stranger { card, bytes }),
        1 => (0..80_u64).prop_map(|millis| LedgerStep::Wait { millis }),
    ]
}

fn node() -> Ledger {
    let mut ledger = Ledger::new(1, OffenderPolicy::Observe);
    let capacity = CardCapacity {
        total: Bytes(ALLOCATABLE + 24),
        reserved: Bytes(24),
    };
    for number in 0..CARDS {
        let _ = ledger.apply(
            EpochMillis(0),
            LedgerEvent::CardFound {
                card: card(number),
                capacity,
            },
        );
    }
    ledger
}

/// The live allocation that a step refers to, or one that never existed.
fn chosen(ledger: &Ledger, which: usize) -> AllocationId {
    let live = ledger.allocations();
    live.get(which)
        .map_or(AllocationId("none".into()), |allocation| {
            allocation.id.clone()
        })
}

fn event(ledger: &Ledger, step: &LedgerStep) -> LedgerEvent {
    let id = |which: &usize| chosen(ledger, *which);
    match step {
        LedgerStep::Allocate { key, shares } => proposal(*key, shares),
        LedgerStep::Commit { which, pid } => {
            let owner = AllocationOwner::Process(ProcessId {
                pid: *pid,
                start: 7,
            });
            LedgerEvent::Commit {
                id: id(which),
                owner,
            }
        }
        LedgerStep::Release { which } => LedgerEvent::Release { id: id(which) },
        LedgerStep::Resize { which, card, bytes } => LedgerEvent::Resize {
            id: id(which),
            asks: asks(&[(*card, *bytes)]),
            ceilings: Vec::new(),
        },
        LedgerStep::OwnerGone { which } => LedgerEvent::OwnerGone { id: id(which) },
        LedgerStep::Emptied { which } => LedgerEvent::Emptied { id: id(which) },
        LedgerStep::Suspend { which } => LedgerEvent::Suspend { id: id(which) },
        LedgerStep::Reclaim { which } => LedgerEvent::Reclaim { id: id(which) },
        LedgerStep::Suspended { which } => LedgerEvent::Suspended { id: id(which) },
        LedgerStep::Resume { which } => LedgerEvent::Resume { id: id(which) },
        LedgerStep::Resumed { which } => LedgerEvent::Resumed { id: id(which) },
        LedgerStep::Used { which, bytes } => used(ledger, &id(which), Bytes(*bytes)),
        LedgerStep::Stranger {
            card: number,
            bytes,
        } => {
            let process = ProcessId { pid: 99, start: 1 };
            let stranger = ProcessSample {
                process,
                owner: None,
                nvml: Some(Bytes(*bytes)),
                claimed: None,
                has_ended: false,
            };
            let used = Bytes(*bytes);
            let seen = CardSample {
                card: card(*number),
                used,
                unlisted: Bytes::ZERO,
                leeway: Bytes::ZERO,
                processes: vec![stranger],
            };
            let generation = ledger.generation();
            LedgerEvent::Sampled(NodeSample {
                generation,
                cards: vec![seen],
                accounts: Vec::new(),
            })
        }
        LedgerStep::Wait { .. } => LedgerEvent::Tick,
    }
}

/// A sample in which one process of the allocation uses so much of each of its cards, and at most its limit.
fn used(ledger: &Ledger, id: &AllocationId, bytes: Bytes) -> LedgerEvent {
    let grants = ledger.allocation(id).map(|of| of.grants.clone());
    let cards = grants.unwrap_or_default().into_iter().map(|grant| {
        let process = ProcessSample {
            process: ProcessId { pid: 50, start: 2 },
            owner: Some(id.clone()),
            nvml: Some(bytes.min(grant.limit)),
            claimed: None,
            has_ended: false,
        };
        CardSample {
            card: grant.card,
            used: bytes.min(grant.limit),
            unlisted: Bytes::ZERO,
            leeway: Bytes::ZERO,
            processes: vec![process],
        }
    });
    LedgerEvent::Sampled(NodeSample {
        generation: ledger.generation(),
        cards: cards.collect(),
        accounts: vec![AccountSample {
            id: id.clone(),
            is_sound: true,
            claimed: Vec::new(),
        }],
    })
}

fn nothing_is_promised_twice(ledger: &Ledger) -> Result<(), TestCaseError> {
    for number in 0..CARDS {
        let granted = ledger.granted(card(number));
        prop_assert!(
            granted <= Bytes(ALLOCATABLE),
            "{granted:?} of card {number}"
        );
        let unmanaged = ledger
            .card(card(number))
            .map_or(Bytes::ZERO, |card| card.unmanaged);
        prop_assert!(granted.plus(ledger.free(card(number))) <= Bytes(ALLOCATABLE));
        prop_assert!(
            ledger.free(card(number)).plus(unmanaged) <= Bytes(ALLOCATABLE.max(unmanaged.0))
        );
    }
    for allocation in ledger.allocations() {
        for grant in &allocation.grants {
            match allocation.suspension {
                // Exactly what the driver reports, once a sample has shown it; never more than before.
                SuspensionPhase::Suspended => {
                    prop_assert!(grant.held == grant.nvml || grant.held == grant.needed);
                }
                SuspensionPhase::Running
                | SuspensionPhase::Suspending
                | SuspensionPhase::Resuming => prop_assert!(grant.held >= grant.limit),
            }
        }
    }
    Ok(())
}

/// Tracks the accounts: each is opened once, closed once, and changed only while open.
fn accounts(
    open: &mut BTreeSet<AllocationId>,
    effects: &[LedgerEffect],
) -> Result<(), TestCaseError> {
    for effect in effects {
        match effect {
            LedgerEffect::OpenAccount(id) => {
                prop_assert!(open.insert(id.clone()), "{id} opened twice")
            }
            LedgerEffect::CloseAccount(id) => prop_assert!(open.remove(id), "{id} closed twice"),
            LedgerEffect::SetLimit { id, .. } | LedgerEffect::SetSuspended { id, .. } => {
                prop_assert!(open.contains(id))
            }
            _ => {}
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn nothing_is_promised_twice_and_everything_comes_back(
        steps in proptest::collection::vec(step(), 0..80),
    ) {
        let (mut ledger, mut now, mut open) = (node(), EpochMillis(0), BTreeSet::new());
        for step in &steps {
            if let LedgerStep::Wait { millis } = step {
                now = now.after(Duration::from_millis(*millis));
            }
            let event = event(&ledger, step);
            let effects = ledger.apply(now, event);
            accounts(&mut open, &effects)?;
            nothing_is_promised_twice(&ledger)?;
            let live: BTreeSet<_> = ledger.allocations().iter().map(|a| a.id.clone()).collect();
            prop_assert_eq!(&live, &open);
        }
        for id in open.clone() {
            accounts(&mut open, &ledger.apply(now, LedgerEvent::Release { id: id.clone() }))?;
            accounts(&mut open, &ledger.apply(now, LedgerEvent::Emptied { id }))?;
        }
        prop_assert!(open.is_empty());
        for number in 0..CARDS {
            prop_assert_eq!(ledger.granted(card(number)), Bytes::ZERO);
        }
    }

    #[test]
    fn saying_anything_twice_changes_nothing_more(
        steps in proptest::collection::vec(step(), 0..40),
    ) {
        let (mut ledger, mut now) = (node(), EpochMillis(0));
        for step in &steps {
            if let LedgerStep::Wait { millis } = step {
                now = now.after(Duration::from_millis(*millis));
            }
            let event = event(&ledger, step);
            let answer = |effects: Vec<LedgerEffect>| {
                effects.into_iter().find(|effect| matches!(effect, LedgerEffect::Answer(_)))
            };
            let first = answer(ledger.apply(now, event.clone()));
            let once: Vec<_> = ledger.allocations().into_iter().cloned().collect();
            let second = answer(ledger.apply(now, event));
            let twice: Vec<_> = ledger.allocations().into_iter().cloned().collect();
            prop_assert_eq!(once, twice);
            prop_assert_eq!(first, second);
        }
    }

    #[test]
    fn the_order_of_wishes_that_all_fit_does_not_matter(
        shares in proptest::collection::vec((0..CARDS, 1..120_u64), 1..8),
        order in any::<prop::sample::Index>(),
    ) {
        let mut turned: Vec<_> = shares.iter().enumerate().collect();
        turned.rotate_left(order.index(shares.len()));
        turned.reverse();
        let (mut straight, mut shuffled) = (node(), node());
        for (key, share) in shares.iter().enumerate() {
            let _ = straight.apply(EpochMillis(0), proposal(key as u8, &[*share]));
        }
        for (key, share) in turned {
            let _ = shuffled.apply(EpochMillis(0), proposal(key as u8, &[*share]));
        }
        for number in 0..CARDS {
            prop_assert_eq!(straight.free(card(number)), shuffled.free(card(number)));
        }
        let names = |ledger: &Ledger| -> BTreeSet<_> {
            let granted = |a: &&Allocation| (a.name.clone(), a.grants[0].card, a.grants[0].limit);
            ledger.allocations().iter().map(granted).collect()
        };
        prop_assert_eq!(names(&straight), names(&shuffled));
    }
}

#[test]
fn a_reservation_that_nobody_commits_expires_and_a_committed_one_does_not() {
    let mut ledger = node();
    let _ = ledger.apply(EpochMillis(0), proposal(1, &[(0, 400)]));
    let _ = ledger.apply(EpochMillis(0), proposal(2, &[(0, 400)]));
    let id = chosen(&ledger, 1);
    let owner = AllocationOwner::Pod("uid".into());
    let _ = ledger.apply(
        EpochMillis(10),
        LedgerEvent::Commit {
            id: id.clone(),
            owner: owner.clone(),
        },
    );
    let effects = ledger.apply(EpochMillis(50), LedgerEvent::Tick);
    assert!(matches!(
        effects.as_slice(),
        [
            LedgerEffect::Save,
            LedgerEffect::CloseAccount(_),
            LedgerEffect::Notice(_)
        ]
    ));
    assert_eq!(
        ledger.allocation(&id).map(|a| &a.state),
        Some(&AllocationPhase::Allocated(owner))
    );
    assert_eq!(ledger.free(card(0)), Bytes(600));
}
