//! Newcomers that wait until a guarantee is called in, and who is left alone meanwhile.
//!
//! Nothing here is saved. A newcomer is gone with the connection to the agent that it asked, or asks the next agent again,
//! and what is known about those who cannot be moved is found out again.
//!
//! # Decision: pods ask again
//! A scheduler and the kubelet wait for seconds, and a suspension may take longer. So a pod is told at once that its
//! guarantee is being called in. Its call stays open, and keeps what it waits for, until the pod is proposed again or the
//! call is too old. If it was refused in the end, the pod is refused for a while without a new call, so that its scheduler
//! looks elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use apportion_abi::CardRequest;
use apportion_ledger::{AllocationId, CallClaimant, Ledger, PlacementProposal};
use apportion_proto::v1;

use crate::api::request::Answer;

/// For how long an allocation that could not be suspended is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(60);
/// How long after a wake that failed the next one is tried.
const WOKEN_AGAIN_IN: Duration = Duration::from_secs(5);
/// How many samples must be taken before anybody is suspended. They show what programs have given back by themselves.
/// The first may have begun before the call.
const SAMPLES: u8 = 2;

/// A newcomer whose guarantee is called in.
pub(super) struct WaitingNewcomer {
    pub(super) proposal: PlacementProposal,
    /// Where it waits for the answer; `None` if it asks again.
    pub(super) answer: Option<Answer<v1::AllocateReply>>,
    pub(super) since: Instant,
    /// How long it waits at most. A copy of 40 GiB takes about ten seconds, a lock at most as long.
    pub(super) deadline: Duration,
    /// Whether somebody was suspended for it.
    pub(super) has_suspended: bool,
}

impl WaitingNewcomer {
    pub(super) fn claimant(&self) -> CallClaimant {
        CallClaimant::Newcomer(self.proposal.key.clone())
    }

    pub(super) fn asks(&self) -> &[CardRequest] {
        &self.proposal.asks
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.since.elapsed() >= self.deadline
    }

    /// Whether it gave up. One that asks again does so by not asking, see [`Self::is_overdue`].
    pub(super) fn is_gone(&self) -> bool {
        self.answer.as_ref().is_some_and(Answer::is_closed)
    }
}

/// Why a newcomer that asks again was refused, and until when that holds.
struct RefusedNewcomer {
    reasons: String,
    until: Instant,
}

/// Why an allocation is left alone, and until when.
struct UnableBurst {
    why: String,
    until: Instant,
}

/// All newcomers that wait, and what was learned about those who burst.
#[derive(Default)]
pub(super) struct WaitingCalls {
    /// The newcomers, in the order in which they came.
    pub(super) newcomers: Vec<WaitingNewcomer>,
    unable: BTreeMap<AllocationId, UnableBurst>,
    /// Newcomers that ask again and were refused meanwhile, by key.
    refused: BTreeMap<String, RefusedNewcomer>,
    /// Sleepers that could not be woken, and when they are tried again.
    unwoken: BTreeMap<AllocationId, Instant>,
    /// The samples since the last call or transition.
    samples: u8,
}

impl WaitingCalls {
    /// Notes that samples from before now do not count.
    pub(super) fn want_samples(&mut self) {
        self.samples = 0;
    }

    pub(super) fn count_sample(&mut self) {
        self.samples = self.samples.saturating_add(1);
    }

    /// Whether samples show what programs have given back by themselves.
    pub(super) fn is_sampled(&self) -> bool {
        self.samples >= SAMPLES
    }

    /// Leaves an allocation alone that could not be suspended.
    pub(super) fn leave_alone(&mut self, id: AllocationId, why: String) {
        let until = Instant::now() + LEFT_ALONE;
        self.unable.insert(id, UnableBurst { why, until });
    }

    /// Leaves a sleeper asleep that could not be woken, for a while.
    pub(super) fn let_sleep(&mut self, id: AllocationId) {
        self.unwoken.insert(id, Instant::now() + WOKEN_AGAIN_IN);
    }

    pub(super) fn may_wake(&self, id: &AllocationId) -> bool {
        !self.unwoken.contains_key(id)
    }

    pub(super) fn unable(&self) -> BTreeSet<AllocationId> {
        self.unable.keys().cloned().collect()
    }

    /// Why an allocation could not be suspended.
    pub(super) fn why_unable(&self, id: &AllocationId) -> Option<&str> {
        self.unable.get(id).map(|of| of.why.as_str())
    }

    /// Takes out the newcomer with this key, if it waits.
    pub(super) fn take(&mut self, key: &str) -> Option<WaitingNewcomer> {
        let place = self
            .newcomers
            .iter()
            .position(|of| of.proposal.key == key)?;
        Some(self.newcomers.remove(place))
    }

    /// Notes that a newcomer that asks again is to be refused.
    pub(super) fn note_refusal(&mut self, key: String, reasons: String) {
        let until = Instant::now() + LEFT_ALONE;
        self.refused.insert(key, RefusedNewcomer { reasons, until });
    }

    /// Why a newcomer was refused a while ago.
    pub(super) fn why_refused(&self, key: &str) -> Option<&str> {
        self.refused.get(key).map(|of| of.reasons.as_str())
    }

    /// Forgets what is out of date.
    pub(super) fn forget(&mut self, ledger: &Ledger) {
        let now = Instant::now();
        let is_there = |id: &AllocationId| ledger.allocation(id).is_some();
        self.unable.retain(|id, of| of.until > now && is_there(id));
        self.refused.retain(|_, of| of.until > now);
        self.unwoken
            .retain(|id, until| *until > now && is_there(id));
    }
}

#[cfg(test)]
mod tests {
    use apportion_ledger::OffenderPolicy;

    use super::*;

    #[test]
    fn nobody_is_suspended_before_two_samples_and_what_is_gone_is_forgotten() {
        let mut calls = WaitingCalls::default();
        calls.count_sample();
        assert!(!calls.is_sampled());
        calls.count_sample();
        assert!(calls.is_sampled());
        calls.want_samples();
        assert!(!calls.is_sampled());
        let id = AllocationId("4d-1".to_owned());
        calls.leave_alone(id.clone(), "it is stuck".to_owned());
        calls.let_sleep(id.clone());
        assert_eq!(calls.why_unable(&id), Some("it is stuck"));
        assert!(!calls.may_wake(&id));
        calls.forget(&Ledger::new(1, OffenderPolicy::Observe));
        assert!(calls.unable().is_empty() && calls.may_wake(&id));
    }
}
