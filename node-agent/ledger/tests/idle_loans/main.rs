//! What idle pods are guaranteed is lent while they sleep: after any events in any order the card never holds more than it
//! has, nobody is promised what a pod keeps, a pod that is called has its guarantee in time, and nobody sleeps for ever.
//!
//! The model does what the agent does, one action at a time, and anything can happen between two actions.
//! `APPORTION_LOAN_TRACES` is the number of random traces (default 10000).

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::time::Duration;

use apportion_abi::{BurstTerms, Bytes, CardRequest, CardUuid, SHARE_UNIT};
use apportion_ledger::{
    AllocationId, AllocationOwner, AllocationRefusal, BurstRequest, CallStep, CallTerms,
    EpochMillis, GuaranteeCall, Ledger, LedgerEffect, LedgerEvent, PlacementProposal,
    SuspensionCause, SuspensionPhase,
};
use proptest::prelude::*;

mod examples;
#[path = "../one_card/helpers.rs"]
mod one_card;

use one_card::{CARD, SampledProgram, UNITS, request, units};

const TURN: Duration = Duration::from_secs(30);
/// After how many actions of the agent a pod that is called has its guarantee, for each allocation that there is.
const DEADLINE: usize = 4;

/// A pod with one program.
#[derive(Debug)]
struct ModelPod {
    pid: u32,
    used: u64,
    /// Since how many actions it waits with a call; `None` if it does not.
    called: Option<usize>,
}

struct LendingNode {
    ledger: Ledger,
    now: EpochMillis,
    pods: BTreeMap<AllocationId, ModelPod>,
    serial: u32,
}

impl LendingNode {
    fn new() -> Self {
        let mut node = Self::refusing();
        node.ledger.lend_guarantees();
        node
    }

    /// One whose agent suspends nobody for a guarantee.
    fn refusing() -> Self {
        Self {
            ledger: one_card::ledger("100"),
            now: EpochMillis(0),
            pods: BTreeMap::new(),
            serial: 0,
        }
    }

    fn apply(&mut self, event: LedgerEvent) -> Vec<LedgerEffect> {
        self.ledger.apply(self.now, event)
    }

    fn answer(&mut self, event: LedgerEvent) -> Result<AllocationId, AllocationRefusal> {
        one_card::answer(self.apply(event))
    }

    /// A pod comes that sleeps when it is idle, and is placed if its guarantee fits now.
    fn arrive(&mut self, guaranteed: u64, limit: u64) -> Option<AllocationId> {
        self.arrive_with(guaranteed, limit, Some(Duration::from_secs(600)))
    }

    /// The same for one that never does.
    fn arrive_wakeful(&mut self, guaranteed: u64, limit: u64) -> Option<AllocationId> {
        self.arrive_with(guaranteed, limit, None)
    }

    fn arrive_with(
        &mut self,
        guaranteed: u64,
        limit: u64,
        idle_after: Option<Duration>,
    ) -> Option<AllocationId> {
        self.serial += 1;
        let name = format!("pod-{}", self.serial);
        let proposal = PlacementProposal {
            key: name.clone(),
            name,
            asks: vec![request(guaranteed)],
            ceilings: vec![request(limit)],
            terms: BurstTerms::default(),
            ttl: Duration::from_secs(3600),
            idle_after,
        };
        self.make_room(units(guaranteed));
        self.sample();
        let id = self.answer(LedgerEvent::Allocate(proposal)).ok()?;
        let owner = AllocationOwner::Pod(id.to_string());
        let committed = LedgerEvent::Commit {
            id: id.clone(),
            owner,
        };
        self.answer(committed).expect("it is reserved");
        let pod = ModelPod {
            pid: self.serial,
            used: 0,
            called: None,
        };
        self.pods.insert(id.clone(), pod);
        Some(id)
    }

    fn make_room(&mut self, bytes: Bytes) {
        self.withdraw_until(|ledger| ledger.has_room(CARD, bytes));
    }

    fn withdraw_until(&mut self, is_enough: impl Fn(&Ledger) -> bool) {
        for (id, guaranteed) in self.ledger.withdrawable(CARD) {
            if is_enough(&self.ledger) {
                return;
            }
            let limit = units(self.pods[&id].used).max(guaranteed);
            self.apply(LedgerEvent::Withdrawn {
                id,
                card: CARD,
                limit,
            });
        }
    }

    fn is_awake(&self, id: &AllocationId) -> bool {
        let found = self.ledger.allocation(id).expect("it is there");
        found.suspension == SuspensionPhase::Running
    }

    fn is_idle(&self, id: &AllocationId) -> bool {
        let found = self.ledger.allocation(id).expect("it is there");
        !self.is_awake(id) && found.suspension_cause == SuspensionCause::Idle
    }

