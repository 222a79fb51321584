//! From what the driver says of pids to what the ledger needs to know of allocations.

use super::*;
use crate::procfs;
use apportion_ledger::{AccountSample, CardSample, ClaimWindow, NodeSample, ProcessSample};

/// How many processes that claim to be in an account are looked up in one round.
const STRANGERS: usize = 16;

/// The least that a process may take beyond its claims without an offence, where contexts cost little or nothing
/// is charged for them: some dozens of modules, which drivers load lazily.
const LEEWAY: Bytes = Bytes::from_mib(64);

impl NodeAgent {
    /// Enters what the driver answered.
    pub(super) fn read(&mut self, readings: DriverReadings) {
        let users = readings.cards.iter().flat_map(|card| card.processes.keys());
        let users = users.filter_map(|pid| procfs::live(*pid));
        self.namespaces.meet(users.collect());
        self.collect_slots();
        for card in &readings.found {
            self.driver.cards.push(card.clone());
            // Those of before may have other numbers beside it.
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
                // A descendant of somebody else's owner is that owner's, whatever is written here; and
                // a slot alone, which its program can write as it likes, makes nobody else a member.
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

    /// The slots whose process is no member yet: a few at a time, in turns, as anything can be written
    /// there and each is looked up in many places.
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
        // The agent has every account mapped.
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
        // One whose account could not be opened has no limit that this agent keeps.
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
                // It is ours, and gone before anybody gets its memory.
                used = used.minus(nvml.unwrap_or_default());
            } else if let Some(process) = procfs::live(*pid) {
                processes.push(self.process_sample(process, reading.uuid, *nvml));
            } else if let Some(dead) = self.left.sample(*pid, sequence, *nvml) {
                processes.push(dead);
            }
            // The memory of any other pid that is nobody is either back in a moment or that of a process
            // which cannot be seen from here; the ledger tells these apart by how long it lasts.
        }
        CardSample {
            card: reading.uuid,
            used,
            unlisted: self.unlisted(reading),
            leeway: self.context_reserve(reading.uuid).max(LEEWAY),
            processes,
        }
    }

    /// What was claimed of a card by processes that the driver does not list there.
    ///
    /// Claims are a tenant's own words. They explain no more memory than is held for the allocation, so that a forged
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
                // Of another version perhaps. Nobody knows what is claimed there, and it is taken for honest.
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
