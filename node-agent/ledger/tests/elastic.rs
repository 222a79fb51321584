//! Elastic shares: after any events in any order guarantees hold, the card is never promised twice, and what is not used
//! can be had by others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apportion_abi::{BurstTerms, Bytes, SHARE_UNIT};
use apportion_ledger::{
    AllocationId, AllocationOwner, AllocationRefusal, BurstRequest, EpochMillis, Ledger,
    LedgerEffect, LedgerEvent, PlacementProposal, ProcessId,
};
use proptest::prelude::*;

#[path = "one_card/helpers.rs"]
mod one_card;
#[path = "elastic/resizes.rs"]
mod resizes;

use one_card::{CARD, SampledProgram, UNITS, request, units};

/// A ledger with one card, and the programs of its allocations. They charge as the library does, and the methods that
/// lower limits and ask do what the agent does.
struct Node {
    ledger: Ledger,
    now: EpochMillis,
    used: BTreeMap<AllocationId, u64>,
    /// Whose memory is in the host.
    asleep: BTreeSet<AllocationId>,
    /// Whose limit was lowered below what they used.
    above_its_limit: BTreeSet<AllocationId>,
    serial: u32,
}

impl Node {
    fn new(factor: &str) -> Self {
        Self {
            ledger: one_card::ledger(factor),
            now: EpochMillis(0),
            used: BTreeMap::new(),
            asleep: BTreeSet::new(),
            above_its_limit: BTreeSet::new(),
            serial: 0,
        }
    }

    fn apply(&mut self, event: LedgerEvent) -> Vec<LedgerEffect> {
        self.ledger.apply(self.now, event)
    }

    fn allocate(&mut self, guaranteed: u64, limit: u64) -> Result<AllocationId, AllocationRefusal> {
        self.serial += 1;
        let name = format!("share-{}", self.serial);
        let ceilings = (limit > 0).then(|| request(limit));
        self.make_room(units(guaranteed));
        let effects = self.apply(LedgerEvent::Allocate(PlacementProposal {
            key: name.clone(),
            name,
            asks: vec![request(guaranteed)],
            ceilings: ceilings.into_iter().collect(),
            terms: BurstTerms::default(),
            ttl: Duration::from_secs(3600),
            idle_after: None,
        }));
        let id = one_card::answer(effects)?;
        self.serial += 1;
        let pid = self.serial;
        let owner = AllocationOwner::Process(ProcessId { pid, start: 1 });
        let _ = self.apply(LedgerEvent::Commit {
            id: id.clone(),
            owner,
        });
        self.used.insert(id.clone(), 0);
        Ok(id)
    }

    fn make_room(&mut self, bytes: Bytes) {
        self.make_room_beside(bytes, None);
    }

    fn make_room_beside(&mut self, bytes: Bytes, except: Option<&AllocationId>) {
        for (id, guaranteed) in self.ledger.withdrawable(CARD) {
            if self.ledger.has_room(CARD, bytes) {
                return;
            }
            let used = self.used.get(&id).copied().unwrap_or_default();
            // After a resize more may be in use than is allowed.
            if Some(&id) == except || used > self.limit(&id) {
                continue;
            }
            let limit = units(used).max(guaranteed);
            let _ = self.apply(LedgerEvent::Withdrawn {
                id,
                card: CARD,
                limit,
            });
        }
    }

    fn limit(&self, id: &AllocationId) -> u64 {
        let allocation = self.ledger.allocation(id);
        let grant = allocation.and_then(|allocation| allocation.grant(CARD));
        grant.map_or(0, |grant| grant.limit.0 / SHARE_UNIT)
    }

    /// Programs need these amounts at the same time. Returns who got it.
    fn ask(&mut self, wanted: &[(AllocationId, u64)]) -> Vec<bool> {
        let asks = wanted.iter();
        let asks: Vec<_> = asks
            .map(|(id, count): &(AllocationId, u64)| BurstRequest {
                id: id.clone(),
                card: CARD,
                wanted: units(*count),
            })
            .collect();
        let missing = self.ledger.missing(CARD, &asks);
        self.make_room(missing);
        let _ = self.apply(LedgerEvent::Burst(asks));
        let got = wanted
            .iter()
            .map(|(id, count): &(AllocationId, u64)| self.limit(id) >= *count);
        got.collect()
    }

