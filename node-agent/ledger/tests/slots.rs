//! A minimal kubelet, ledger and disk, and an agent that is killed at any time: a thousand pods use fifty slots, and
//! each container that starts finds its own pod's grant.

use std::collections::{BTreeMap, BTreeSet};

use apportion_ledger::{
    AllocationId, SlotEffect, SlotEvent, SlotId, SlotRefusal, SlotState, SlotTable,
};
use proptest::prelude::*;

const SLOTS: u16 = 50;
const PODS: usize = 1000;

/// A pod on the node. The kubelet has it until it leaves, and its allocation exists until it is empty.
#[derive(Debug)]
struct SlotPod {
    slot: SlotId,
    is_held: bool,
    has_started: bool,
}

#[derive(Debug)]
struct SlotNode {
    slots: SlotTable,
    /// The grants on disk.
    disk: BTreeMap<SlotId, AllocationId>,
    /// Allocations in the ledger, by pod number.
    pods: BTreeMap<usize, SlotPod>,
    created: usize,
    started: usize,
}

fn uid(number: usize) -> String {
    format!("uid-{number}")
}

fn id(number: usize) -> AllocationId {
    AllocationId(format!("1-{number}"))
}

impl SlotNode {
    fn new() -> Self {
        Self {
            slots: SlotTable::new(SLOTS),
            disk: BTreeMap::new(),
            pods: BTreeMap::new(),
            created: 0,
            started: 0,
        }
    }

    fn apply(&mut self, event: SlotEvent) -> Result<(), SlotRefusal> {
        let mut outcome = Ok(());
        for effect in self.slots.apply(event) {
            match effect {
                SlotEffect::Write { slot, allocation } => {
                    self.disk.insert(slot, allocation);
                }
                SlotEffect::Remove(slot) => {
                    self.disk.remove(&slot);
                }
                SlotEffect::List => {}
                SlotEffect::Refuse(refusal) => outcome = Err(refusal),
            }
        }
        self.check();
        outcome
    }

    fn holder(&self, slot: SlotId) -> Option<usize> {
        let mut holders = self
            .pods
            .iter()
            .filter(|(_, pod)| pod.is_held && pod.slot == slot);
        let holder = holders.next().map(|(number, _)| *number);
        assert!(holders.next().is_none(), "the kubelet gave {slot} twice");
        holder
    }

    fn held(&self) -> BTreeMap<SlotId, String> {
        let held = self.pods.iter().filter(|(_, pod)| pod.is_held);
        held.map(|(number, pod)| (pod.slot, uid(*number))).collect()
    }

    /// The kubelet takes any offered slot that it holds to be free.
    fn create(&mut self, choice: usize) {
        let held: BTreeSet<_> = self.held().into_keys().collect();
        let offered = self.slots.offers().filter(|(_, is_offered)| *is_offered);
        let free: Vec<_> = offered
            .map(|(slot, _)| slot)
            .filter(|slot| !held.contains(slot))
            .collect();
        let Some(slot) = free.get(choice % free.len().max(1)).copied() else {
            return;
        };
        self.created += 1;
        let pod = SlotPod {
            slot,
            is_held: true,
            has_started: false,
        };
        self.pods.insert(self.created, pod);
        self.apply(SlotEvent::Handed(slot))
            .expect("a slot that was offered exists");
    }

    /// A container starts, for the first time or again. The agent polls the kubelet first.
    fn start(&mut self, number: usize) {
        let slot = self.pods[&number].slot;
        assert_eq!(self.holder(slot), Some(number));
        self.look();
        let (pod, allocation) = (uid(number), id(number));
        let prepared = self.apply(SlotEvent::Prepare {
            slot,
            pod,
            allocation,
        });
        match prepared {
            Ok(()) => {
                assert_eq!(
                    self.disk.get(&slot),
                    Some(&id(number)),
                    "the grant on the wrong pod"
                );
                self.started += 1;
                self.pods.get_mut(&number).expect("it is there").has_started = true;
            }
            Err(SlotRefusal::Draining { pod, .. }) => {
                assert!(
                    self.pods
                        .iter()
                        .any(|(other, of)| uid(*other) == pod && !of.is_held),
                    "refused for the sake of {pod}, which is not there"
                );
            }
            Err(refusal) => panic!("{refusal}"),
        }
    }

    fn look(&mut self) {
        let held = self.held();
        self.apply(SlotEvent::Held(held))
            .expect("looking is not refused");
    }

    /// The last process of a pod that has left ends, and the ledger removes its allocation.
    fn empty(&mut self, number: usize) {
        self.pods.remove(&number);
        self.apply(SlotEvent::Gone(id(number)))
            .expect("an end is not refused");
    }

    /// A new agent reads the disk and polls the kubelet.
    fn restart(&mut self) {
        self.slots = SlotTable::new(SLOTS);
        for (slot, allocation) in self.disk.clone() {
            let known = self
                .pods
                .keys()
                .find(|number| id(**number) == allocation)
                .copied();
            match known {
                Some(number) => {
                    let pod = uid(number);
                    let found = SlotEvent::Found {
                        slot,
                        pod,
                        allocation,
                    };
                    self.apply(found).expect("what is found is not refused");
                }
                None => drop(self.disk.remove(&slot)),
            }
        }
        self.look();
    }

