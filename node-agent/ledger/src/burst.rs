//! Elastic shares: a guarantee that is always there, and a limit up to which programs may burst into memory of the card
//! that nobody was guaranteed.
//!
//! The *allowance* of an elastic grant is its `limit`: what its account says now. It is never below the guarantee and
//! never above the ceiling, which is the limit that the user wrote. It is held like any limit, so the rest of the ledger
//! works as for fixed shares: allowances and limits on a card never sum to more than the card.
//!
//! An allowance grows in steps, when programs ask for more than they have ([`LedgerEvent::Burst`]). What is not used of
//! it stays where it is until somebody needs it. Then the agent lowers the allowance in the account, and tells the ledger
//! to what ([`LedgerEvent::Withdrawn`]). A program publishes its claim before it reads the limit. So the claims that the
//! agent reads after it has lowered the limit are all that the program can get, and no sample has to confirm them. But a
//! program can forge its claims. So the grant still holds what NVML last reported until the next sample.
//!
//! # Decision: weighted max-min among those who ask
//! A program that asks and does not get enough is remembered for a second. While others ask, too, an asker gets no more
//! than its max-min part of all memory for bursts: everybody up to the same level for its weight, except those who need
//! less, and those who use more already. What is used is not taken away here. Those without a weight get what the others
//! leave.
//!
//! [`LedgerEvent::Burst`]: crate::LedgerEvent::Burst
//! [`LedgerEvent::Withdrawn`]: crate::LedgerEvent::Withdrawn

use std::time::Duration;

use apportion_abi::{Bytes, CardRequest, CardUuid, Holder, SHARE_UNIT, whole_units};

use crate::allocation::{Allocation, AllocationPhase, CardGrant, SuspensionPhase};
use crate::burst_request::{BurstRange, BurstRequest, UnmetBurst};
use crate::card::Health;
use crate::event::{AllocationRefusal, LedgerEffect, PlacementProposal};
use crate::guarantee_call::BurstHolding;
use crate::ids::AllocationId;
use crate::ledger::Ledger;
use crate::time::EpochMillis;

mod fairness;

use fairness::{BurstDemand, fair_parts};

/// An allowance grows by at least this much, so that not every small allocation has to ask.
const SMALLEST_STEP: Bytes = Bytes::from_mib(64);
/// An allowance of a large limit grows by this part of it.
const STEPS: u64 = 16;
/// For how long a program that did not get enough counts as asking.
const REMEMBERED: Duration = Duration::from_secs(1);

impl CardGrant {
    /// An elastic grant that no process uses yet. Its allowance begins with what is guaranteed.
    #[must_use]
    pub fn elastic(card: CardUuid, range: BurstRange) -> Self {
        Self {
            burst: Some(range),
            ..Self::new(card, range.guaranteed)
        }
    }

    /// What is guaranteed.
    #[must_use]
    pub fn guaranteed(&self) -> Bytes {
        self.burst.map_or(self.limit, |range| range.guaranteed)
    }

    /// The limit that the user wrote.
    #[must_use]
    pub fn ceiling(&self) -> Bytes {
        self.burst.map_or(self.limit, |range| range.ceiling)
    }

    /// What cannot be withdrawn, as far as is known: of a fixed grant all that it holds, of an elastic one its guarantee,
    /// or its use where that is higher. One that is suspended holds what is left on the card, and nothing else is firm.
    #[must_use]
    pub fn firm(&self) -> Bytes {
        self.burst.map_or(self.held, |range| {
            range.guaranteed.max(self.used).min(self.held)
        })
    }

    /// Continues with the allowance that an earlier agent wrote into the account.
    pub fn resume(&mut self, allowance: Bytes) {
        if let Some(range) = self.burst {
            self.limit = allowance.clamp(range.guaranteed, range.ceiling);
            self.held = self.limit;
        }
    }

    /// What it uses above its guarantee.
    pub(crate) fn bursts(&self) -> Bytes {
        self.burst
            .map_or(Bytes::ZERO, |range| self.firm().minus(range.guaranteed))
    }
}

impl Allocation {
    /// Whether any of its grants is elastic.
    #[must_use]
    pub fn is_elastic(&self) -> bool {
        self.grants.iter().any(|grant| grant.burst.is_some())
    }

