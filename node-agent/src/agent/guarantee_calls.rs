//! Calls guarantees in: a newcomer whose guarantee is used by programs that burst waits until enough of them sleep, and
//! each is woken when there is room for it again, or when its turn has come.
//!
//! The ledger says what comes next ([`Ledger::call_step`]). This file does it, one step after each sample and after each
//! transition: only one child moves processes at a time.
//!
//! [`Ledger::call_step`]: apportion_ledger::Ledger::call_step

use std::time::Instant;

use apportion_abi::{Bytes, CardRequest, CardUuid};
use apportion_ledger::{
    AllocationId, AllocationRefusal, CallClaimant, CallStep, CallTerms, GuaranteeCall, LedgerEvent,
    PlacementProposal,
};
use apportion_process_checkpoints::transition::TransitionGoal;
use apportion_proto::v1;
use tonic::Status;
use tracing::{info, warn};

use super::NodeAgent;
use super::clock::now;
use super::state::RequestOutcome;
use super::suspensions::TransitionClient;
use super::waiting_calls::WaitingNewcomer;
use crate::api::request::{Answer, NewcomerPatience};
use crate::options::BurstReclaim;
use crate::telemetry::call_stats::CallResult;

/// The end of the refusal of a newcomer that asks again.
const CALLED_IN: &str = "; it is being called in, by suspending who uses it";

/// What is done with a newcomer now.
enum NewcomerFate {
    Waits,
    Served,
    Refused,
}

impl NodeAgent {
    /// Answers a newcomer at once, or lets it wait or ask again until its guarantee is called in.
    pub(super) fn allocate_or_call_in(
        &mut self,
        proposal: PlacementProposal,
        patience: NewcomerPatience,
        answer: Answer<v1::AllocateReply>,
    ) {
        let since = Instant::now();
        if self.state.ledger.is_known(&proposal.key) || !self.is_short(&proposal) {
            match self.state.calls.take(&proposal.key) {
                Some(waited) => self.serve(WaitingNewcomer {
                    proposal,
                    answer: Some(answer),
                    ..waited
                }),
                None => drop(answer.send(self.allocate(proposal))),
            }
            return;
        }
        if let Some(waiting) = self.state.calls.take(&proposal.key) {
            if waiting.proposal.asks == proposal.asks && waiting.answer.is_none() {
                let _ = answer.send(self.called_in(proposal));
                self.state.calls.newcomers.push(waiting);
                return;
            }
            let claimant = waiting.claimant();
            self.state.apply_quietly(LedgerEvent::CallClosed(claimant));
        }
        self.state
            .make_room_for(&LedgerEvent::Allocate(proposal.clone()));
        if !self.is_short(&proposal) {
            let reply = self.allocate(proposal);
            self.count_call(CallResult::Withdrawn, since);
            let _ = answer.send(reply);
            return;
        }
        let reasons = self.state.calls.why_refused(&proposal.key);
        if let Some(reasons) = reasons.map(str::to_owned) {
            let _ = answer.send(self.allocate_or(proposal, &reasons));
            return;
        }
        let can_call_in = self.can_call_in(&proposal);
        let mut newcomer = WaitingNewcomer {
            proposal,
            answer: Some(answer),
            since,
            deadline: self.options.cards.guarantee_deadline,
            has_suspended: false,
        };
        if !can_call_in {
            self.refuse(newcomer);
            return;
        }
        let asks_again = match patience {
            NewcomerPatience::Waits => None,
            NewcomerPatience::AsksAgain => newcomer.answer.take(),
        };
        let proposal = newcomer.proposal.clone();
        self.call_for(newcomer);
        if let Some(answer) = asks_again {
            let _ = answer.send(self.called_in(proposal));
        }
    }

