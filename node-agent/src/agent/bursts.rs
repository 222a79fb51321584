//! Larger allowances for programs that ask, and smaller ones for programs that do not use theirs.
//!
//! What a program wants is in its `burst` file. The ledger decides, the limit is written, and then the program is
//! answered.
//!
//! A request that is not met now, but may be met after the next sample ([`Ledger::awaits_sample`]), waits for it. The
//! sample is started at once. One that was under way began before the request, so a request waits for two.
//!
//! The program of a raised allowance must wake up before it can use it. Until it has, or for [`SETTLING`], other programs
//! that ask do not take what it waits for. They wait. A guarantee does take it.
//!
//! [`SETTLING`]: super::burst_listeners::SETTLING
//! [`Ledger::awaits_sample`]: apportion_ledger::Ledger::awaits_sample

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use apportion_abi::{Bytes, CardUuid};
use apportion_ledger::{Allocation, AllocationId, Ledger, LedgerEffect, LedgerEvent};
use prometheus_client::metrics::histogram::Histogram;
use tracing::warn;

use super::burst_listeners::{BurstWake, PendingRequest};
use super::clock::now;
use super::state::AgentState;
use crate::account::AccountFiles;

/// After how many samples a request is refused if there is still no room for it.
const SAMPLES: u8 = 2;
/// Histogram buckets for the time to an answer, in seconds.
const BOUNDS: [f64; 10] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1,
];

impl AgentState {
    /// Listens to the FIFO of an account, if it has one, and publishes what its programs can have.
    pub(super) fn listen_for_bursts(&mut self, id: &AllocationId) {
        let account = self.accounts.get(id);
        let Some(fifo) = account.and_then(AccountFiles::open_fifo) else {
            return;
        };
        if let Err(problem) = fifo.and_then(|fifo| self.bursts.listen(id, fifo)) {
            warn!(%id, %problem, "Failed to listen to an elastic account, it keeps its allowance");
        }
        let allocation = self.ledger.allocation(id);
        let grants = allocation.iter().flat_map(|allocation| &allocation.grants);
        self.show_reachable(&grants.map(|grant| grant.card).collect());
    }

    /// Answers the programs of an account, and of all others that ask by now.
    pub(super) fn answer_bursts(&mut self, woken: BurstWake) {
        let mut accounts = BTreeMap::from([(woken.id, woken.at)]);
        for other in self.bursts.others() {
            accounts.entry(other.id).or_insert(other.at);
        }
        let requests = self.open_requests(accounts);
        self.decide(requests);
    }

    /// Decides on the requests that waited for a sample, and on those whose wake was lost.
    pub(super) fn answer_after_sample(&mut self) {
        for request in &mut self.bursts.pending {
            request.samples += 1;
        }
        let now = Instant::now();
        let accounts = self.bursts.accounts().into_iter();
        let requests = self.open_requests(accounts.map(|id| (id, now)));
        self.decide(requests);
        let cards = self.cards.all().iter().map(|card| card.uuid).collect();
        self.show_reachable(&cards);
    }

    /// The requests that wait, and those of these accounts. A request that waits is still open in its account, and what
    /// it wants was taken from there.
    fn open_requests(
        &mut self,
        accounts: impl IntoIterator<Item = (AllocationId, Instant)>,
    ) -> Vec<PendingRequest> {
        let mut requests = std::mem::take(&mut self.bursts.pending);
        for (id, since) in accounts {
            let account = self.accounts.get(&id);
            for request in account.map(AccountFiles::open_requests).unwrap_or_default() {
                let mut waiting = requests.iter_mut();
                match waiting.find(|of| of.id == id && of.request.card == request.card) {
                    Some(earlier) => earlier.join(request),
                    None => requests.push(PendingRequest {
                        id: id.clone(),
                        request,
                        since,
                        samples: 0,
                    }),
                }
            }
        }
        requests
    }

    fn decide(&mut self, requests: Vec<PendingRequest>) {
        if requests.is_empty() {
            return;
        }
        let asks: Vec<_> = requests.iter().map(PendingRequest::ask).collect();
        let cards: BTreeSet<_> = asks.iter().map(|ask| ask.card).collect();
        self.end_settled();
        for card in &cards {
            let missing = self.ledger.missing(*card, &asks);
            let settling = self.bursts.settling(*card);
            self.withdraw_until(*card, None, &settling, |ledger| {
                ledger.has_burst_room(*card, &asks, missing)
            });
        }
        let effects = self.ledger.apply(now(), LedgerEvent::Burst(asks));
        let (limits, others): (Vec<_>, Vec<_>) = effects
            .into_iter()
            .partition(|effect| matches!(effect, LedgerEffect::SetLimit { .. }));
        for effect in limits {
            if let LedgerEffect::SetLimit { id, card, .. } = &effect {
                let mut all = requests.iter();
                let raised = all.find(|of| of.id == *id && of.request.card == *card);
                if let Some((of, raised)) = raised.map(PendingRequest::raised) {
                    let account = self.accounts.get(id);
                    let open =
                        account.map_or(0, |account| account.open_until(*card, raised.ticket));
                    self.bursts.abandoned.note_waiting(&of, open);
                    self.bursts.raised.insert(of, raised);
                }
            }
            self.perform(effect);
        }
        requests.into_iter().for_each(|of| self.answer(of));
        let mut waiting = self.bursts.pending.iter();
        if waiting.any(|of| self.ledger.awaits_sample(of.request.card)) {
            self.sample();
        }
        self.perform_all(others, None);
        self.show_reachable(&cards);
        self.show();
    }

