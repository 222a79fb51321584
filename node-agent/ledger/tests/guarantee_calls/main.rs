//! Guarantees that are called in: after any events in any order, whoever was promised memory gets it in time if those who
//! have it can sleep; the card never holds more than it has; nobody sleeps in vain, and nobody sleeps for ever.
//!
//! The model does what the agent does, one action at a time, and anything can happen between two actions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apportion_abi::{BurstTerms, BurstWeight, Bytes, CardRequest, CardUuid, SHARE_UNIT};
use apportion_ledger::{
    AllocationId, AllocationOwner, AllocationRefusal, BurstHolding, BurstRequest, CallClaimant,
    CallObstacle, CallStep, CallTerms, EpochMillis, GuaranteeCall, Ledger, LedgerEffect,
    LedgerEvent, PlacementProposal, ProcessId, SuspensionCause, SuspensionPhase,
};
use proptest::prelude::*;

mod examples;
#[path = "../one_card/helpers.rs"]
mod one_card;
mod traces;

use one_card::{CARD, SampledProgram, UNITS, request, units};

const TURN: Duration = Duration::from_secs(30);
/// After how many actions of the agent a call must be answered, for each allocation that there is.
const DEADLINE: usize = 4;

/// The programs of one allocation.
#[derive(Debug)]
struct ModelProgram {
    pid: u32,
    used: u64,
    /// The driver cannot move it.
    is_stuck: bool,
}

/// A newcomer that waits.
#[derive(Debug)]
struct WaitingNewcomer {
    proposal: PlacementProposal,
    actions: usize,
}

struct CallingNode {
    ledger: Ledger,
    now: EpochMillis,
    programs: BTreeMap<AllocationId, ModelProgram>,
    unable: BTreeSet<AllocationId>,
    waiting: Vec<WaitingNewcomer>,
    serial: u32,
}

impl CallingNode {
    fn new() -> Self {
        let mut ledger = one_card::ledger("100");
        ledger.lend_guarantees();
        Self {
            ledger,
            now: EpochMillis(0),
            programs: BTreeMap::new(),
            unable: BTreeSet::new(),
            waiting: Vec::new(),
            serial: 0,
        }
    }

    fn apply(&mut self, event: LedgerEvent) -> Vec<LedgerEffect> {
        self.ledger.apply(self.now, event)
    }

    fn answer(&mut self, event: LedgerEvent) -> Result<AllocationId, AllocationRefusal> {
        one_card::answer(self.apply(event))
    }

    fn proposal(&mut self, guaranteed: u64, limit: u64) -> PlacementProposal {
        self.serial += 1;
        let name = format!("share-{}", self.serial);
        PlacementProposal {
            key: name.clone(),
            name,
            asks: vec![request(guaranteed)],
            ceilings: vec![request(limit)],
            terms: BurstTerms::default(),
            ttl: Duration::from_secs(3600),
            idle_after: None,
        }
    }

    fn admit(&mut self, proposal: PlacementProposal) -> Result<AllocationId, AllocationRefusal> {
        let id = self.answer(LedgerEvent::Allocate(proposal))?;
        self.serial += 1;
        let pid = self.serial;
        let owner = AllocationOwner::Process(ProcessId { pid, start: 1 });
        let committed = LedgerEvent::Commit {
            id: id.clone(),
            owner,
        };
        self.answer(committed).expect("it is reserved");
        let program = ModelProgram {
            pid,
            used: 0,
            is_stuck: false,
        };
        self.programs.insert(id.clone(), program);
        Ok(id)
    }

    fn arrive(&mut self, guaranteed: u64, limit: u64) -> Option<AllocationId> {
        self.arrive_with(guaranteed, limit, BurstTerms::default())
    }

    /// Somebody comes. Waits if a call can help.
    fn arrive_with(
        &mut self,
        guaranteed: u64,
        limit: u64,
        terms: BurstTerms,
    ) -> Option<AllocationId> {
        let proposal = PlacementProposal {
            terms,
            ..self.proposal(guaranteed, limit)
        };
        self.make_room(units(guaranteed));
        self.sample();
        match self.ledger.check(&proposal) {
            Ok(()) => Some(self.admit(proposal).expect("it was checked")),
            Err(AllocationRefusal::Shortfall(_)) => {
                let call = GuaranteeCall {
                    claimant: CallClaimant::Newcomer(proposal.key.clone()),
                    name: proposal.name.clone(),
                    asks: proposal.asks.clone(),
                };
                self.apply(LedgerEvent::CallOpened(call));
                self.waiting.push(WaitingNewcomer {
                    proposal,
                    actions: 0,
                });
                None
            }
            Err(refusal) => panic!("{refusal}"),
        }
    }

    fn make_room(&mut self, bytes: Bytes) {
        for (id, guaranteed) in self.ledger.withdrawable(CARD) {
            if self.ledger.has_room(CARD, bytes) {
                return;
            }
            let limit = units(self.programs[&id].used).max(guaranteed);
            self.apply(LedgerEvent::Withdrawn {
                id,
                card: CARD,
                limit,
            });
        }
    }