    /// The most that it can ever use of each card.
    #[must_use]
    pub fn ceilings(&self) -> Vec<CardRequest> {
        let ceiling = |grant: &CardGrant| CardRequest {
            card: grant.card,
            bytes: grant.ceiling(),
        };
        self.grants.iter().map(ceiling).collect()
    }
}

impl Ledger {
    /// The guarantees and limits of a proposal, one for each request.
    pub(crate) fn ranges(
        &self,
        proposal: &PlacementProposal,
    ) -> Result<Vec<Option<BurstRange>>, AllocationRefusal> {
        for ceiling in &proposal.ceilings {
            if !proposal.asks.iter().any(|ask| ask.card == ceiling.card) {
                let why = "a limit is for a GPU that is not asked for";
                return Err(AllocationRefusal::Malformed(why));
            }
        }
        let mut ranges = Vec::new();
        for ask in &proposal.asks {
            let mut ceilings = proposal.ceilings.iter();
            let ceiling = ceilings.find(|ceiling| ceiling.card == ask.card);
            ranges.push(match ceiling {
                Some(ceiling) if ceiling.bytes != ask.bytes => {
                    self.check_ceiling(*ask, ceiling.bytes, None)?;
                    Some(BurstRange {
                        guaranteed: ask.bytes,
                        ceiling: ceiling.bytes,
                    })
                }
                Some(_) | None => None,
            });
        }
        Ok(ranges)
    }

    /// Whether a share of `ask` may have this limit beside those of all allocations but `except`.
    pub(crate) fn check_ceiling(
        &self,
        ask: CardRequest,
        limit: Bytes,
        except: Option<&AllocationId>,
    ) -> Result<(), AllocationRefusal> {
        let CardRequest { card, bytes: asked } = ask;
        let found = self.card(card);
        let found = found.ok_or(AllocationRefusal::UnknownCard(card))?;
        let allocatable = found.capacity.allocatable();
        if limit < asked {
            return Err(AllocationRefusal::LimitBelowRequest { card, asked, limit });
        }
        if limit > allocatable {
            return Err(AllocationRefusal::LimitAboveCard {
                card,
                limit,
                allocatable,
            });
        }
        let others = self.grants(card).filter(|(of, _)| Some(&of.id) != except);
        let others: Bytes = others.map(|(_, grant)| grant.ceiling()).sum();
        let (sum, bound) = (others.plus(limit), self.overcommit.of(allocatable));
        if sum > bound {
            return Err(AllocationRefusal::Overcommitted {
                card,
                limit,
                sum,
                bound,
                factor: self.overcommit,
                allocatable,
            });
        }
        Ok(())
    }

    /// Which others than `except` use how much above their guarantees, most first.
    pub(crate) fn bursts(&self, card: CardUuid, except: Option<&AllocationId>) -> Vec<Holder> {
        let all = self.burst_holdings(card).into_iter();
        let all = all.filter(|of| Some(&of.id) != except);
        let holder = |of: BurstHolding| Holder {
            name: of.name,
            bytes: of.bytes,
        };
        all.map(holder).collect()
    }

    /// Whether that much of the card is held by nobody, and called in by nobody. Not even no memory has room while programs
    /// use what is lent to them.
    #[must_use]
    pub fn has_room(&self, card: CardUuid, bytes: Bytes) -> bool {
        self.taken(card).plus(bytes) <= self.usable(card)
    }

    /// Whether programs that burst can have that much of the card.
    #[must_use]
    pub fn has_burst_room(&self, card: CardUuid, asks: &[BurstRequest], bytes: Bytes) -> bool {
        let here = asks.iter().filter(|ask| ask.card == card);
        let borrowers = here.filter_map(|ask| self.allocation(&ask.id));
        let lent = borrowers.map(|of| self.lent_to_burst(card, of)).min();
        let usable = self.usable(card).plus(lent.unwrap_or_default());
        self.taken(card).plus(bytes) <= usable
    }