    /// A program uses that much, if it may.
    fn use_up_to(&mut self, id: &AllocationId, count: u64) -> bool {
        let used = self.used.get(id).copied().unwrap_or_default();
        let may = count <= used.max(self.limit(id)) || self.ask(&[(id.clone(), count)])[0];
        if may && let Some(used) = self.used.get_mut(id) {
            *used = count;
        }
        may
    }

    /// A sample of what is used now.
    fn seen(&self) -> LedgerEvent {
        let programs = (1..).zip(&self.used);
        let programs = programs.map(|(pid, (id, used))| SampledProgram {
            id,
            pid,
            used: *used,
            is_awake: !self.asleep.contains(id),
        });
        one_card::sample(&self.ledger, programs)
    }

    fn sample(&mut self) {
        let sample = self.seen();
        let effects = self.apply(sample);
        let mut notices = effects.iter();
        assert!(
            !notices.any(|effect| matches!(effect, LedgerEffect::Notice(_))),
            "nobody has done wrong: {effects:?}"
        );
    }

    fn end(&mut self, id: &AllocationId) {
        self.used.remove(id);
        let _ = self.apply(LedgerEvent::Release { id: id.clone() });
        let _ = self.apply(LedgerEvent::Emptied { id: id.clone() });
    }

    /// What nobody is guaranteed and nobody uses.
    fn left(&self) -> u64 {
        let mut held = 0;
        for allocation in self.ledger.allocations() {
            let used = self.used.get(&allocation.id).copied().unwrap_or_default();
            held += used.max(allocation.grants[0].guaranteed().0 / SHARE_UNIT);
        }
        UNITS - held
    }

    /// Does one step of a random trace.
    fn take(&mut self, step: ElasticStep) -> Result<(), TestCaseError> {
        let live: Vec<_> = self.used.keys().cloned().collect();
        match step {
            ElasticStep::Allocate { guaranteed, more } => {
                // Without a sample the ledger holds what NVML last reported.
                self.sample();
                let (left, limit) = (self.left(), (guaranteed + more).min(UNITS));
                let answer = self.allocate(guaranteed, limit);
                let fits = guaranteed <= left;
                prop_assert_eq!(answer.is_ok(), fits, "{:?}, {} left", answer, left);
            }
            ElasticStep::Use { which, count } => {
                if let Some(id) = live.get(which) {
                    self.use_up_to(id, count);
                }
            }
            ElasticStep::Together {
                first,
                second,
                count,
            } => {
                let asked = [first, second].map(|which| live.get(which).cloned());
                if let [Some(first), Some(second)] = asked {
                    self.ask(&[(first, count), (second, count / 2)]);
                }
            }
            ElasticStep::End { which } => live.get(which).into_iter().for_each(|id| self.end(id)),
            ElasticStep::Sample => self.sample(),
            ElasticStep::Wait => self.now = self.now.after(Duration::from_secs(2)),
        }
        Ok(())
    }