    /// Every grant on disk belongs to an existing pod, and to the slot's holder if that has started.
    fn check(&self) {
        for (slot, allocation) in &self.disk {
            let Some(SlotState::Prepared {
                allocation: known, ..
            }) = self.slots.slot(*slot)
            else {
                continue;
            };
            assert_eq!(allocation, known);
        }
        for (number, pod) in self
            .pods
            .iter()
            .filter(|(_, pod)| pod.is_held && pod.has_started)
        {
            let grant = self.disk.get(&pod.slot);
            assert!(
                grant.is_none_or(|grant| *grant == id(*number)),
                "{grant:?} on {}",
                pod.slot
            );
        }
    }

    fn step(&mut self, kind: u8, choice: usize) {
        let numbers: Vec<_> = self.pods.keys().copied().collect();
        let chosen = numbers.get(choice % numbers.len().max(1)).copied();
        match (kind, chosen) {
            (0..=3, _) if self.created < PODS => self.create(choice),
            (4..=6, Some(number)) if self.pods[&number].is_held => self.start(number),
            (7 | 8, Some(number)) => {
                self.pods.get_mut(&number).expect("it is there").is_held = false;
            }
            (9 | 10, Some(number)) if !self.pods[&number].is_held => self.empty(number),
            (11, _) => self.look(),
            (12, _) => self.restart(),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn a_thousand_pods_go_through_fifty_slots_and_none_gets_the_grant_of_another(
        steps in proptest::collection::vec((0..13_u8, any::<usize>()), 6000..7000),
    ) {
        let mut node = SlotNode::new();
        for (kind, choice) in steps {
            node.step(kind, choice);
        }
        while node.created < PODS || !node.pods.is_empty() {
            if node.created < PODS {
                node.create(node.created);
            }
            let number = *node.pods.keys().next().expect("one was created if none was there");
            if node.pods[&number].is_held {
                node.start(number);
            }
            node.pods.get_mut(&number).expect("it is there").is_held = false;
            node.look();
            node.empty(number);
        }
        prop_assert!(node.started >= PODS / 2);
        prop_assert!(node.disk.is_empty(), "grants are left: {:?}", node.disk);
        prop_assert_eq!(&node.slots, &{
            let mut all_free = SlotTable::new(SLOTS);
            let _ = all_free.apply(SlotEvent::Held(BTreeMap::new()));
            all_free
        });
    }
}

fn prepare(slot: u16, number: usize) -> SlotEvent {
    SlotEvent::Prepare {
        slot: SlotId(slot),
        pod: uid(number),
        allocation: id(number),
    }
}

#[test]
fn a_slot_waits_for_the_processes_of_the_pod_before() {
    let mut slots = SlotTable::new(1);
    let _ = slots.apply(prepare(1, 1));
    let removed = slots.apply(SlotEvent::Held(BTreeMap::new()));
    assert_eq!(removed, [SlotEffect::Remove(SlotId(1)), SlotEffect::List]);
    assert_eq!(slots.offers().collect::<Vec<_>>(), [(SlotId(1), false)]);
    let refused = slots.apply(prepare(1, 2));
    assert!(matches!(
        refused[..],
        [SlotEffect::Refuse(SlotRefusal::Draining { .. })]
    ));
    assert_eq!(slots.apply(SlotEvent::Gone(id(1))), [SlotEffect::List]);
    assert!(matches!(
        slots.apply(prepare(1, 2))[..],
        [SlotEffect::Write { .. }]
    ));
}

#[test]
fn a_container_that_starts_again_finds_its_grant_again() {
    let mut slots = SlotTable::new(1);
    let first = slots.apply(prepare(1, 1));
    assert_eq!(slots.apply(prepare(1, 1)), first);
}

#[test]
fn a_grant_is_taken_away_with_its_allocation() {
    let mut slots = SlotTable::new(1);
    let _ = slots.apply(prepare(1, 1));
    assert_eq!(
        slots.apply(SlotEvent::Gone(id(1))),
        [SlotEffect::Remove(SlotId(1))]
    );
}

#[test]
fn a_pod_that_the_kubelet_had_lost_for_a_moment_has_its_grant_back() {
    let mut slots = SlotTable::new(1);
    let _ = slots.apply(prepare(1, 1));
    let _ = slots.apply(SlotEvent::Held(BTreeMap::new()));
    let back = slots.apply(SlotEvent::Held([(SlotId(1), uid(1))].into()));
    assert!(matches!(
        back[..],
        [SlotEffect::Write { .. }, SlotEffect::List]
    ));
}

#[test]
fn a_slot_beyond_the_present_number_goes_with_its_pod() {
    let mut slots = SlotTable::new(1);
    let (slot, pod, allocation) = (SlotId(3), uid(1), id(1));
    let held: BTreeMap<_, _> = [(slot, pod.clone())].into();
    let found = SlotEvent::Found {
        slot,
        pod,
        allocation,
    };
    assert_eq!(slots.apply(found), []);
    assert_eq!(slots.apply(SlotEvent::Held(held)), []);
    assert_eq!(slots.offers().count(), 2);
    assert_eq!(
        slots.apply(SlotEvent::Gone(id(1))),
        [SlotEffect::Remove(slot)]
    );
    let none = SlotEvent::Held(BTreeMap::new());
    assert_eq!(slots.apply(none), [SlotEffect::List]);
    assert_eq!(
        slots.offers().collect::<Vec<_>>(),
        [(SlotId(1), true)],
        "no new pod gets it"
    );
}