    /// The answer to a newcomer that asks again.
    fn called_in(&mut self, proposal: PlacementProposal) -> Result<v1::AllocateReply, Status> {
        let mut reply = self.allocate_or(proposal, CALLED_IN)?;
        if let Some(shortfall) = shortfall_of(&mut reply) {
            shortfall.called_in = true;
        }
        Ok(reply)
    }

    /// Allocates, or refuses with these reasons at the end of the sentence.
    fn allocate_or(
        &mut self,
        proposal: PlacementProposal,
        reasons: &str,
    ) -> Result<v1::AllocateReply, Status> {
        let mut reply = self.allocate(proposal)?;
        if let Some(shortfall) = shortfall_of(&mut reply) {
            shortfall.sentence.push_str(reasons);
        }
        Ok(reply)
    }

    fn is_short(&self, proposal: &PlacementProposal) -> bool {
        let checked = self.state.ledger.check(proposal);
        matches!(checked, Err(AllocationRefusal::Shortfall(_)))
    }

    /// Whether programs that burst may sleep for it.
    fn can_call_in(&self, proposal: &PlacementProposal) -> bool {
        let ledger = &self.state.ledger;
        let is_lent = |ask: &CardRequest| {
            !ledger.burst_holdings(ask.card).is_empty() || ledger.awaits_sample(ask.card)
        };
        self.options.cards.burst_reclaim == BurstReclaim::Suspend
            && proposal.asks.iter().any(is_lent)
            && self.is_within_quota(proposal).is_ok()
    }

    fn call_for(&mut self, newcomer: WaitingNewcomer) {
        let (claimant, name) = (newcomer.claimant(), newcomer.proposal.name.clone());
        let asks = newcomer.asks().to_vec();
        let asked: Bytes = asks.iter().map(|ask| ask.bytes).sum();
        info!(name, %asked, "Guarantee called in");
        let call = GuaranteeCall {
            claimant,
            name,
            asks,
        };
        self.state.apply_quietly(LedgerEvent::CallOpened(call));
        self.state.calls.newcomers.push(newcomer);
        self.state.calls.want_samples();
        self.state.sample();
    }

    /// Goes on with all newcomers that wait, and wakes a sleeper if there is room.
    pub(super) fn continue_calls(&mut self) {
        self.state.calls.forget(&self.state.ledger);
        for mut newcomer in std::mem::take(&mut self.state.calls.newcomers) {
            match self.fate(&mut newcomer) {
                NewcomerFate::Waits => self.state.calls.newcomers.push(newcomer),
                NewcomerFate::Served => self.serve(newcomer),
                NewcomerFate::Refused => self.refuse(newcomer),
            }
        }
        self.wake_sleepers();
        if !self.state.calls.newcomers.is_empty() && !self.state.calls.is_sampled() {
            self.state.sample();
        }
    }

    fn fate(&mut self, newcomer: &mut WaitingNewcomer) -> NewcomerFate {
        loop {
            let step = self.next_step(&newcomer.claimant(), newcomer.asks());
            let may_move = self.state.calls.is_sampled() && !self.state.suspensions.is_busy();
            match step {
                CallStep::Ready if newcomer.answer.is_some() => return NewcomerFate::Served,
                _ if newcomer.is_overdue() || newcomer.is_gone() => {
                    return NewcomerFate::Refused;
                }
                CallStep::Ready => return NewcomerFate::Waits,
                CallStep::Hopeless if may_move => return NewcomerFate::Refused,
                CallStep::Suspend(id) if may_move => {
                    // One that cannot be moved is left alone from here on, so the next step is another one.
                    if self.call_in(&id) {
                        newcomer.has_suspended = true;
                        return NewcomerFate::Waits;
                    }
                }
                CallStep::Hopeless | CallStep::Suspend(_) | CallStep::Awaited => {
                    return NewcomerFate::Waits;
                }
            }
        }
    }