    fn holds(&self) -> Result<(), TestCaseError> {
        let (mut guaranteed, mut held, mut used) = (Bytes::ZERO, Bytes::ZERO, 0);
        for allocation in self.ledger.allocations() {
            let grant = &allocation.grants[0];
            prop_assert!(grant.guaranteed() <= grant.limit && grant.limit <= grant.ceiling());
            prop_assert!(grant.limit <= grant.held);
            let own = self.used.get(&allocation.id).copied().unwrap_or_default();
            let is_resized = self.above_its_limit.contains(&allocation.id);
            let most = if is_resized { grant.held } else { grant.limit };
            prop_assert!(units(own) <= most, "{own} used of {grant:?}");
            guaranteed = guaranteed.plus(grant.guaranteed());
            held = held.plus(grant.held);
            used += own.max(grant.guaranteed().0 / SHARE_UNIT);
        }
        prop_assert!(guaranteed <= units(UNITS));
        prop_assert!(held <= units(UNITS), "{held} held");
        prop_assert!(used <= UNITS, "{used} used or guaranteed");
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum ElasticStep {
    Allocate {
        guaranteed: u64,
        more: u64,
    },
    Use {
        which: usize,
        count: u64,
    },
    Together {
        first: usize,
        second: usize,
        count: u64,
    },
    End {
        which: usize,
    },
    Sample,
    Wait,
}

fn step() -> impl Strategy<Value = ElasticStep> {
    let which = 0..8_usize;
    prop_oneof![
        3 => (1..400_u64, 0..800_u64)
            .prop_map(|(guaranteed, more)| ElasticStep::Allocate { guaranteed, more }),
        6 => (which.clone(), 0..1000_u64).prop_map(|(which, count)| ElasticStep::Use { which, count }),
        2 => (which.clone(), which.clone(), 0..1000_u64)
            .prop_map(|(first, second, count)| ElasticStep::Together { first, second, count }),
        1 => which.prop_map(|which| ElasticStep::End { which }),
        2 => Just(ElasticStep::Sample),
        1 => Just(ElasticStep::Wait),
    ]
}

#[test]
fn a_request_above_the_limit_needs_nothing_of_others() {
    let mut node = Node::new("2");
    let id = node.allocate(300, 500).expect("it fits");
    let missing = |wanted| {
        let card = CARD;
        let (id, wanted) = (id.clone(), Bytes(wanted));
        node.ledger
            .missing(CARD, &[BurstRequest { id, card, wanted }])
    };
    assert_eq!(missing(500 * SHARE_UNIT), units(200));
    assert_eq!(missing(500 * SHARE_UNIT + 1), Bytes::ZERO);
    assert_eq!(missing(u64::MAX), Bytes::ZERO);
}

proptest! {
    #[test]
    fn guarantees_hold_and_what_is_not_used_can_be_had(
        steps in proptest::collection::vec(step(), 0..60),
    ) {
        let mut node = Node::new("100");
        for step in steps {
            node.take(step)?;
            node.holds()?;
        }
        for id in node.used.keys().cloned().collect::<Vec<_>>() {
            node.end(&id);
        }
        prop_assert_eq!(node.ledger.free(CARD), units(UNITS));
    }

    #[test]
    fn a_program_alone_gets_all_that_nobody_is_guaranteed(
        others in proptest::collection::vec(1..200_u64, 0..4),
    ) {
        let mut node = Node::new("100");
        let id = node.allocate(100, UNITS).unwrap();
        for other in &others {
            node.allocate(*other, UNITS).unwrap();
        }
        let most = UNITS - others.iter().sum::<u64>();
        prop_assert!(!node.use_up_to(&id, most + 1));
        prop_assert!(node.use_up_to(&id, most));
        node.holds()?;
    }
}

#[test]
fn an_allowance_grows_in_steps_and_never_above_the_limit() {
    let mut node = Node::new("4");
    let id = node.allocate(100, 640).unwrap();
    assert_eq!(node.limit(&id), 100);
    assert!(node.use_up_to(&id, 101));
    assert_eq!(node.limit(&id), 141, "a sixteenth of the limit more");
    assert!(node.use_up_to(&id, 620));
    assert_eq!(node.limit(&id), 640);
    assert!(!node.use_up_to(&id, 641));
}

#[test]
fn two_that_ask_at_the_same_time_get_no_more_than_their_part() {
    let mut node = Node::new("4");
    let (one, two) = (
        node.allocate(100, 900).unwrap(),
        node.allocate(100, 900).unwrap(),
    );
    // 800 units are nobody's, so 400 more than its guarantee is the part of each.
    let asked = [(one.clone(), 501), (two.clone(), 501)];
    assert_eq!(node.ask(&asked), [false, false]);
    let asked = [(one.clone(), 500), (two.clone(), 500)];
    assert_eq!(node.ask(&asked), [true, true]);
    node.end(&two);
    let three = node.allocate(100, 900).unwrap();
    let asked = [(one.clone(), 600), (three.clone(), 300)];
    assert_eq!(
        node.ask(&asked),
        [true, true],
        "one wants less than its part"
    );
}

#[test]
fn one_that_was_refused_counts_for_a_second() {
    let mut node = Node::new("4");
    let (one, two) = (
        node.allocate(100, 900).unwrap(),
        node.allocate(100, 900).unwrap(),
    );
    assert!(node.use_up_to(&one, 900));
    assert!(!node.use_up_to(&two, 400));
    assert!(node.use_up_to(&one, 100));
    node.sample();
    node.make_room(units(UNITS));
    assert_eq!(node.limit(&one), 100);
    assert!(!node.use_up_to(&one, 800), "the other still asks for 400");
    node.now = node.now.after(Duration::from_secs(2));
    assert!(node.use_up_to(&one, 800));
}

#[test]
fn memory_that_a_program_has_just_freed_is_held_until_a_sample_shows_it() {
    let mut node = Node::new("4");
    let id = node.allocate(100, 900).unwrap();
    assert!(node.use_up_to(&id, 900));
    node.sample();
    assert!(node.use_up_to(&id, 50));
    assert!(node.allocate(800, 0).is_err(), "claims can be forged");
    assert!(node.ledger.awaits_sample(CARD));
    node.sample();
    assert!(!node.ledger.awaits_sample(CARD));
    assert!(node.allocate(800, 0).is_ok());
}

#[test]
fn combinations_that_make_no_sense_are_refused_with_their_numbers() {
    let mut node = Node::new("1.5");
    let refused = |answer: Result<AllocationId, AllocationRefusal>| answer.unwrap_err().to_string();
    let text = refused(node.allocate(100, 50));
    assert!(
        text.contains("limit of 100 MiB") && text.contains("below the 200 MiB"),
        "{text}"
    );
    let text = refused(node.allocate(100, 1001));
    assert!(
        text.contains("2002 MiB") && text.contains("above the 2000 MiB"),
        "{text}"
    );
    let _ = node.allocate(100, 1000).unwrap();
    let text = refused(node.allocate(100, 501));
    assert!(
        text.contains("add up to 3002 MiB") && text.contains("allows 3000 MiB"),
        "{text}"
    );
    assert!(node.allocate(100, 500).is_ok());
    assert!(
        node.allocate(700, 0).is_ok(),
        "a guarantee is not bounded by limits of others"
    );
}

#[test]
fn a_suspended_share_holds_nothing_and_gets_back_what_it_used() {
    let mut node = Node::new("4");
    let id = node.allocate(100, 900).unwrap();
    assert!(node.use_up_to(&id, 600));
    node.sample();
    let _ = node.apply(LedgerEvent::Suspend { id: id.clone() });
    assert!(
        !node.ask(&[(id.clone(), 700)])[0],
        "it is on its way to sleep"
    );
    let _ = node.apply(LedgerEvent::Withdrawn {
        id: id.clone(),
        card: CARD,
        limit: units(600),
    });
    let _ = node.apply(LedgerEvent::Suspended { id: id.clone() });
    node.asleep.insert(id.clone());
    node.sample();
    assert_eq!(node.ledger.free(CARD), units(UNITS));
    assert_eq!(node.ledger.granted(CARD), Bytes::ZERO);
    assert_eq!(node.ledger.withdrawable(CARD), []);

    let other = node.allocate(300, 900).unwrap();
    assert!(node.use_up_to(&other, 900));
    assert!(!node.use_up_to(&other, 901));
    node.sample();
    let resume = |node: &mut Node| {
        let effects = node.apply(LedgerEvent::Resume { id: id.clone() });
        effects.contains(&LedgerEffect::Answer(Ok(id.clone())))
    };
    assert!(!resume(&mut node), "the other bursts");
    assert!(node.use_up_to(&other, 400));
    node.sample();
    assert!(
        !resume(&mut node),
        "what it used was more than what is free"
    );
    node.make_room(units(600));
    node.sample();
    assert!(resume(&mut node));
    let _ = node.apply(LedgerEvent::Resumed { id: id.clone() });
    node.asleep.remove(&id);
    node.sample();
    assert_eq!(node.limit(&id), 600);
    assert!(!node.use_up_to(&id, 601), "the card is full");
    node.end(&other);
    assert!(node.use_up_to(&id, 601));
}

#[test]
fn a_refusal_names_those_who_use_more_than_their_guarantee() {
    let mut node = Node::new("4");
    let id = node.allocate(100, 900).unwrap();
    assert!(node.use_up_to(&id, 850));
    node.sample();
    let refused = node.allocate(400, 0).unwrap_err().to_string();
    let end = "1500 MiB of it used above guarantees, by share-1 with 1500 MiB";
    assert!(refused.ends_with(end), "{refused}");
}