    /// How much the requests need beyond the present allowances of their grants on this card. Those that are refused
    /// whatever is free need nothing.
    #[must_use]
    pub fn missing(&self, card: CardUuid, asks: &[BurstRequest]) -> Bytes {
        let here = asks
            .iter()
            .filter(|ask| ask.card == card && self.may_burst(ask));
        let missing = here.filter_map(|ask| {
            let grant = self.allocation(&ask.id)?.grant(card)?;
            Some(ask.wanted.minus(grant.held))
        });
        missing.sum()
    }

    /// The allocations whose allowance on the card is above their guarantee, the one that uses least of it first, with
    /// their guarantees.
    #[must_use]
    pub fn withdrawable(&self, card: CardUuid) -> Vec<(AllocationId, Bytes)> {
        let mut found = Vec::new();
        for (allocation, grant) in self.grants(card) {
            // The claims of a sleeper stay, so nothing of its allowance is idle.
            let is_running = allocation.suspension == SuspensionPhase::Running;
            if is_running && grant.limit > grant.guaranteed() {
                let idle = grant.limit.minus(grant.firm());
                found.push((idle, (allocation.id.clone(), grant.guaranteed())));
            }
        }
        found.sort_by(|a, b| b.cmp(a));
        found.into_iter().map(|(_, of)| of).collect()
    }

    /// Whether the next sample may show that more of the card is free: an elastic grant holds what NVML last reported,
    /// and its allowance is lower by now.
    #[must_use]
    pub fn awaits_sample(&self, card: CardUuid) -> bool {
        self.grants(card)
            .any(|(_, grant)| grant.burst.is_some() && grant.held > grant.limit)
    }

    /// The largest allowance that an elastic grant could get now, with what others do not use.
    #[must_use]
    pub fn reachable(&self, id: &AllocationId, card: CardUuid) -> Option<Bytes> {
        let grant = self.allocation(id)?.grant(card)?;
        let range = grant.burst?;
        let others = self.grants(card).filter(|(of, _)| of.id != *id);
        let firm: Bytes = others.map(|(_, grant)| grant.firm()).sum();
        let usable = self
            .usable(card)
            .plus(self.lent_to_burst(card, self.allocation(id)?));
        let left = usable.minus(firm).minus(self.called(card));
        Some(whole_units(left).clamp(grant.limit, range.ceiling.max(grant.limit)))
    }

    pub(crate) fn withdrawn(
        &mut self,
        id: &AllocationId,
        card: CardUuid,
        limit: Bytes,
    ) -> Vec<LedgerEffect> {
        let Some(allocation) = self.allocations.get_mut(id) else {
            return Vec::new();
        };
        let phase = allocation.suspension;
        let grant = allocation.grant_mut(card);
        let Some(grant) = grant.filter(|grant| grant.burst.is_some()) else {
            return Vec::new();
        };
        if phase == SuspensionPhase::Suspended {
            grant.limit = limit.max(grant.guaranteed()).min(grant.limit);
            grant.needed = grant.limit;
        } else if holds_its_allowance(phase) {
            grant.limit = limit.max(grant.guaranteed()).min(grant.limit);
            grant.held = grant.limit.max(grant.nvml);
            grant.used = if grant.limit > grant.guaranteed() {
                grant.held
            } else {
                grant.used.min(grant.held)
            };
        }
        Vec::new()
    }

    /// Raises allowances. All requests count before the first is decided.
    pub(crate) fn burst(&mut self, now: EpochMillis, asks: &[BurstRequest]) -> Vec<LedgerEffect> {
        self.unmet.retain(|_, unmet| unmet.until > now);
        let until = now.after(REMEMBERED);
        for ask in asks {
            if self.may_burst(ask) {
                let wanted = ask.wanted.rounded_up(SHARE_UNIT);
                let unmet = UnmetBurst { wanted, until };
                self.unmet.insert((ask.card, ask.id.clone()), unmet);
            }
        }
        asks.iter().filter_map(|ask| self.raise(ask)).collect()
    }

