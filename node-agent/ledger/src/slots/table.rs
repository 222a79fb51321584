//! All slots, and the one function that changes them.

use std::collections::BTreeMap;

use super::slot::{SlotId, SlotState};
use crate::ids::AllocationId;

/// Something that happened to slots.
#[expect(missing_docs, reason = "the types of the fields say what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotEvent {
    /// A grant was on disk when the agent started, and its allocation still exists.
    Found {
        slot: SlotId,
        pod: String,
        /// The allocation that it grants.
        allocation: AllocationId,
    },
    /// The kubelet gives a slot to some container.
    Handed(SlotId),
    /// A container of this pod, which holds the slot, is about to start.
    Prepare {
        slot: SlotId,
        pod: String,
        allocation: AllocationId,
    },
    /// All slots in use according to the kubelet, with the UIDs of their pods.
    Held(BTreeMap<SlotId, String>),
    /// The ledger has removed an allocation.
    Gone(AllocationId),
}

/// What the agent must do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotEffect {
    /// Write or rewrite the slot's grant.
    Write {
        /// The slot.
        slot: SlotId,
        /// The allocation that it grants.
        allocation: AllocationId,
    },
    /// Remove the slot's grant.
    Remove(SlotId),
    /// Tell the kubelet which slots are healthy.
    List,
    /// The slot cannot be prepared.
    Refuse(SlotRefusal),
}

/// Why a container on a slot must not start.
#[expect(missing_docs, reason = "the types of the fields say what they are")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotRefusal {
    /// There is no such slot.
    #[error("this node has no slot {0}")]
    Unknown(SlotId),
    /// Processes of the previous pod are still running.
    #[error("processes of pod {pod}, the previous holder of slot {slot}, are still running")]
    Draining { slot: SlotId, pod: String },
    /// Another pod holds it.
    #[error("slot {slot} is in use by pod {pod}")]
    Taken { slot: SlotId, pod: String },
}

/// The slots of the node, and which pod holds each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotTable {
    slots: BTreeMap<SlotId, SlotState>,
    /// The configured number. Slots beyond it were found on disk and are dropped when their pods leave.
    count: u16,
}

impl SlotTable {
    /// A table of `count` free slots.
    #[must_use]
    pub fn new(count: u16) -> Self {
        let slots = (1..=count).map(|number| (SlotId(number), SlotState::Free));
        Self {
            slots: slots.collect(),
            count,
        }
    }