    /// The next step of a call, after what is not used was withdrawn.
    pub(super) fn next_step(&mut self, claimant: &CallClaimant, asks: &[CardRequest]) -> CallStep {
        let step = self.step(claimant, asks);
        if step != CallStep::Awaited {
            return step;
        }
        for ask in asks {
            self.state.make_room(ask.card, ask.bytes);
        }
        self.step(claimant, asks)
    }

    fn step(&self, claimant: &CallClaimant, asks: &[CardRequest]) -> CallStep {
        let terms = CallTerms {
            unable: &self.state.calls.unable(),
            turn: self.options.cards.suspend_turn,
        };
        self.state.ledger.call_step(now(), claimant, asks, terms)
    }

    /// Begins to put an allocation to sleep for somebody who was promised what it uses. Returns whether it did.
    pub(super) fn call_in(&mut self, id: &AllocationId) -> bool {
        let begun = self.begin_call_in(id);
        match &begun {
            Ok(()) => {
                info!(%id, "Share goes to sleep, a guarantee needs what it uses above its own")
            }
            Err(why) => {
                warn!(%id, why, "Share cannot sleep, and is left alone for a while");
                self.state.calls.leave_alone(id.clone(), why.clone());
            }
        }
        begun.is_ok()
    }

    fn begin_call_in(&mut self, id: &AllocationId) -> Result<(), String> {
        let room = self.host_room(id);
        room.map_err(|shortfall| shortfall.to_string())?;
        match self.state.apply(LedgerEvent::CallIn { id: id.clone() }) {
            RequestOutcome::Answered(Ok(id)) => {
                self.state.withdraw_unused(&id);
                let client = TransitionClient::Guarantee;
                self.state
                    .move_processes(id, TransitionGoal::Asleep, true, client);
                Ok(())
            }
            RequestOutcome::Answered(Err(refusal)) => Err(refusal.to_string()),
            RequestOutcome::Failed(problem) => Err(problem),
        }
    }

    fn serve(&mut self, newcomer: WaitingNewcomer) {
        let result = if newcomer.has_suspended {
            CallResult::Suspended
        } else {
            CallResult::Withdrawn
        };
        let name = newcomer.proposal.name.clone();
        let reply = self.allocate(newcomer.proposal);
        let waited = newcomer.since.elapsed();
        info!(
            name,
            ?waited,
            has_suspended = newcomer.has_suspended,
            "Guarantee served"
        );
        self.count_call(result, newcomer.since);
        if let Some(answer) = newcomer.answer {
            let _ = answer.send(reply);
        }
    }

    fn refuse(&mut self, newcomer: WaitingNewcomer) {
        let claimant = newcomer.claimant();
        let was_open = self.state.ledger.has_call(&claimant);
        self.state.apply_quietly(LedgerEvent::CallClosed(claimant));
        if newcomer.is_gone() {
            info!(
                name = newcomer.proposal.name,
                "Newcomer gone, its call is closed"
            );
            return;
        }
        let reasons = self.reasons(&newcomer, was_open);
        let ledger = &self.state.ledger;
        let mut asks = newcomer.asks().iter();
        let is_lent = asks.any(|ask| !ledger.burst_holdings(ask.card).is_empty());
        if is_lent || was_open {
            self.count_call(CallResult::Refused, newcomer.since);
        }
        let WaitingNewcomer {
            proposal, answer, ..
        } = newcomer;
        match answer {
            Some(answer) => {
                let mut reply = self.allocate_or(proposal, &reasons);
                if let Some(shortfall) = reply.as_mut().ok().and_then(shortfall_of) {
                    shortfall.has_waited = was_open;
                }
                let _ = answer.send(reply);
            }
            None => {
                info!(name = proposal.name, reasons, "Guarantee not called in");
                self.state.calls.note_refusal(proposal.key, reasons);
            }
        }
    }