    /// Forgets the raised allowances whose programs have charged, and those whose programs took too long.
    fn end_settled(&mut self) {
        let (accounts, now) = (&self.accounts, Instant::now());
        let abandoned = &mut self.bursts.abandoned;
        self.bursts.raised.retain(|of, raised| {
            let (card, id) = of;
            let account = accounts.get(id);
            let open = account.map_or(0, |account| account.open_until(*card, raised.ticket));
            if abandoned.covers(of, open) {
                return false;
            }
            if raised.until <= now {
                abandoned.give_up(of, open);
            }
            raised.until > now
        });
    }

    /// Answers one request, unless it may be met after the next sample, or when another program has used what it was
    /// given.
    fn answer(&mut self, pending: PendingRequest) {
        let PendingRequest { id, request, .. } = &pending;
        let allocation = self.ledger.allocation(id);
        let grant = allocation.and_then(|allocation| allocation.grant(request.card));
        let is_met = grant.is_some_and(|grant| grant.limit >= request.wanted);
        let is_early = pending.samples < SAMPLES && self.ledger.awaits_sample(request.card)
            || self.bursts.is_another_settling(id, request.card);
        if !is_met && is_early {
            self.bursts.pending.push(pending);
            return;
        }
        if let Some(account) = self.accounts.get(id) {
            account.answer(request);
        }
        let result = if is_met { "granted" } else { "refused" };
        let answers = &mut self.publisher.stats().burst_answers;
        let answers = answers
            .entry(result)
            .or_insert_with(|| Histogram::new(BOUNDS));
        answers.observe(pending.since.elapsed().as_secs_f64());
    }

    /// Withdraws allowances for what an event asks for.
    pub(super) fn make_room_for(&mut self, event: &LedgerEvent) {
        match event {
            LedgerEvent::Allocate(proposal) => {
                for ask in &proposal.asks {
                    self.make_room(ask.card, ask.bytes);
                }
            }
            LedgerEvent::Resize { id, asks, .. } => {
                for ask in asks {
                    let grant = (self.ledger.allocation(id)).and_then(|of| of.grant(ask.card));
                    let held = grant.map_or(Bytes::ZERO, |grant| grant.held);
                    // What the share itself has above its guarantee counts for its new guarantee.
                    self.make_room_beside(ask.card, ask.bytes.minus(held), Some(id));
                }
            }
            LedgerEvent::Resume { id } => {
                let allocation = self.ledger.allocation(id);
                for (card, bytes) in allocation.map(Allocation::lacks).unwrap_or_default() {
                    self.make_room(card, bytes);
                }
            }
            _ => {}
        }
    }

    /// Withdraws what an allocation does not use of its allowances. What it uses stays, and is what a resume needs.
    pub(super) fn withdraw_unused(&mut self, id: &AllocationId) {
        let grants = self.ledger.allocation(id).map(|of| of.grants.clone());
        for grant in grants.into_iter().flatten().filter(|of| of.burst.is_some()) {
            let (card, guaranteed) = (grant.card, grant.guaranteed());
            self.withdraw(id.clone(), card, guaranteed);
        }
    }

    fn withdraw(&mut self, id: AllocationId, card: CardUuid, least: Bytes) {
        let account = self.accounts.get(&id);
        if let Some(limit) = account.and_then(|account| account.withdraw(card, least)) {
            self.apply_quietly(LedgerEvent::Withdrawn { id, card, limit });
        }
    }

    /// Withdraws allowances on a card that are not used, until that much of it is held by nobody.
    pub(super) fn make_room(&mut self, card: CardUuid, bytes: Bytes) {
        self.make_room_beside(card, bytes, None);
    }

    /// Does so with the allowances of all allocations but `except`.
    fn make_room_beside(&mut self, card: CardUuid, bytes: Bytes, except: Option<&AllocationId>) {
        self.withdraw_until(card, except, &BTreeMap::new(), |ledger| {
            ledger.has_room(card, bytes)
        });
    }

    /// Withdraws until there is enough, from no allocation more than down to what it must keep.
    fn withdraw_until(
        &mut self,
        card: CardUuid,
        except: Option<&AllocationId>,
        kept: &BTreeMap<AllocationId, Bytes>,
        is_enough: impl Fn(&Ledger) -> bool,
    ) {
        if is_enough(&self.ledger) {
            return;
        }
        let withdrawable = self.ledger.withdrawable(card).into_iter();
        for (id, guaranteed) in withdrawable.filter(|(id, _)| Some(id) != except) {
            let kept = kept.get(&id).copied().unwrap_or_default();
            self.withdraw(id, card, guaranteed.max(kept));
            if is_enough(&self.ledger) {
                return;
            }
        }
    }

    /// Publishes what elastic shares could have now.
    pub(super) fn show_reachable(&self, cards: &BTreeSet<CardUuid>) {
        for allocation in self.ledger.allocations() {
            let elastic = allocation.grants.iter().filter(|of| of.burst.is_some());
            for grant in elastic.filter(|grant| cards.contains(&grant.card)) {
                let reachable = self.ledger.reachable(&allocation.id, grant.card);
                let account = self.accounts.get(&allocation.id);
                if let Some((account, reachable)) = account.zip(reachable) {
                    account.set_reachable(grant.card, reachable);
                }
            }
        }
    }
}