    fn phase(&self, id: &AllocationId) -> SuspensionPhase {
        self.ledger.allocation(id).expect("it is there").suspension
    }

    fn is_awake(&self, id: &AllocationId) -> bool {
        self.phase(id) == SuspensionPhase::Running
    }

    fn limit(&self, id: &AllocationId) -> u64 {
        let grant = self.ledger.allocation(id).and_then(|of| of.grant(CARD));
        grant.map_or(0, |grant| grant.limit.0 / SHARE_UNIT)
    }

    /// A program uses that much, if it may. One that sleeps changes nothing.
    fn use_up_to(&mut self, id: &AllocationId, count: u64) -> bool {
        if !self.is_awake(id) {
            return false;
        }
        if count > self.limit(id) {
            let asks = vec![BurstRequest {
                id: id.clone(),
                card: CARD,
                wanted: units(count),
            }];
            let missing = self.ledger.missing(CARD, &asks);
            self.make_room(missing);
            self.apply(LedgerEvent::Burst(asks));
        }
        let may = count <= self.limit(id);
        if may {
            self.programs.get_mut(id).expect("it is there").used = count;
        }
        may
    }

    fn sample(&mut self) {
        let programs = self.programs.iter().map(|(id, program)| SampledProgram {
            id,
            pid: program.pid,
            used: program.used,
            is_awake: self.is_awake(id),
        });
        let sample = one_card::sample(&self.ledger, programs);
        self.apply(sample);
    }

    fn end(&mut self, id: &AllocationId) {
        self.programs.remove(id);
        self.apply(LedgerEvent::Release { id: id.clone() });
        self.apply(LedgerEvent::Emptied { id: id.clone() });
    }

    /// What the driver has given out.
    fn on_card(&self) -> u64 {
        let awake = self.programs.iter().filter(|(id, _)| self.is_awake(id));
        awake.map(|(_, program)| program.used).sum()
    }

    /// What nobody could get even if all who can sleep did.
    fn firm_at_best(&self) -> u64 {
        let mut firm = 0;
        for allocation in self.ledger.allocations() {
            let guaranteed = allocation.grants[0].guaranteed().0 / SHARE_UNIT;
            let program = &self.programs[&allocation.id];
            let stays = self.is_awake(&allocation.id) && self.unable.contains(&allocation.id);
            firm += if stays {
                program.used.max(guaranteed)
            } else {
                guaranteed
            };
        }
        firm
    }

    fn step(&self, claimant: &CallClaimant, asks: &[CardRequest]) -> CallStep {
        let terms = CallTerms {
            unable: &self.unable,
            turn: TURN,
        };
        self.ledger.call_step(self.now, claimant, asks, terms)
    }

    /// Puts somebody to sleep, unless the driver cannot.
    fn put_to_sleep(&mut self, id: &AllocationId) {
        self.answer(LedgerEvent::CallIn { id: id.clone() })
            .expect("it runs");
        let (used, is_stuck) = (self.programs[id].used, self.programs[id].is_stuck);
        self.apply(LedgerEvent::Withdrawn {
            id: id.clone(),
            card: CARD,
            limit: units(used),
        });
        let id = id.clone();
        if is_stuck {
            self.unable.insert(id.clone());
            self.apply(LedgerEvent::Resumed { id });
        } else {
            self.apply(LedgerEvent::Suspended { id });
        }
    }

    /// One action of the agent for each newcomer, and one for the sleepers.
    fn act(&mut self) -> Result<(), TestCaseError> {
        let mut earlier = 0;
        for mut newcomer in std::mem::take(&mut self.waiting) {
            let asked = newcomer.proposal.asks[0].bytes.0 / SHARE_UNIT;
            newcomer.actions += 1;
            let limit = DEADLINE * (self.programs.len() + 2);
            prop_assert!(newcomer.actions <= limit, "{newcomer:?} waits for too long");
            self.make_room(units(asked));
            self.sample();
            let claimant = CallClaimant::Newcomer(newcomer.proposal.key.clone());
            let fits_at_best = self.firm_at_best() + earlier + asked <= UNITS;
            match self.step(&claimant, &newcomer.proposal.asks) {
                CallStep::Ready => {
                    let admitted = self.admit(newcomer.proposal);
                    prop_assert!(admitted.is_ok(), "{admitted:?}");
                    continue;
                }
                CallStep::Hopeless => {
                    prop_assert!(!fits_at_best, "{newcomer:?} is refused");
                    self.apply(LedgerEvent::CallClosed(claimant));
                    continue;
                }
                CallStep::Suspend(id) => {
                    prop_assert!(fits_at_best, "{id} would sleep in vain");
                    self.goes_first(&id)?;
                    self.put_to_sleep(&id);
                }
                CallStep::Awaited => {}
            }
            earlier += asked;
            self.waiting.push(newcomer);
        }
        self.wake()
    }