    /// Why those who burst cannot sleep, as the end of a refusal.
    fn reasons(&self, newcomer: &WaitingNewcomer, was_open: bool) -> String {
        let mut text = String::new();
        if !was_open {
            return text;
        }
        for ask in newcomer.asks() {
            for of in self.state.ledger.burst_holdings(ask.card) {
                let obstacle = of.obstacle.map(|obstacle| obstacle.to_string());
                let unable = self.state.calls.why_unable(&of.id).map(str::to_owned);
                match obstacle.or(unable) {
                    Some(why) => {
                        text.push_str(&format!("; {} cannot be suspended: {why}", of.name));
                    }
                    None if !newcomer.is_overdue() => {
                        text.push_str(&format!("; to suspend {} is not enough", of.name));
                    }
                    None => {}
                }
            }
        }
        if newcomer.is_overdue() {
            let waited = newcomer.since.elapsed().as_secs();
            text.push_str(&format!("; it was not free after {waited} s"));
        }
        text
    }

    fn count_call(&mut self, result: CallResult, since: Instant) {
        let stats = self.state.publisher.stats();
        stats.calls.count(result, since.elapsed());
    }

    /// Wakes the sleeper that has slept longest of those for whom there is room. If there is none, the first whose turn
    /// has come takes the place of others that had theirs.
    fn wake_sleepers(&mut self) {
        let sleepers = self.state.ledger.sleepers().into_iter();
        let sleepers: Vec<_> = sleepers
            .map(|of| {
                (
                    of.id.clone(),
                    of.name.clone(),
                    of.moved,
                    asks_of(of.lacks()),
                )
            })
            .collect();
        for (id, name, fell_asleep, asks) in sleepers {
            if self.state.suspensions.is_busy() {
                return;
            }
            if !self.state.calls.may_wake(&id) {
                continue;
            }
            let is_its_turn = fell_asleep.after(self.options.cards.suspend_turn) <= now()
                && self.options.cards.burst_reclaim == BurstReclaim::Suspend;
            let claimant = CallClaimant::Sleeper(id.clone());
            match self.next_step(&claimant, &asks) {
                CallStep::Ready => self.wake(&id, TransitionClient::Guarantee),
                CallStep::Suspend(_) if is_its_turn && !self.state.calls.is_sampled() => {}
                CallStep::Suspend(other) if is_its_turn => {
                    let call = GuaranteeCall {
                        claimant,
                        name,
                        asks,
                    };
                    self.state.apply_quietly(LedgerEvent::CallOpened(call));
                    self.call_in(&other);
                }
                CallStep::Suspend(_) | CallStep::Hopeless => {
                    self.state.apply_quietly(LedgerEvent::CallClosed(claimant));
                }
                CallStep::Awaited => {}
            }
        }
    }

    pub(super) fn wake(&mut self, id: &AllocationId, client: TransitionClient) {
        match self.state.apply(LedgerEvent::Resume { id: id.clone() }) {
            RequestOutcome::Answered(Ok(id)) => {
                self.state
                    .move_processes(id, TransitionGoal::Awake, true, client);
            }
            RequestOutcome::Answered(Err(refusal)) => {
                info!(%id, %refusal, "Sleeper not woken yet");
                self.state.calls.let_sleep(id.clone());
            }
            RequestOutcome::Failed(problem) => {
                warn!(%id, problem, "Sleeper could not be woken, it is tried again");
                self.state.calls.let_sleep(id.clone());
            }
        }
    }
}

fn shortfall_of(reply: &mut v1::AllocateReply) -> Option<&mut v1::Shortfall> {
    match &mut reply.result {
        Some(v1::allocate_reply::Result::Shortfall(shortfall)) => Some(shortfall),
        Some(v1::allocate_reply::Result::Allocation(_)) | None => None,
    }
}

pub(super) fn asks_of(lacks: Vec<(CardUuid, Bytes)>) -> Vec<CardRequest> {
    let lacks = lacks.into_iter();
    lacks
        .map(|(card, bytes): (CardUuid, Bytes)| CardRequest { card, bytes })
        .collect()
}