    /// Each slot, and whether it can be offered to the kubelet.
    pub fn offers(&self) -> impl Iterator<Item = (SlotId, bool)> + '_ {
        self.slots
            .iter()
            .map(|(id, slot)| (*id, !matches!(slot, SlotState::Draining { .. })))
    }

    /// The slots with a grant, and the allocation that each grants.
    pub fn prepared(&self) -> impl Iterator<Item = (SlotId, &AllocationId)> + '_ {
        self.slots.iter().filter_map(|(id, slot)| match slot {
            SlotState::Prepared { allocation, .. } => Some((*id, allocation)),
            SlotState::Free | SlotState::Handed | SlotState::Draining { .. } => None,
        })
    }

    /// The number of slots in each state, by `SlotState::word`.
    #[must_use]
    pub fn tally(&self) -> BTreeMap<&'static str, usize> {
        let mut tally = BTreeMap::from(SlotState::WORDS.map(|word| (word, 0)));
        for slot in self.slots.values() {
            *tally.entry(slot.word()).or_default() += 1;
        }
        tally
    }

    /// Whether an allocation is delivered through a slot.
    #[must_use]
    pub fn deliver(&self, id: &AllocationId) -> bool {
        self.slots.values().any(|slot| match slot {
            SlotState::Prepared { allocation, .. } | SlotState::Draining { allocation, .. } => {
                allocation == id
            }
            SlotState::Free | SlotState::Handed => false,
        })
    }

    /// The state of the slot with this id.
    #[must_use]
    pub fn slot(&self, id: SlotId) -> Option<&SlotState> {
        self.slots.get(&id)
    }

    /// Applies an event and returns what the agent must do.
    #[must_use]
    pub fn apply(&mut self, event: SlotEvent) -> Vec<SlotEffect> {
        let mut effects = match event {
            SlotEvent::Found {
                slot,
                pod,
                allocation,
            } => self.found(slot, pod, allocation),
            SlotEvent::Handed(slot) => self.handed(slot),
            SlotEvent::Prepare {
                slot,
                pod,
                allocation,
            } => self.prepare(slot, pod, allocation),
            SlotEvent::Held(held) => self.held(&held),
            SlotEvent::Gone(allocation) => self.gone(&allocation),
        };
        effects.extend(self.retire());
        effects
    }

    /// Drops free slots beyond the configured number.
    fn retire(&mut self) -> Option<SlotEffect> {
        let before = self.slots.len();
        let count = self.count;
        self.slots
            .retain(|id, slot| id.0 <= count || *slot != SlotState::Free);
        (self.slots.len() < before).then_some(SlotEffect::List)
    }

    /// Slots beyond the configured number are accepted, too: they stay until their pods leave, and get no new pod.
    fn found(&mut self, id: SlotId, pod: String, allocation: AllocationId) -> Vec<SlotEffect> {
        self.slots
            .insert(id, SlotState::Prepared { pod, allocation });
        Vec::new()
    }

    /// The kubelet gives out only slots that it holds to be free, so the previous pod has left.
    fn handed(&mut self, id: SlotId) -> Vec<SlotEffect> {
        let Some(slot) = self.slots.get_mut(&id) else {
            return vec![SlotEffect::Refuse(SlotRefusal::Unknown(id))];
        };
        match slot {
            SlotState::Free | SlotState::Handed => {
                *slot = SlotState::Handed;
                Vec::new()
            }
            SlotState::Prepared { .. } => leave(id, slot),
            SlotState::Draining { .. } => Vec::new(),
        }
    }

    fn prepare(&mut self, id: SlotId, pod: String, allocation: AllocationId) -> Vec<SlotEffect> {
        let Some(slot) = self.slots.get_mut(&id) else {
            return vec![SlotEffect::Refuse(SlotRefusal::Unknown(id))];
        };
        let refusal = match slot {
            SlotState::Prepared { pod: present, .. } if *present != pod => SlotRefusal::Taken {
                slot: id,
                pod: present.clone(),
            },
            SlotState::Draining { pod: present, .. } if *present != pod => SlotRefusal::Draining {
                slot: id,
                pod: present.clone(),
            },
            SlotState::Free
            | SlotState::Handed
            | SlotState::Prepared { .. }
            | SlotState::Draining { .. } => {
                let effects = written(id, slot, &allocation);
                *slot = SlotState::Prepared { pod, allocation };
                return effects;
            }
        };
        vec![SlotEffect::Refuse(refusal)]
    }

    fn held(&mut self, held: &BTreeMap<SlotId, String>) -> Vec<SlotEffect> {
        let mut effects = Vec::new();
        for (id, slot) in &mut self.slots {
            match (&*slot, held.get(id)) {
                (SlotState::Handed, None) => *slot = SlotState::Free,
                (SlotState::Prepared { pod, .. }, holder) if holder != Some(pod) => {
                    effects.extend(leave(*id, slot));
                }
                (SlotState::Draining { pod, allocation }, Some(holder)) if holder == pod => {
                    let (pod, allocation) = (pod.clone(), allocation.clone());
                    effects.extend(written(*id, slot, &allocation));
                    *slot = SlotState::Prepared { pod, allocation };
                }
                _ => {}
            }
        }
        effects
    }

    fn gone(&mut self, gone: &AllocationId) -> Vec<SlotEffect> {
        let mut effects = Vec::new();
        for (id, slot) in &mut self.slots {
            match slot {
                SlotState::Prepared { allocation, .. } if allocation == gone => {
                    *slot = SlotState::Handed;
                    effects.push(SlotEffect::Remove(*id));
                }
                SlotState::Draining { allocation, .. } if allocation == gone => {
                    *slot = SlotState::Free;
                    effects.push(SlotEffect::List);
                }
                SlotState::Free
                | SlotState::Handed
                | SlotState::Prepared { .. }
                | SlotState::Draining { .. } => {}
            }
        }
        effects
    }
}

/// Marks that the pod has left its slot.
fn leave(id: SlotId, slot: &mut SlotState) -> Vec<SlotEffect> {
    if let SlotState::Prepared { pod, allocation } = std::mem::take(slot) {
        *slot = SlotState::Draining { pod, allocation };
    }
    vec![SlotEffect::Remove(id), SlotEffect::List]
}

fn written(slot: SlotId, before: &SlotState, allocation: &AllocationId) -> Vec<SlotEffect> {
    let write = SlotEffect::Write {
        slot,
        allocation: allocation.clone(),
    };
    match before {
        SlotState::Draining { .. } => vec![write, SlotEffect::List],
        SlotState::Free | SlotState::Handed | SlotState::Prepared { .. } => vec![write],
    }
}
