//! Weights and priorities: what nobody was guaranteed goes to those who ask in proportion to their weights, and who sleeps
//! first for a guarantee follows from priority, then from what is used for the weight.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apportion_abi::{
    BurstTerms, BurstWeight, Bytes, CardCapacity, CardRequest, CardUuid, SHARE_UNIT,
};
use apportion_ledger::{
    AllocationId, AllocationOwner, BurstRequest, CallClaimant, CallStep, CallTerms, EpochMillis,
    Ledger, LedgerEffect, LedgerEvent, OffenderPolicy, PlacementProposal, ProcessId,
};
use proptest::prelude::*;

const CARD: CardUuid = CardUuid([1; 16]);
/// What programs can get, in units of 2 MiB.
const UNITS: u64 = 1000;

fn request(count: u64) -> CardRequest {
    CardRequest {
        card: CARD,
        bytes: Bytes(count * SHARE_UNIT),
    }
}

fn terms(thousandths: u32, priority: i32) -> BurstTerms {
    BurstTerms {
        weight: BurstWeight::from_thousandths(thousandths).expect("a weight"),
        priority,
    }
}

/// A card with programs that ask for more than they were guaranteed.
struct BurstingCard {
    ledger: Ledger,
    serial: u32,
}

impl BurstingCard {
    fn new() -> Self {
        let mut ledger = Ledger::new(1, OffenderPolicy::Observe);
        ledger.set_overcommit("100".parse().expect("a factor"));
        let capacity = CardCapacity {
            total: request(UNITS).bytes,
            reserved: Bytes::ZERO,
        };
        let card = CARD;
        let _ = ledger.apply(EpochMillis(0), LedgerEvent::CardFound { card, capacity });
        Self { ledger, serial: 0 }
    }

    fn apply(&mut self, event: LedgerEvent) -> Vec<LedgerEffect> {
        self.ledger.apply(EpochMillis(1), event)
    }

    fn join(&mut self, guaranteed: u64, limit: u64, terms: BurstTerms) -> AllocationId {
        self.serial += 1;
        let name = format!("share-{}", self.serial);
        let effects = self.apply(LedgerEvent::Allocate(PlacementProposal {
            key: name.clone(),
            name,
            asks: vec![request(guaranteed)],
            ceilings: vec![request(limit)],
            terms,
            ttl: Duration::from_secs(3600),
            idle_after: None,
        }));
        let mut answers = effects.into_iter().filter_map(|effect| match effect {
            LedgerEffect::Answer(answer) => answer.ok(),
            _ => None,
        });
        let id = answers.next().expect("there is room");
        let owner = AllocationOwner::Process(ProcessId {
            pid: self.serial,
            start: 1,
        });
        let _ = self.apply(LedgerEvent::Commit {
            id: id.clone(),
            owner,
        });
        id
    }

    fn limit(&self, id: &AllocationId) -> u64 {
        let allocation = self.ledger.allocation(id).expect("it is there");
        allocation.grants[0].limit.0 / SHARE_UNIT
    }

    /// Programs ask at the same time. Returns who has that much now.
    fn ask(&mut self, wanted: &[(&AllocationId, u64)]) -> Vec<bool> {
        let asks = wanted.iter().map(|&(id, count): &(&AllocationId, u64)| {
            let CardRequest { card, bytes } = request(count);
            BurstRequest {
                id: id.clone(),
                card,
                wanted: bytes,
            }
        });
        let asks = asks.collect();
        let _ = self.apply(LedgerEvent::Burst(asks));
        let got = wanted.iter().map(|&(id, count)| self.limit(id) >= count);
        got.collect()
    }

    /// A program asks for as much as it can get, while the others want what they asked for last. It still wants all.
    fn ask_for_most(&mut self, id: &AllocationId, wanted: u64) {
        let (mut low, mut high) = (self.limit(id), wanted);
        while low < high {
            let middle = high - (high - low) / 2;
            if self.ask(&[(id, middle)])[0] {
                low = middle
            } else {
                high = middle - 1
            }
        }
        self.ask(&[(id, wanted)]);
    }

    fn next_to_sleep(&self, unable: &BTreeSet<AllocationId>) -> CallStep {
        let claimant = CallClaimant::Newcomer("newcomer".into());
        let terms = CallTerms {
            unable,
            turn: Duration::ZERO,
        };
        // A little more than there is without those who burst.
        let asks = [request(self.ledger.free(CARD).0 / SHARE_UNIT + 1)];
        self.ledger
            .call_step(EpochMillis(1), &claimant, &asks, terms)
    }
}

#[derive(Clone, Debug)]
struct ModelProgram {
    guaranteed: u64,
    more: u64,
    thousandths: u32,
}

fn program() -> impl Strategy<Value = ModelProgram> {
    let weight = prop_oneof![
        Just(1000_u32),
        Just(2000),
        Just(500),
        Just(0),
        1..50_000_u32
    ];
    (1..150_u64, 1..900_u64, weight).prop_map(|(guaranteed, more, thousandths)| ModelProgram {
        guaranteed,
        more: more.min(UNITS - guaranteed),
        thousandths,
    })
}