    fn may_burst(&self, ask: &BurstRequest) -> bool {
        let allocation = self.allocation(&ask.id);
        let allocation = allocation.filter(|of| {
            of.state != AllocationPhase::Draining && of.suspension == SuspensionPhase::Running
        });
        let grant = allocation.and_then(|of| of.grant(ask.card));
        let card = self.card(ask.card);
        card.is_some_and(|card| card.health == Health::Healthy)
            && grant.is_some_and(|grant| {
                let range = grant.burst;
                range.is_some_and(|range| ask.wanted <= range.ceiling) && ask.wanted > grant.limit
            })
    }

    fn raise(&mut self, ask: &BurstRequest) -> Option<LedgerEffect> {
        let key = (ask.card, ask.id.clone());
        let wanted = self.unmet.get(&key)?.wanted;
        let lent = self.lent_to_burst(ask.card, self.allocation(&ask.id)?);
        let part = self.fair_part(ask.card, &ask.id, lent);
        let usable = self.usable(ask.card).plus(lent);
        let room = usable.minus(self.taken(ask.card));
        let is_alone = !self
            .unmet
            .keys()
            .any(|(card, id)| *card == ask.card && *id != ask.id);
        let allocation = self.allocations.get_mut(&ask.id)?;
        let grant = allocation.grant_mut(ask.card)?;
        let range = grant.burst?;
        let most = whole_units(grant.held.plus(room).min(part).min(range.ceiling));
        if most < wanted {
            return None;
        }
        let step = Bytes(range.ceiling.0 / STEPS).max(SMALLEST_STEP);
        let target = if is_alone { wanted.plus(step) } else { wanted };
        grant.limit = whole_units(target.min(most));
        grant.held = grant.held.max(grant.limit);
        grant.allowed = grant.allowed.max(grant.limit);
        // The program waits with an allocation that needs this much. So it is no part of what others can get.
        grant.used = grant.used.max(wanted.min(grant.held));
        let limit = grant.limit;
        self.unmet.remove(&key);
        let (id, card) = (ask.id.clone(), ask.card);
        Some(LedgerEffect::SetLimit { id, card, limit })
    }

    /// The largest allowance that is fair for one asker while others ask, too.
    fn fair_part(&self, card: CardUuid, asker: &AllocationId, lent: Bytes) -> Bytes {
        let usable = self.usable(card).plus(lent);
        let mut left = usable.minus(self.called(card));
        let (mut demands, mut own) = (Vec::new(), None);
        for (allocation, grant) in self.grants(card) {
            let is_running = allocation.suspension == SuspensionPhase::Running;
            let Some(range) = grant.burst.filter(|_| is_running) else {
                left = left.minus(grant.held);
                continue;
            };
            left = left.minus(range.guaranteed);
            let unmet = self.unmet.get(&(card, allocation.id.clone()));
            let used = grant.bursts();
            let wanted = unmet.map_or(used, |unmet| unmet.wanted.minus(range.guaranteed));
            let wanted = wanted.max(used);
            if allocation.id == *asker {
                own = Some((range.guaranteed, demands.len()));
            }
            demands.push(BurstDemand {
                used,
                wanted,
                weight: allocation.terms.weight,
            });
        }
        let Some((guaranteed, at)) = own else {
            return Bytes::ZERO;
        };
        if demands.iter().map(|demand| demand.wanted).sum::<Bytes>() <= left {
            return guaranteed.plus(left);
        }
        let part = fair_parts(&demands, left).get(at).copied();
        guaranteed.plus(part.unwrap_or_default())
    }

    /// What programs can get of a card: all of it, less memory without an allocation.
    pub(crate) fn usable(&self, card: CardUuid) -> Bytes {
        self.card(card).map_or(Bytes::ZERO, |found| {
            found.capacity.allocatable().minus(found.unmanaged)
        })
    }

    /// What is held of a card, or called in.
    fn taken(&self, card: CardUuid) -> Bytes {
        let held: Bytes = self.grants(card).map(|(_, grant)| grant.held).sum();
        held.plus(self.called(card))
    }
}

/// Whether the account's limit is also what the grants hold, so that a lower one lowers both.
fn holds_its_allowance(phase: SuspensionPhase) -> bool {
    match phase {
        SuspensionPhase::Running | SuspensionPhase::Suspending => true,
        SuspensionPhase::Suspended | SuspensionPhase::Resuming => false,
    }
}
