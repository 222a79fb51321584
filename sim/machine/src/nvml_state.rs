//! Hardware state that only NVML can see: load, XID errors, lost cards. Tests change it by [`NvmlControl`]. It moves no
//! memory.

use std::collections::{BTreeMap, VecDeque};

use crate::{CardConfig, CardUtilization, NvmlControl, RemappedRows, XidEvent};

/// How many events are kept for slow readers.
const EVENTS_KEPT: usize = 1024;

/// The state of the hardware, apart from its memory.
#[derive(Debug, Default)]
pub(crate) struct NvmlState {
    cards: BTreeMap<u32, CardHardware>,
    events: VecDeque<XidEvent>,
    newest: u64,
}

/// The state of one card.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CardHardware {
    pub(crate) utilisation: CardUtilization,
    pub(crate) lost: bool,
    pub(crate) recovery: u32,
    pub(crate) rows: RemappedRows,
    pub(crate) throttled: u64,
    pub(crate) memory_info: bool,
    pub(crate) process_memory: bool,
}

impl Default for CardHardware {
    fn default() -> Self {
        Self {
            utilisation: CardUtilization::default(),
            lost: false,
            recovery: 0,
            rows: RemappedRows::default(),
            throttled: 0,
            memory_info: true,
            process_memory: true,
        }
    }
}

impl NvmlState {
    /// The initial state of the hardware.
    pub(crate) fn of(cards: &[CardConfig]) -> Self {
        Self {
            cards: (0..)
                .zip(cards.iter().map(|config| CardHardware {
                    memory_info: config.memory_info,
                    process_memory: config.process_memory,
                    ..CardHardware::default()
                }))
                .collect(),
            ..Self::default()
        }
    }

    /// The state of one card.
    pub(crate) fn card(&self, position: u32) -> CardHardware {
        self.cards.get(&position).copied().unwrap_or_default()
    }

    /// Applies what a test does to the hardware.
    pub(crate) fn control(&mut self, control: NvmlControl) {
        match control {
            NvmlControl::Xid { card, xid } => self.report(card, xid),
            NvmlControl::Utilisation { card, utilisation } => {
                self.hardware(card).utilisation = utilisation;
            }
            NvmlControl::Lost { card, lost } => self.hardware(card).lost = lost,
            NvmlControl::Recovery { card, action } => self.hardware(card).recovery = action,
            NvmlControl::Rows { card, rows } => self.hardware(card).rows = rows,
            NvmlControl::Throttled { card, reasons } => self.hardware(card).throttled = reasons,
            NvmlControl::MemoryInfo { card, supported } => {
                self.hardware(card).memory_info = supported;
            }
            NvmlControl::ProcessMemory { card, known } => {
                self.hardware(card).process_memory = known;
            }
        }
    }

    /// The events after `since`, oldest first, and the newest sequence number.
    pub(crate) fn events_after(&self, since: u64) -> (Vec<XidEvent>, u64) {
        let newer = self.events.iter().filter(|event| event.sequence > since);
        (newer.copied().collect(), self.newest)
    }

    fn hardware(&mut self, card: u32) -> &mut CardHardware {
        self.cards.entry(card).or_default()
    }

    fn report(&mut self, card: u32, xid: u64) {
        self.newest += 1;
        let sequence = self.newest;
        self.events.push_back(XidEvent {
            sequence,
            card,
            xid,
        });
        if self.events.len() > EVENTS_KEPT {
            self.events.pop_front();
        }
    }
}

impl NvmlControl {
    /// The card that the control is for.
    #[must_use]
    pub fn card(&self) -> u32 {
        match *self {
            Self::Xid { card, .. }
            | Self::Utilisation { card, .. }
            | Self::Lost { card, .. }
            | Self::Recovery { card, .. }
            | Self::Rows { card, .. }
            | Self::Throttled { card, .. }
            | Self::MemoryInfo { card, .. }
            | Self::ProcessMemory { card, .. } => card,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_told_to_those_who_have_not_seen_it() {
        let mut state = NvmlState::default();
        state.control(NvmlControl::Xid { card: 0, xid: 31 });
        let (events, newest) = state.events_after(0);
        assert_eq!(
            events,
            [XidEvent {
                sequence: 1,
                card: 0,
                xid: 31
            }]
        );
        assert_eq!(state.events_after(newest), (Vec::new(), 1));
    }

    #[test]
    fn old_events_make_room_for_new_ones() {
        let mut state = NvmlState::default();
        for xid in 0..2000 {
            state.control(NvmlControl::Xid { card: 0, xid });
        }
        let (events, newest) = state.events_after(0);
        assert_eq!((events.len(), newest), (EVENTS_KEPT, 2000));
        assert_eq!(events.last().map(|event| event.xid), Some(1999));
    }
}