proptest! {
    #[test]
    fn nobody_waits_while_another_has_more_for_its_weight(
        programs in proptest::collection::vec(program(), 2..6),
        order in any::<prop::sample::Index>(),
    ) {
        let mut card = BurstingCard::new();
        let mut live: Vec<_> = programs.iter().map(|of| {
            (card.join(of.guaranteed, of.guaranteed + of.more, terms(of.thousandths, 0)), of)
        }).collect();
        let first = order.index(live.len());
        live.rotate_left(first);
        let all: Vec<_> = live.iter().map(|(id, of)| (id, of.guaranteed + of.more)).collect();
        card.ask(&all);
        for (id, of) in &live {
            card.ask_for_most(id, of.guaranteed + of.more);
        }
        let guaranteed: u64 = live.iter().map(|(_, of)| of.guaranteed).sum();
        let had: Vec<u64> = live.iter().map(|(id, of)| card.limit(id) - of.guaranteed).collect();
        let left = UNITS - guaranteed - had.iter().sum::<u64>();
        for ((_, one), own) in live.iter().zip(&had) {
            if *own == one.more {
                continue;
            }
            prop_assert!(left <= live.len() as u64, "{left} lie idle: {had:?} of {live:?}");
            for ((_, other), has) in live.iter().zip(&had) {
                let is_last = other.thousandths == 0;
                if one.thousandths == 0 && !is_last {
                    continue;
                }
                if is_last && one.thousandths > 0 {
                    prop_assert_eq!(*has, 0, "{:?} of {:?}", had, live);
                    continue;
                }
                let own = (own + 1) * u64::from(other.thousandths.max(1));
                let has = has * u64::from(one.thousandths.max(1));
                prop_assert!(has <= own, "{had:?} of {live:?}");
            }
        }
    }

    #[test]
    fn the_lowest_priority_sleeps_first_then_the_largest_burst_for_its_weight(
        programs in proptest::collection::vec((program(), 0..3_i32), 1..6),
    ) {
        let mut card = BurstingCard::new();
        let mut live = BTreeMap::new();
        for (of, priority) in &programs {
            let own = terms(of.thousandths, *priority);
            // They come one after the other, and each takes a part of what is left.
            let id = card.join(of.guaranteed.min(100), 100 + of.more.min(900), own);
            live.insert(id, own);
        }
        for (id, (of, _)) in live.keys().zip(&programs) {
            card.ask_for_most(id, 100 + of.more.min(90));
        }
        let mut unable = BTreeSet::new();
        let mut before: Option<(i32, u64, u64)> = None;
        let bursts: BTreeMap<_, _> = (card.ledger.burst_holdings(CARD).into_iter())
            .map(|of| (of.id, of.bytes.0))
            .collect();
        while let CallStep::Suspend(id) = card.next_to_sleep(&unable) {
            let own = live[&id];
            let now = (own.priority, bursts[&id], u64::from(own.weight.thousandths()));
            if let Some((priority, bytes, weight)) = before {
                let is_in_order = priority < now.0
                    || (priority == now.0 && u128::from(bytes) * u128::from(now.2)
                        >= u128::from(now.1) * u128::from(weight));
                prop_assert!(is_in_order, "{before:?} before {now:?}");
            }
            before = Some(now);
            unable.insert(id);
        }
        prop_assert_eq!(unable.len(), bursts.len(), "each has its place");
    }
}

#[test]
fn twice_the_weight_gets_twice_as_much() {
    let mut card = BurstingCard::new();
    let heavy = card.join(50, UNITS, terms(2000, 0));
    let light = card.join(50, UNITS, terms(1000, 0));
    // 900 units are nobody's.
    assert_eq!(card.ask(&[(&heavy, 651), (&light, 351)]), [false, false]);
    assert_eq!(card.ask(&[(&heavy, 650), (&light, 350)]), [true, true]);
}

#[test]
fn what_three_that_ask_together_get_does_not_depend_on_who_is_answered_first() {
    let mut card = BurstingCard::new();
    let all = [0, 1, 2].map(|_| card.join(100, UNITS, BurstTerms::default()));
    let [one, two, three] = &all;
    // 700 units are nobody's: the first wants less than its part, and the others share the rest.
    let asked = [(one, 200), (two, 401), (three, 401)];
    assert_eq!(card.ask(&asked), [true, false, false]);
    assert_eq!(card.ask(&[(two, 400), (three, 400)]), [true, true]);
}

#[test]
fn whoever_has_no_weight_sleeps_before_others_of_its_priority() {
    let mut card = BurstingCard::new();
    let heavy = card.join(10, UNITS, terms(1000, 0));
    let none = card.join(10, UNITS, terms(0, 0));
    let low = card.join(10, UNITS, terms(1000, -1));
    card.ask(&[(&none, 20)]);
    card.ask(&[(&low, 30)]);
    card.ask(&[(&heavy, 800)]);
    let mut unable = BTreeSet::new();
    for expected in [low, none, heavy] {
        let step = card.next_to_sleep(&unable);
        assert_eq!(step, CallStep::Suspend(expected.clone()));
        unable.insert(expected);
    }
}
