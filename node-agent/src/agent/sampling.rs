//! Turns the driver's readings, which are by pid, into a sample for the ledger, which is by allocation.

use apportion_abi::{Bytes, CardUuid};
use apportion_ledger::{CardSample, Health, LedgerEvent, NodeSample, ProcessId, ProcessSample};

use super::clock::now;
use super::context_cost::{LEEWAY, ProbeStep};
use super::state::AgentState;
use crate::driver::{CardReading, DriverReadings};
use crate::processes::procfs;

impl AgentState {
    /// Processes the driver's readings. Returns what the probe of contexts learned from them.
    pub(super) fn read(&mut self, readings: DriverReadings) -> ProbeStep {
        let users = readings
            .cards
            .iter()
            .flat_map(|card| card.processes.keys())
            .filter_map(|pid| procfs::live(*pid));
        self.accounts.meet(users);
        self.collect_claims();
        for card in &readings.found {
            self.cards.add(card);
            self.apply_quietly(LedgerEvent::CardFound {
                card: card.uuid,
                capacity: card.capacity,
            });
        }
        if !readings.found.is_empty() {
            self.limits.try_out(self.cards.limitable());
        }
        let step = self.costs.measure(&readings);
        self.lingering.observe(&readings);
        for reading in &readings.cards {
            self.apply_quietly(LedgerEvent::CardHealth {
                card: reading.uuid,
                health: reading.health,
            });
        }
        let throttled = readings
            .cards
            .iter()
            .filter_map(|reading| Some((reading.uuid, reading.throttled?)));
        self.publisher.stats().throttled = throttled.collect();
        let sample = self.sample_of(&readings);
        self.cards.keep(readings.cards, now());
        self.apply_quietly(LedgerEvent::Sampled(sample));
        self.answer_after_sample();
        self.keep_driver_limits();
        self.show();
        step
    }

    /// Reads all claims. Processes that claim membership become members.
    pub(super) fn collect_claims(&mut self) {
        self.accounts.read();
        for (id, process) in self.accounts.strangers(&self.members) {
            // Two rules: a descendant of another allocation's owner belongs to that allocation, whatever its slot
            // says. And a slot alone makes nobody a member, because its program can write anything there.
            if self.owner_of(process).is_none()
                && self.may_join(process, &id)
                && self.accounts.is_mapped_by(&id, process)
            {
                self.members.join(process, &id);
            }
        }
    }

    fn sample_of(&mut self, readings: &DriverReadings) -> NodeSample {
        let mut cards = Vec::new();
        for reading in &readings.cards {
            if reading.health == Health::Healthy {
                cards.push(self.card_sample(reading, readings.sequence));
            }
        }
        NodeSample {
            generation: self.cards.asked_at(),
            cards,
            accounts: self.accounts.samples(&self.ledger),
        }
    }

    fn card_sample(&mut self, reading: &CardReading, sequence: u64) -> CardSample {
        let mut used = reading.used;
        let mut processes = Vec::new();
        for (pid, nvml) in &reading.processes {
            if self.costs.is_probe(*pid) {
                // Our probe ends before anybody gets its memory.
                used = used.minus(nvml.unwrap_or_default());
            } else if let Some(process) = procfs::live(*pid) {
                processes.push(self.process_sample(process, reading.uuid, *nvml));
            } else if let Some(dead) = self.lingering.sample(*pid, sequence, *nvml) {
                processes.push(dead);
            }
            // Any other unknown pid has either just ended, or belongs to a process that the agent cannot see. The
            // ledger distinguishes the two by how long the memory stays unexplained.
        }
        CardSample {
            card: reading.uuid,
            used,
            unlisted: self.accounts.unlisted(reading, &self.ledger),
            leeway: self.context_cost(reading.uuid).first.max(LEEWAY),
            processes,
        }
    }

    fn process_sample(
        &mut self,
        process: ProcessId,
        card: CardUuid,
        nvml: Option<Bytes>,
    ) -> ProcessSample {
        let owner = self.owner_of(process);
        let claimed =
            (owner.as_ref()).and_then(|owner| self.accounts.window(owner, process, card, nvml));
        ProcessSample {
            process,
            owner,
            nvml,
            claimed,
            has_ended: false,
        }
    }
}
