//! Shares and whole cards from one ledger, a kubelet that counts devices, and an agent that is killed: no card is
//! ever given to two pods, and every offered device can be given.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apportion_abi::{BurstTerms, Bytes, CardCapacity, CardRequest, CardUuid};
use apportion_ledger::{
    AllocationId, AllocationOwner, AllocationRefusal, EpochMillis, GpuTopology, Ledger,
    LedgerEffect, LedgerEvent, LimitEnforcement, OffenderPolicy, PlacementProposal, SlotTable,
    WholeCardId, WholeCardTable,
};
use proptest::prelude::*;

mod examples;

const CARDS: u8 = 4;
const ALL: u64 = 1000;
const TTL: Duration = Duration::from_secs(3600);

fn card(number: usize) -> CardUuid {
    CardUuid([u8::try_from(number).unwrap_or_default() % CARDS; 16])
}

/// A node: the agent's ledger and the kubelet's state.
struct WholeCardNode {
    ledger: Ledger,
    wholes: WholeCardTable,
    slots: SlotTable,
    topology: GpuTopology,
    now: EpochMillis,
    /// The devices that the kubelet has given to pods.
    held: BTreeMap<WholeCardId, String>,
    pods: usize,
}

impl WholeCardNode {
    fn new() -> Self {
        let mut node = Self {
            ledger: Ledger::new(1, OffenderPolicy::Observe),
            wholes: WholeCardTable::default(),
            slots: SlotTable::new(4),
            topology: GpuTopology::default(),
            now: EpochMillis(1000),
            held: BTreeMap::new(),
            pods: 0,
        };
        for number in 0..usize::from(CARDS) {
            node.topology.add(card(number), None);
            let (total, reserved) = (Bytes(ALL + 24), Bytes(24));
            let capacity = CardCapacity { total, reserved };
            let card = card(number);
            let _ = node
                .ledger
                .apply(node.now, LedgerEvent::CardFound { card, capacity });
        }
        node
    }

    fn apply(&mut self, event: LedgerEvent) -> Result<AllocationId, AllocationRefusal> {
        let effects = self.ledger.apply(self.now, event);
        let answer = effects.into_iter().find_map(|effect| match effect {
            LedgerEffect::Answer(answer) => Some(answer),
            _ => None,
        });
        answer.unwrap_or(Err(AllocationRefusal::Malformed("the request is empty")))
    }

    fn reserve(&mut self, key: &str, cards: &[CardUuid], bytes: u64) -> Option<AllocationId> {
        let proposal = PlacementProposal {
            key: key.to_owned(),
            name: key.to_owned(),
            asks: cards
                .iter()
                .map(|card| CardRequest {
                    card: *card,
                    bytes: Bytes(bytes),
                })
                .collect(),
            ceilings: Vec::new(),
            terms: BurstTerms::default(),
            ttl: TTL,
            idle_after: None,
        };
        self.apply(LedgerEvent::Allocate(proposal)).ok()
    }

    fn share(&mut self, number: usize, bytes: u64) {
        self.pods += 1;
        let pod = format!("share-{}", self.pods);
        if let Some(id) = self.reserve(&pod, &[card(number)], bytes) {
            let owner = AllocationOwner::Pod(pod);
            self.apply(LedgerEvent::Commit { id, owner })
                .expect("it was just reserved");
        }
    }

    /// The scheduler reserves whole cards for a pod that the kubelet has not admitted yet.
    fn reserve_whole(&mut self, number: usize) {
        self.pods += 1;
        let pod = format!("placed-{}", self.pods);
        let _ = self.reserve(&pod, &[card(number)], ALL);
    }

    /// The kubelet allocates any offered devices, to a pod with a reservation or to another one.
    fn admit(&mut self, choice: usize, count: usize, placed: bool) {
        let offers = self
            .wholes
            .offers(&self.ledger, &self.slots, &self.topology);
        let offered = offers.iter().filter(|offer| offer.is_offered);
        let mut free: Vec<_> = offered
            .map(|offer| offer.id)
            .filter(|id| !self.held.contains_key(id))
            .collect();
        if free.len() < count {
            return;
        }
        let shift = choice % free.len();
        free.rotate_left(shift);
        let ids = &free[..count];
        // The kubelet may not know the latest changes yet.
        self.look();
        let offers = self
            .wholes
            .offers(&self.ledger, &self.slots, &self.topology);
        let can_be = ids
            .iter()
            .all(|id| offers.iter().any(|of| of.id == *id && of.card.is_some()));
        let (ledger, slots) = (&self.ledger, &self.slots);
        let handed = self
            .wholes
            .hand(self.now, ledger, slots, &self.topology, ids);
        assert!(handed.is_ok() || !can_be, "{handed:?} {offers:?}");
        let Ok(holds) = handed else {
            return;
        };
        for (id, card) in holds {
            self.reserve(&id.hold_key(), &[card], ALL)
                .expect("it is idle");
        }
        let waiting = self.ledger.allocations().into_iter();
        let waiting: Vec<_> = waiting
            .filter(|of| of.key.starts_with("placed-"))
            .map(|of| of.key.clone())
            .filter(|pod| !self.held.values().any(|known| known == pod))
            .collect();
        let pod = match waiting
            .get(choice % waiting.len().max(1))
            .filter(|_| placed)
        {
            Some(pod) => pod.clone(),
            None => {
                self.pods += 1;
                format!("pod-{}", self.pods)
            }
        };
        self.held.extend(ids.iter().map(|id| (*id, pod.clone())));
    }

