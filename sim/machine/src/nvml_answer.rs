//! The machine's answers to NVML.

use crate::card::SimulatedCard;
use crate::machine::Machine;
use crate::{
    CardSnapshot, CheckpointState, DriverGeneration, DriverVersions, MachineSnapshot, NvmlControl,
    NvmlRefusal, NvmlReply, NvmlRequest, PciAddress, Pid, ProcessSnapshot,
};

impl Machine {
    pub(crate) fn answer_nvml(&mut self, pid: Pid, request: NvmlRequest) -> NvmlReply {
        let reply = match request {
            NvmlRequest::Snapshot => Ok(NvmlReply::Snapshot(self.snapshot(pid))),
            NvmlRequest::Events { since } => {
                let (events, newest) = self.nvml.events_after(since);
                Ok(NvmlReply::Events { events, newest })
            }
            NvmlRequest::SetMemoryLimits {
                card,
                group,
                soft,
                hard,
            } => self
                .set_memory_limits(pid, card, group, soft, hard)
                .map(|()| NvmlReply::Done),
            NvmlRequest::GetMemoryLimits { card, group } => self
                .get_memory_limits(card, group)
                .map(NvmlReply::MemoryLimits),
            NvmlRequest::Control(control) => self.control(control).map(|()| NvmlReply::Done),
        };
        reply.unwrap_or_else(NvmlReply::Refused)
    }

    fn control(&mut self, control: NvmlControl) -> Result<(), NvmlRefusal> {
        if usize::try_from(control.card()).is_ok_and(|card| card < self.cards.len()) {
            self.nvml.control(control);
            return Ok(());
        }
        Err(NvmlRefusal::InvalidArgument)
    }

    fn snapshot(&self, pid: Pid) -> MachineSnapshot {
        let cards = self.cards.iter().enumerate();
        MachineSnapshot {
            driver: self.driver.versions(),
            cards: cards
                .map(|(position, card)| self.card_snapshot(pid, position, card))
                .collect(),
        }
    }

    fn card_snapshot(&self, pid: Pid, position: usize, card: &SimulatedCard) -> CardSnapshot {
        let hardware = u32::try_from(position)
            .map(|position| self.nvml.card(position))
            .unwrap_or_default();
        CardSnapshot {
            uuid: card.config.uuid.clone(),
            name: card.config.model.clone(),
            pci: PciAddress {
                domain: 0,
                bus: card.config.pci_bus,
                device: 0,
            },
            compute_capability: card.config.compute_capability,
            multiprocessors: card.config.multiprocessors,
            total: card.config.memory,
            reserved: card.config.reserved,
            used: card.used(),
            group: self.group_view(pid, position),
            utilisation: hardware.utilisation,
            lost: hardware.lost,
            recovery: hardware.recovery,
            rows: hardware.rows,
            throttled: hardware.throttled,
            links: card.config.links.clone(),
            memory_info: hardware.memory_info,
            processes: self.processes_on(position, card, hardware.process_memory),
        }
    }

    fn processes_on(
        &self,
        position: usize,
        card: &SimulatedCard,
        known: bool,
    ) -> Vec<ProcessSnapshot> {
        let on = self
            .processes
            .iter()
            .filter(|(_, process)| process.checkpoint.state != CheckpointState::Checkpointed)
            .filter(|(pid, process)| process.is_on(position) || card.held_by(**pid) > 0);
        on.filter_map(|(pid, _)| {
            let used = known.then(|| card.held_by(*pid));
            let pid = u32::try_from(*pid).ok()?;
            Some(ProcessSnapshot { pid, used })
        })
        .collect()
    }
}

impl DriverGeneration {
    fn versions(self) -> DriverVersions {
        DriverVersions {
            driver: self.version().to_owned(),
            nvml: format!("{}.{}", self.cuda_version() / 1000, self.version()),
            cuda: self.cuda_version(),
            memory_limits: self == Self::R615,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MachineConfig, MachineRequest, PeerIdentity};

    const MONITOR: Pid = 1;
    const PROGRAM: Pid = 2;

    fn machine() -> Machine {
        let config = MachineConfig::uniform(2, 16 << 30, DriverGeneration::R580);
        let mut machine = Machine::new(config).expect("the machine can be");
        machine.process_came(MONITOR, PeerIdentity::default());
        machine.process_came(PROGRAM, PeerIdentity::default());
        machine
    }

    #[test]
    fn a_process_is_listed_on_the_card_that_it_has_a_context_on() {
        let mut machine = machine();
        machine.apply(PROGRAM, MachineRequest::PrimaryRetain(1));
        let cards = machine.snapshot(MONITOR).cards;
        assert_eq!(cards[0].processes, []);
        let context = machine.cards[1].config.context_bytes;
        let listed = ProcessSnapshot {
            pid: 2,
            used: Some(context),
        };
        assert_eq!(cards[1].processes, [listed]);
        assert_eq!(cards[1].used, context);
    }

    #[test]
    fn a_card_that_cannot_tell_lists_processes_without_numbers() {
        let mut machine = machine();
        machine.apply(PROGRAM, MachineRequest::PrimaryRetain(0));
        let control = NvmlControl::ProcessMemory {
            card: 0,
            known: false,
        };
        let reply = machine.answer_nvml(MONITOR, NvmlRequest::Control(control));
        assert_eq!(reply, NvmlReply::Done);
        let processes = &machine.snapshot(MONITOR).cards[0].processes;
        assert_eq!(
            processes.as_slice(),
            [ProcessSnapshot { pid: 2, used: None }]
        );
    }

    #[test]
    fn nothing_happens_to_a_card_that_is_not_there() {
        let control = NvmlControl::Lost {
            card: 2,
            lost: true,
        };
        let reply = machine().answer_nvml(MONITOR, NvmlRequest::Control(control));
        assert_eq!(reply, NvmlReply::Refused(NvmlRefusal::InvalidArgument));
    }
}