    fn guaranteed(&self, id: &AllocationId) -> u64 {
        let found = self.ledger.allocation(id).expect("it is there");
        found.grants[0].guaranteed().0 / SHARE_UNIT
    }

    fn limit(&self, id: &AllocationId) -> u64 {
        let found = self.ledger.allocation(id).expect("it is there");
        found.grants[0].limit.0 / SHARE_UNIT
    }

    /// A program uses that much, if it may. One that sleeps waits with its call.
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
            self.withdraw_until(|ledger| ledger.has_burst_room(CARD, &asks, missing));
            self.apply(LedgerEvent::Burst(asks));
        }
        let may = count <= self.limit(id);
        if may {
            self.pods.get_mut(id).expect("it is there").used = count;
        }
        may
    }

    fn falls_asleep(&mut self, id: &AllocationId, event: LedgerEvent) {
        if !self.is_awake(id) {
            return;
        }
        self.answer(event).expect("it runs");
        let limit = units(self.pods[id].used).max(units(self.guaranteed(id)));
        self.apply(LedgerEvent::Withdrawn {
            id: id.clone(),
            card: CARD,
            limit,
        });
        self.apply(LedgerEvent::Suspended { id: id.clone() });
    }

    fn becomes_idle(&mut self, id: &AllocationId) {
        let found = self.ledger.allocation(id).expect("it is there");
        if found.idle_after.is_none() {
            return;
        }
        // Many samples were taken in the time without a call.
        self.sample();
        self.falls_asleep(id, LedgerEvent::Idle { id: id.clone() });
    }

    fn is_called(&mut self, id: &AllocationId) {
        if self.is_idle(id) {
            let pod = self.pods.get_mut(id).expect("it is there");
            pod.called = pod.called.or(Some(0));
        }
    }

    fn sample(&mut self) {
        let programs = self.pods.iter().map(|(id, pod)| SampledProgram {
            id,
            pid: pod.pid,
            used: pod.used,
            is_awake: self.is_awake(id),
        });
        let sample = one_card::sample(&self.ledger, programs);
        self.apply(sample);
    }

    fn end(&mut self, id: &AllocationId) {
        self.pods.remove(id);
        self.apply(LedgerEvent::Release { id: id.clone() });
        self.apply(LedgerEvent::Emptied { id: id.clone() });
    }

    /// What the driver has given out.
    fn on_card(&self) -> u64 {
        let awake = self.pods.iter().filter(|(id, _)| self.is_awake(id));
        awake.map(|(_, pod)| pod.used).sum()
    }

    /// The next step of somebody who wants to wake, after what is not used was withdrawn.
    fn step(&mut self, id: &AllocationId) -> (GuaranteeCall, CallStep) {
        let found = self.ledger.allocation(id).expect("it is there");
        let lacks = found.lacks().into_iter();
        let asks = lacks.map(|(card, bytes): (CardUuid, Bytes)| CardRequest { card, bytes });
        let call = GuaranteeCall {
            claimant: found.claimant(),
            name: found.name.clone(),
            asks: asks.collect(),
        };
        self.make_room(call.asks[0].bytes);
        self.sample();
        let terms = CallTerms {
            unable: &BTreeSet::new(),
            turn: TURN,
        };
        let step = self
            .ledger
            .call_step(self.now, &call.claimant, &call.asks, terms);
        (call, step)
    }

    fn wake(&mut self, id: &AllocationId) -> Result<(), TestCaseError> {
        let resumed = self.answer(LedgerEvent::Resume { id: id.clone() });
        prop_assert!(resumed.is_ok(), "{resumed:?}");
        self.apply(LedgerEvent::Resumed { id: id.clone() });
        self.pods.get_mut(id).expect("it is there").called = None;
        Ok(())
    }

    /// One action of the agent for each pod that is called, and one for those that sleep for others.
    fn act(&mut self) -> Result<(), TestCaseError> {
        let deadline = DEADLINE * (self.pods.len() + 2);
        let called = self.pods.iter().filter(|(_, pod)| pod.called.is_some());
        for id in called.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            let (call, step) = self.step(&id);
            if step == CallStep::Ready {
                self.wake(&id)?;
                continue;
            }
            if !self.ledger.has_call(&call.claimant) {
                self.apply(LedgerEvent::CallOpened(call));
            }
            if let CallStep::Suspend(other) = step {
                self.falls_asleep(&other, LedgerEvent::CallIn { id: other.clone() });
            }
            let is_guaranteed = self.pods[&id].used <= self.guaranteed(&id);
            let pod = self.pods.get_mut(&id).expect("it is there");
            let actions = pod.called.map_or(0, |actions| actions + 1);
            pod.called = Some(actions);
            prop_assert!(
                !is_guaranteed || actions <= deadline,
                "{pod:?} waits for its guarantee"
            );
        }
        self.wake_sleepers()
    }

    fn wake_sleepers(&mut self) -> Result<(), TestCaseError> {
        let sleepers = self.ledger.sleepers().into_iter();
        let sleepers: Vec<_> = sleepers.map(|of| (of.id.clone(), of.moved)).collect();
        for (id, moved) in sleepers {
            let (call, step) = self.step(&id);
            match step {
                CallStep::Ready => return self.wake(&id),
                CallStep::Suspend(other) if moved.after(TURN) <= self.now => {
                    self.apply(LedgerEvent::CallOpened(call));
                    self.falls_asleep(&other, LedgerEvent::CallIn { id: other.clone() });
                    return Ok(());
                }
                CallStep::Suspend(_) | CallStep::Hopeless => {
                    self.apply(LedgerEvent::CallClosed(call.claimant));
                }
                CallStep::Awaited => {}
            }
        }
        Ok(())
    }

    fn holds(&self) -> Result<(), TestCaseError> {
        prop_assert!(self.on_card() <= UNITS, "{} on the card", self.on_card());
        let mut guaranteed = 0;
        for (id, pod) in &self.pods {
            prop_assert!(pod.used <= self.limit(id), "{pod:?}");
            guaranteed += self.guaranteed(id);
        }
        prop_assert!(guaranteed <= UNITS, "{guaranteed} guaranteed");
        Ok(())
    }

    /// All that sleep are called, and all that run end, again and again, until nobody is left.
    fn run_out(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..=self.pods.len() {
            let ids: Vec<_> = self.pods.keys().cloned().collect();
            ids.iter().for_each(|id| self.is_called(id));
            for _ in 0..DEADLINE * (self.pods.len() + 2) {
                self.act()?;
                self.holds()?;
            }
            for id in &ids {
                if self.is_awake(id) {
                    self.end(id);
                }
            }
        }
        prop_assert!(self.pods.is_empty(), "{:?} sleep for ever", self.pods);
        prop_assert_eq!(self.ledger.free(CARD), units(UNITS));
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum LoanEvent {
    Arrive {
        guaranteed: u64,
        more: u64,
        is_wakeful: bool,
    },
    Use {
        which: usize,
        count: u64,
    },
    Idle {
        which: usize,
    },
    Call {
        which: usize,
    },
    End {
        which: usize,
    },
    Act,
    Wait {
        seconds: u64,
    },
}

fn event() -> impl Strategy<Value = LoanEvent> {
    let which = 0..8_usize;
    let more = prop_oneof![Just(0), 0..900_u64];
    prop_oneof![
        4 => (1..400_u64, more, any::<bool>()).prop_map(|(guaranteed, more, is_wakeful)| {
            LoanEvent::Arrive { guaranteed, more, is_wakeful }
        }),
        6 => (which.clone(), 0..1000_u64).prop_map(|(which, count)| LoanEvent::Use { which, count }),
        4 => which.clone().prop_map(|which| LoanEvent::Idle { which }),
        4 => which.clone().prop_map(|which| LoanEvent::Call { which }),
        1 => which.prop_map(|which| LoanEvent::End { which }),
        6 => Just(LoanEvent::Act),
        2 => (1..60_u64).prop_map(|seconds| LoanEvent::Wait { seconds }),
    ]
}

fn traces() -> u32 {
    let text = env::var("APPORTION_LOAN_TRACES").ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(10_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: traces(), ..ProptestConfig::default() })]

    #[test]
    fn a_pod_that_is_called_gets_its_guarantee_back_and_the_card_is_never_overfull(
        events in proptest::collection::vec(event(), 0..40),
        lends in any::<bool>(),
    ) {
        let mut node = if lends { LendingNode::new() } else { LendingNode::refusing() };
        for event in events {
            let live: Vec<_> = node.pods.keys().cloned().collect();
            match event {
                LoanEvent::Arrive { guaranteed, more, is_wakeful } => {
                    let limit = (guaranteed + more).min(UNITS);
                    if is_wakeful {
                        node.arrive_wakeful(guaranteed, limit);
                    } else {
                        node.arrive(guaranteed, limit);
                    }
                }
                LoanEvent::Use { which, count } => {
                    if let Some(id) = live.get(which) {
                        node.use_up_to(id, count);
                    }
                }
                LoanEvent::Idle { which } => {
                    live.get(which).into_iter().for_each(|id| node.becomes_idle(id));
                }
                LoanEvent::Call { which } => {
                    live.get(which).into_iter().for_each(|id| node.is_called(id));
                }
                LoanEvent::End { which } => live.get(which).into_iter().for_each(|id| node.end(id)),
                LoanEvent::Act => node.act()?,
                LoanEvent::Wait { seconds } => {
                    node.now = node.now.after(Duration::from_secs(seconds));
                }
            }
            node.holds()?;
        }
        node.run_out()?;
    }
}
