//! Turns the driver's readings, which are by pid, into a sample for the ledger, which is by allocation.

use super::*;
use crate::processes::procfs;
use apportion_ledger::{AccountSample, CardSample, ClaimWindow, NodeSample, ProcessSample};

/// How many processes that claim membership are looked up for each account in one round.
const STRANGERS: usize = 16;

/// The least leeway of a process, for cards whose contexts cost little or are not charged. It covers some dozens of
/// modules that the driver loads lazily.
const LEEWAY: Bytes = Bytes::from_mib(64);

impl NodeAgent {
    /// Processes the driver's readings.
    pub(super) fn read(&mut self, readings: DriverReadings) {
        let users = readings.cards.iter().flat_map(|card| card.processes.keys());
        let users = users.filter_map(|pid| procfs::live(*pid));
        self.namespaces.meet(users.collect());
        self.collect_slots();
        for card in &readings.found {
            self.driver.cards.push(card.clone());
            // The new card may change the ordinals of the others.
            let cards = self.driver.cards.iter_mut();
            cards.for_each(|card| card.cuda_ordinal = None);
            self.apply_quietly(LedgerEvent::CardFound {
                card: card.uuid,
                capacity: card.capacity,
            });
        }
        self.measure_probe(&readings);
        self.left.observe(&readings);
        for reading in &readings.cards {
            self.apply_quietly(LedgerEvent::CardHealth {
                card: reading.uuid,
                health: reading.health,
            });
        }
        let said = readings.cards.iter();
        let said = said.filter_map(|reading| Some((reading.uuid, reading.throttled?)));
        self.counts.throttled = said.collect();
        let sample = self.sample_of(&readings);
        self.readings = readings
            .cards
            .into_iter()
            .map(|reading| (reading.uuid, reading))
            .collect();
        self.sampled = Some((Instant::now(), now().0));
        self.apply_quietly(LedgerEvent::Sampled(sample));
        self.show();
        if std::mem::take(&mut self.is_stale) {
            self.sample();
        }
    }

    pub(super) fn collect_slots(&mut self) {
        let mut slots = BTreeMap::new();
        for (id, account) in &self.accounts {
            slots.insert(id.clone(), account.end(&mut self.namespaces));
        }
        for (id, slots) in &slots {
            for slot in self.strangers(slots) {
                // Two rules: a descendant of another allocation's owner belongs to that allocation, whatever its
                // slot says. And a slot alone makes nobody a member, because its program can write anything there.
                if self.owner_of(slot.process).is_none()
                    && self.may_join(slot.process, id)
                    && self.has_mapped(id, slot)
                {
                    self.members.join(slot.process, id);
                }
            }
        }
        self.slots = slots;
    }

    /// The slots whose process is no member yet, a few in each round: programs can write anything there, and each
    /// look-up is expensive.
    fn strangers<'a>(&mut self, slots: &'a [ProcessClaims]) -> Vec<&'a ProcessClaims> {
        self.turn = self.turn.wrapping_add(STRANGERS);
        let is_stranger = |slot: &&ProcessClaims| !self.members.contains(slot.process);
        let mut strangers: Vec<_> = slots.iter().filter(is_stranger).collect();
        let first = self.turn % strangers.len().max(1);
        strangers.rotate_left(first);
        strangers.truncate(STRANGERS);
        strangers
    }

    fn has_mapped(&self, id: &AllocationId, slot: &ProcessClaims) -> bool {
        // The agent itself has every account mapped.
        let pid = slot.process.pid;
        let account = self.accounts.get(id).filter(|_| pid != std::process::id());
        account.is_some_and(|account| account.is_mapped_by(pid))
    }

    fn sample_of(&mut self, readings: &DriverReadings) -> NodeSample {
        let healthy = readings
            .cards
            .iter()
            .filter(|reading| reading.health == Health::Healthy);
        let sequence = readings.sequence;
        let cards = healthy.map(|reading| self.card_sample(reading, sequence));
        let cards = cards.collect();
        let accounts = self.accounts.iter().map(|(id, account)| AccountSample {
            id: id.clone(),
            is_sound: account.is_sound(),
            claimed: account
                .limits()
                .map(|(card, _, _)| (card, account.used(card).claimed))
                .collect(),
        });
        // If the account could not be opened, this agent does not enforce the limit.
        let all = self.ledger.allocations().into_iter();
        let lacking = all.filter(|allocation| !self.accounts.contains_key(&allocation.id));
        let lacking = lacking.map(|allocation| AccountSample {
            id: allocation.id.clone(),
            is_sound: false,
            claimed: Vec::new(),
        });
        NodeSample {
            generation: self.asked_at,
            cards,
            accounts: accounts.chain(lacking).collect(),
        }
    }

    fn card_sample(&mut self, reading: &CardReading, sequence: u64) -> CardSample {
        let mut used = reading.used;
        let mut processes = Vec::new();
        for (pid, nvml) in &reading.processes {
            if self.is_probe(*pid) {
                // Our probe ends before anybody gets its memory.
                used = used.minus(nvml.unwrap_or_default());
            } else if let Some(process) = procfs::live(*pid) {
                processes.push(self.process_sample(process, reading.uuid, *nvml));
            } else if let Some(dead) = self.left.sample(*pid, sequence, *nvml) {
                processes.push(dead);
            }
            // Any other unknown pid has either just ended, or belongs to a process that the agent cannot see. The
            // ledger distinguishes the two by how long the memory stays unexplained.
        }
        CardSample {
            card: reading.uuid,
            used,
            unlisted: self.unlisted(reading),
            leeway: self.context_reserve(reading.uuid).max(LEEWAY),
            processes,
        }
    }

    /// The claims of processes that the driver does not list on the card.
    ///
    /// The tenant writes its claims. They explain no more memory than is held for the allocation, so that a forged
    /// claim cannot hide the memory of others.
    fn unlisted(&self, reading: &CardReading) -> Bytes {
        let claimed = |(id, slots): (&AllocationId, &Vec<ProcessClaims>)| {
            let position = self.accounts.get(id)?.position(reading.uuid)?;
            let grant = self.ledger.allocation(id)?.grant(reading.uuid)?;
            let unlisted = slots
                .iter()
                .filter(|slot| !reading.processes.contains_key(&slot.process.pid));
            let claims = unlisted.filter_map(|slot| slot.claimed.get(position).copied());
            Some(claims.sum::<Bytes>().min(grant.held))
        };
        self.slots.iter().filter_map(claimed).sum()
    }

    fn process_sample(
        &mut self,
        process: apportion_ledger::ProcessId,
        card: CardUuid,
        nvml: Option<Bytes>,
    ) -> ProcessSample {
        let owner = self.owner_of(process);
        let claimed = owner.as_ref().and_then(|id| {
            let Some(account) = self.accounts.get(id) else {
                // The account may be of another layout version. Its claims are unknown, so the process is taken to
                // be honest.
                return Some(ClaimWindow {
                    lowest: Bytes::ZERO,
                    highest: nvml.unwrap_or_default(),
                });
            };
            let at = account.position(card)?;
            let slot = self
                .slots
                .get(id)?
                .iter()
                .find(|slot| slot.process == process)?;
            slot.claims.get(at).copied()
        });
        ProcessSample {
            process,
            owner,
            nvml,
            claimed,
            has_ended: false,
        }
    }
}
