//! From what the driver says of pids to what the ledger needs to know of allocations.

use super::*;
use crate::procfs;
use apportion_ledger::{AccountSample, CardSample, ProcessSample, Sample};

impl Agent {
    /// Enters what the driver answered.
    pub(super) fn read(&mut self, readings: Readings) {
        self.collect_slots();
        for card in &readings.found {
            self.driver.cards.push(card.clone());
            self.apply_quietly(Event::CardFound {
                card: card.uuid,
                capacity: card.capacity,
            });
        }
        self.measure_probe(&readings);
        for reading in &readings.cards {
            self.apply_quietly(Event::CardHealth {
                card: reading.uuid,
                health: reading.health,
            });
        }
        let sample = self.sample_of(&readings);
        self.readings = readings
            .cards
            .into_iter()
            .map(|reading| (reading.uuid, reading))
            .collect();
        self.sampled = Some((Instant::now(), now().0));
        self.apply_quietly(Event::Sampled(sample));
        self.show();
        if std::mem::take(&mut self.is_stale) {
            self.sample();
        }
    }

    fn collect_slots(&mut self) {
        let mut slots = BTreeMap::new();
        for (id, account) in &self.accounts {
            slots.insert(id.clone(), account.end(&mut self.namespaces));
        }
        for (id, slots) in &slots {
            for slot in slots {
                // A descendant of somebody else's owner is that owner's, whatever it writes here.
                let owner = self.members.owner_of(slot.process);
                if owner.is_none() {
                    self.members.join(slot.process, id);
                }
            }
        }
        self.slots = slots;
    }

    fn sample_of(&mut self, readings: &Readings) -> Sample {
        let healthy = readings
            .cards
            .iter()
            .filter(|reading| reading.health == Health::Healthy);
        let cards = healthy.map(|reading| self.card_sample(reading)).collect();
        let accounts = self.accounts.iter().map(|(id, account)| AccountSample {
            id: id.clone(),
            is_sound: account.is_sound(),
            claimed: account
                .limits()
                .map(|(card, _, _)| (card, account.used(card).claimed))
                .collect(),
        });
        Sample {
            generation: self.asked_at,
            cards,
            accounts: accounts.collect(),
        }
    }

    fn card_sample(&mut self, reading: &Reading) -> CardSample {
        let mut used = reading.used;
        let mut processes = Vec::new();
        for (pid, nvml) in &reading.processes {
            // The probe is ours and gone before anybody gets its memory; so is who has just ended.
            let live = procfs::live(*pid).filter(|_| !self.is_probe(*pid));
            match live {
                Some(process) => processes.push(self.process_sample(process, reading.uuid, *nvml)),
                None => used = used.minus(nvml.unwrap_or_default()),
            }
        }
        CardSample {
            card: reading.uuid,
            used,
            processes,
        }
    }

    fn process_sample(
        &mut self,
        process: apportion_ledger::ProcessId,
        card: CardUuid,
        nvml: Option<Bytes>,
    ) -> ProcessSample {
        let owner = self.members.owner_of(process);
        let claimed = owner.as_ref().and_then(|id| {
            let at = self.accounts.get(id)?.position(card)?;
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
        }
    }
}