    fn look(&mut self) {
        let outcome =
            self.wholes
                .polled(self.now, &self.ledger, &self.held, &BTreeSet::new(), true);
        for id in outcome.release {
            self.apply(LedgerEvent::Release { id })
                .expect("a hold can be let go");
        }
        for pod in outcome.give {
            let _ = self.give(&pod);
        }
    }

    /// What the agent does before a container starts.
    fn give(&mut self, pod: &str) -> Option<Vec<CardUuid>> {
        let ids: BTreeSet<_> = self
            .held
            .iter()
            .filter(|(_, of)| *of == pod)
            .map(|(id, _)| *id)
            .collect();
        let plan = self.ledger.plan_whole(&self.topology, pod, &ids).ok()?;
        for id in plan.release {
            self.apply(LedgerEvent::Release { id })
                .expect("a hold can be let go");
        }
        let mut reserved = plan.commit;
        if let Some((key, cards)) = plan.ask {
            reserved.push(self.reserve(&key, &cards, ALL).expect("the plan fits"));
        }
        for id in reserved {
            let owner = AllocationOwner::Pod(pod.to_owned());
            self.apply(LedgerEvent::Commit { id, owner })
                .expect("it is reserved");
        }
        let cards = self.ledger.cards_of(pod);
        for card in &cards {
            let id = self
                .ledger
                .whole_with(pod, *card)
                .expect("it has it")
                .clone();
            self.apply(LedgerEvent::GivenWhole { id })
                .expect("it takes all of the card");
        }
        assert!(cards.len() >= ids.len());
        Some(cards)
    }

    /// A pod leaves, and its last process ends.
    fn leave(&mut self, choice: usize) {
        let pods: BTreeSet<String> = self.held.values().cloned().collect();
        let shares = self.ledger.allocations().into_iter();
        let shares = shares
            .filter(|of| of.key.starts_with("share-"))
            .map(|of| of.key.clone());
        let all: Vec<String> = pods.into_iter().chain(shares).collect();
        let Some(pod) = all.get(choice % all.len().max(1)) else {
            return;
        };
        self.held.retain(|_, holder| holder != pod);
        let of_pod = AllocationOwner::Pod(pod.clone());
        let its: Vec<_> = self
            .ledger
            .allocations()
            .into_iter()
            .filter(|of| {
                of.state == apportion_ledger::AllocationPhase::Allocated(of_pod.clone())
                    || of.key == *pod
            })
            .map(|of| of.id.clone())
            .collect();
        for id in its {
            let _ = self.apply(LedgerEvent::Release { id: id.clone() });
            let _ = self.apply(LedgerEvent::Emptied { id });
        }
    }

    /// The next agent has the ledger and polls the kubelet.
    fn restart(&mut self) {
        self.wholes = WholeCardTable::resume(&self.ledger);
        self.look();
    }

    fn check(&self) {
        for number in 0..usize::from(CARDS) {
            let card = card(number);
            let all = self.ledger.allocations().into_iter();
            let on_it: Vec<_> = all.filter(|of| of.grant(card).is_some()).collect();
            let is_whole = on_it.iter().any(|of| of.is_whole);
            assert!(!is_whole || on_it.len() == 1, "{on_it:?}");
            assert!(self.ledger.granted(card) <= Bytes(ALL));
        }
        let offers = self
            .wholes
            .offers(&self.ledger, &self.slots, &self.topology);
        let cards: Vec<_> = offers.iter().filter_map(|offer| offer.card).collect();
        let different: BTreeSet<_> = cards.iter().collect();
        assert_eq!(
            cards.len(),
            different.len(),
            "one card behind two devices: {offers:?}"
        );
        for id in self.held.keys() {
            assert!(
                offers
                    .iter()
                    .any(|offer| offer.id == *id && offer.is_offered),
                "{id} is held"
            );
        }
    }

    fn step(&mut self, kind: u8, choice: usize) {
        self.now = self.now.after(Duration::from_secs(1));
        match kind {
            0 | 1 => self.share(choice, 1 + (choice as u64 % 700)),
            2 => self.reserve_whole(choice),
            3 => self.admit(choice, 1, false),
            4 => self.admit(choice, 1, true),
            5 => self.admit(choice, 2, false),
            6 | 7 => self.look(),
            8 => self.restart(),
            9 | 10 => self.leave(choice),
            _ => {
                let pods: Vec<String> = self.held.values().cloned().collect();
                if let Some(pod) = pods.get(choice % pods.len().max(1)) {
                    self.look();
                    let _ = self.give(pod);
                }
            }
        }
        self.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_card_is_given_whole_and_to_somebody_else(
        steps in proptest::collection::vec((0..13_u8, any::<usize>()), 0..200),
    ) {
        let mut node = WholeCardNode::new();
        for (kind, choice) in steps {
            node.step(kind, choice);
        }
        while !node.held.is_empty() || !node.ledger.allocations().is_empty() {
            node.leave(0);
            node.now = node.now.after(TTL * 2);
            let _ = node.ledger.apply(node.now, LedgerEvent::Tick);
            node.look();
        }
        let offers = node.wholes.offers(&node.ledger, &node.slots, &node.topology);
        prop_assert!(offers.iter().all(|offer| offer.is_offered), "{:?}", offers);
    }
}