    /// Nobody who can sleep has a lower priority, or the same one and a larger burst for its weight.
    fn goes_first(&self, id: &AllocationId) -> Result<(), TestCaseError> {
        let holdings = self.ledger.burst_holdings(CARD);
        let found = holdings.iter().find(|of| of.id == *id);
        let first = found.expect("it bursts");
        let for_weight = |one: &BurstHolding, other: &BurstHolding| {
            one.bytes.0 * u64::from(other.terms.weight.thousandths())
        };
        let able = |of: &&BurstHolding| of.obstacle.is_none() && !self.unable.contains(&of.id);
        for other in holdings.iter().filter(able) {
            let (own, others) = (first.terms.priority, other.terms.priority);
            let is_before = own < others
                || (own == others && for_weight(first, other) >= for_weight(other, first));
            prop_assert!(is_before, "{first:?} sleeps before {other:?}");
        }
        Ok(())
    }

    fn wake(&mut self) -> Result<(), TestCaseError> {
        let sleepers: Vec<_> = (self.ledger.sleepers().into_iter())
            .map(|of| (of.id.clone(), of.moved, of.lacks()))
            .collect();
        for (id, moved, lacks) in sleepers {
            let asks: Vec<_> = (lacks.into_iter())
                .map(|(card, bytes): (CardUuid, Bytes)| CardRequest { card, bytes })
                .collect();
            self.make_room(asks[0].bytes);
            self.sample();
            let claimant = CallClaimant::Sleeper(id.clone());
            match self.step(&claimant, &asks) {
                CallStep::Ready => {
                    let resumed = self.answer(LedgerEvent::Resume { id: id.clone() });
                    prop_assert!(resumed.is_ok(), "{resumed:?}");
                    self.apply(LedgerEvent::Resumed { id });
                    return Ok(());
                }
                CallStep::Suspend(other) if moved.after(TURN) <= self.now => {
                    self.apply(LedgerEvent::CallOpened(GuaranteeCall {
                        claimant,
                        name: id.to_string(),
                        asks,
                    }));
                    self.put_to_sleep(&other);
                    return Ok(());
                }
                CallStep::Suspend(_) | CallStep::Hopeless => {
                    self.apply(LedgerEvent::CallClosed(claimant));
                }
                CallStep::Awaited => {}
            }
        }
        Ok(())
    }

    fn holds(&self) -> Result<(), TestCaseError> {
        prop_assert!(self.on_card() <= UNITS, "{} on the card", self.on_card());
        // What sleepers keep may be used by others for their turns.
        let (mut guaranteed, mut held) = (Bytes::ZERO, Bytes::ZERO);
        for allocation in self.ledger.allocations() {
            let grant = &allocation.grants[0];
            let used = self.programs[&allocation.id].used;
            prop_assert!(units(used) <= grant.limit, "{used} used of {grant:?}");
            guaranteed = guaranteed.plus(grant.guaranteed());
            if allocation.suspension != SuspensionPhase::Suspended {
                held = held.plus(grant.held);
            }
        }
        prop_assert!(guaranteed <= units(UNITS), "{guaranteed} guaranteed");
        prop_assert!(held <= units(UNITS), "{held} held");
        Ok(())
    }

    /// Whether nothing but others that sleep or can be put to sleep keeps it from waking.
    fn can_have_a_turn(&self, id: &AllocationId) -> bool {
        let mut in_the_way = 0;
        for allocation in (self.ledger.allocations().into_iter()).filter(|of| of.id != *id) {
            let program = &self.programs[&allocation.id];
            let guaranteed = allocation.grants[0].guaranteed().0 / SHARE_UNIT;
            let can_sleep = program.used > guaranteed && !self.unable.contains(&allocation.id);
            if self.is_awake(&allocation.id) && !can_sleep {
                in_the_way += program.used.max(guaranteed);
            }
        }
        in_the_way + self.programs[id].used <= UNITS
    }

    /// Nothing changes but who sleeps. Everybody who can have a turn gets one.
    fn take_turns(&mut self) -> Result<(), TestCaseError> {
        let all: Vec<_> = self.programs.keys().cloned().collect();
        let mut starving: BTreeSet<_> = all.iter().cloned().collect();
        for _ in 0..2 * (all.len() + 1) {
            self.now = self.now.after(TURN);
            for _ in 0..DEADLINE * (all.len() + 1) {
                self.act()?;
                self.holds()?;
                starving.retain(|id| !self.is_awake(id) && self.can_have_a_turn(id));
            }
        }
        prop_assert!(starving.is_empty(), "{starving:?} got no turn");
        Ok(())
    }

    /// All that run end, again and again, until nobody is left.
    fn run_out(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..=self.programs.len() {
            for _ in 0..DEADLINE * (self.programs.len() + self.waiting.len() + 2) {
                self.act()?;
                self.holds()?;
            }
            prop_assert!(self.waiting.is_empty(), "{:?}", self.waiting);
            self.take_turns()?;
            let awake: Vec<_> = self.programs.keys().cloned().collect();
            for id in awake
                .iter()
                .filter(|id| self.is_awake(id))
                .cloned()
                .collect::<Vec<_>>()
            {
                self.end(&id);
            }
        }
        prop_assert!(
            self.programs.is_empty(),
            "{:?} sleep for ever",
            self.programs
        );
        prop_assert_eq!(self.ledger.free(CARD), units(UNITS));
        Ok(())
    }
}
