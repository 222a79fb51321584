//! How cards are connected, and which of them to allocate together.
//!
//! Cards connected by NVLink are worth more together than cards that communicate through the CPUs. Among all sets of
//! the wanted size, the set with the closest pairs wins. Among equals, the set that cuts the least worth between
//! taken and remaining cards wins, so that the next request finds a good set, too. Among equals of these, the first
//! in the driver's order wins, so that the same request always gets the same answer.

use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::CardUuid;

/// The most sets that are compared. If there are more, cards are added one by one.
const MOST_SETS: usize = 50_000;

/// What lies between two cards. Closer is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CardCloseness {
    /// The link between CPU sockets, or unknown.
    #[default]
    System,
    /// The host bridges of one NUMA node.
    Node,
    /// One host bridge.
    Bridge,
    /// Several PCIe switches.
    Switches,
    /// One PCIe switch.
    Switch,
    /// Nothing: both are on one board.
    Board,
    /// This many NVLinks.
    Links(u32),
}

impl CardCloseness {
    /// The worth of a pair in a set. One NVLink is worth more than any path over PCIe.
    fn worth(self) -> u64 {
        match self {
            Self::System => 0,
            Self::Node => 1,
            Self::Bridge => 2,
            Self::Switches => 3,
            Self::Switch => 4,
            Self::Board => 5,
            Self::Links(count) => 10 * u64::from(count),
        }
    }
}

/// The node's cards in the driver's order, and their connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuTopology {
    cards: Vec<CardUuid>,
    numa: BTreeMap<CardUuid, u32>,
    pairs: BTreeMap<(CardUuid, CardUuid), CardCloseness>,
}

impl GpuTopology {
    /// Adds a card once, with its NUMA node if known.
    pub fn add(&mut self, card: CardUuid, numa: Option<u32>) {
        if !self.cards.contains(&card) {
            self.cards.push(card);
        }
        self.numa.extend(numa.map(|numa| (card, numa)));
    }

    /// Records a connection between two cards. The closest one counts.
    pub fn connect(&mut self, one: CardUuid, other: CardUuid, closeness: CardCloseness) {
        let known = self.pairs.entry(pair(one, other)).or_default();
        *known = closeness.max(*known);
    }

    /// The cards, in the driver's order.
    #[must_use]
    pub fn cards(&self) -> &[CardUuid] {
        &self.cards
    }

    /// A card's NUMA node.
    #[must_use]
    pub fn numa(&self, card: CardUuid) -> Option<u32> {
        self.numa.get(&card).copied()
    }

    /// The best `count` cards of `free`, with all of `must` among them. Returns fewer if there are fewer.
    #[must_use]
    pub fn best(
        &self,
        free: &BTreeSet<CardUuid>,
        must: &BTreeSet<CardUuid>,
        count: usize,
    ) -> Vec<CardUuid> {
        let known = self.cards.iter().copied();
        let all: Vec<CardUuid> = known.filter(|card| free.contains(card)).collect();
        let (set, others): (Vec<_>, Vec<_>) = all.iter().partition(|card| must.contains(card));
        let wanted = count.saturating_sub(set.len()).min(others.len());
        let added = match sets(others.len(), wanted) {
            Some(_) => self.compared(&all, &set, &others, wanted),
            None => self.added_one_by_one(&set, &others, wanted),
        };
        let chosen: BTreeSet<_> = set.into_iter().chain(added).collect();
        all.into_iter()
            .filter(|card| chosen.contains(card))
            .take(count)
            .collect()
    }

    fn compared(
        &self,
        all: &[CardUuid],
        set: &[CardUuid],
        others: &[CardUuid],
        wanted: usize,
    ) -> Vec<CardUuid> {
        let mut best: Option<((u64, u64), Vec<CardUuid>)> = None;
        for_each_subset(others, wanted, &mut |added| {
            let chosen: Vec<_> = set.iter().chain(added).copied().collect();
            let rating = (self.inside(&chosen), u64::MAX - self.torn(all, &chosen));
            if best.as_ref().is_none_or(|(known, _)| rating > *known) {
                best = Some((rating, added.to_vec()));
            }
        });
        best.map(|(_, added)| added).unwrap_or_default()
    }

    fn added_one_by_one(
        &self,
        set: &[CardUuid],
        others: &[CardUuid],
        wanted: usize,
    ) -> Vec<CardUuid> {
        let (mut added, mut left) = (Vec::new(), others.to_vec());
        while added.len() < wanted {
            let worth = |card: &CardUuid| {
                let present = set.iter().chain(&added);
                present.map(|other| self.worth(*card, *other)).sum::<u64>()
            };
            let mut nearest = 0;
            for at in 1..left.len() {
                if worth(&left[at]) > worth(&left[nearest]) {
                    nearest = at;
                }
            }
            added.push(left.remove(nearest));
        }
        added
    }

    /// The worth of all pairs inside a set.
    fn inside(&self, set: &[CardUuid]) -> u64 {
        let pairs = set.iter().enumerate();
        let with_later = pairs.flat_map(|(at, one)| set[at + 1..].iter().map(move |b| (*one, *b)));
        with_later.map(|(one, other)| self.worth(one, other)).sum()
    }

    /// The worth of all pairs of a taken and a remaining card.
    fn torn(&self, all: &[CardUuid], set: &[CardUuid]) -> u64 {
        let staying = all.iter().filter(|card| !set.contains(card));
        let torn = staying.flat_map(|one| set.iter().map(move |other| (*one, *other)));
        torn.map(|(one, other)| self.worth(one, other)).sum()
    }

    fn worth(&self, one: CardUuid, other: CardUuid) -> u64 {
        let known = self.pairs.get(&pair(one, other)).copied();
        known.unwrap_or_default().worth()
    }
}

fn pair(one: CardUuid, other: CardUuid) -> (CardUuid, CardUuid) {
    (one.min(other), one.max(other))
}

/// How many sets of `wanted` there are among `count`; `None` if there are too many to compare.
fn sets(count: usize, wanted: usize) -> Option<usize> {
    let wanted = wanted.min(count - wanted);
    let sets = (0..wanted).try_fold(1_usize, |sets, at| {
        let sets = sets.checked_mul(count - at)? / (at + 1);
        (sets <= MOST_SETS).then_some(sets)
    });
    sets.filter(|sets| *sets <= MOST_SETS)
}

/// Visits all subsets of one size, in the order of the elements.
fn for_each_subset(all: &[CardUuid], size: usize, visit: &mut impl FnMut(&[CardUuid])) {
    fn go(
        rest: &[CardUuid],
        size: usize,
        chosen: &mut Vec<CardUuid>,
        visit: &mut impl FnMut(&[CardUuid]),
    ) {
        if size == 0 {
            return visit(chosen);
        }
        for at in 0..=rest.len().saturating_sub(size) {
            if let Some(card) = rest.get(at) {
                chosen.push(*card);
                go(&rest[at + 1..], size - 1, chosen, visit);
                chosen.pop();
            }
        }
    }
    go(all, size, &mut Vec::new(), visit);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(number: u8) -> CardUuid {
        CardUuid([number; 16])
    }

    /// `count` cards, four to a NUMA node.
    fn machine(count: u8, links: &[(u8, u8, u32)]) -> GpuTopology {
        let mut topology = GpuTopology::default();
        for number in 0..count {
            topology.add(card(number), Some(u32::from(number / 4)));
        }
        for one in 0..count {
            for other in one + 1..count {
                let is_near = one / 4 == other / 4;
                let way = if is_near {
                    CardCloseness::Node
                } else {
                    CardCloseness::System
                };
                topology.connect(card(one), card(other), way);
            }
        }
        for (one, other, count) in links {
            topology.connect(card(*one), card(*other), CardCloseness::Links(*count));
        }
        topology
    }

    fn best(topology: &GpuTopology, free: &[u8], must: &[u8], count: usize) -> Vec<u8> {
        let set = |numbers: &[u8]| numbers.iter().map(|number| card(*number)).collect();
        let best = topology.best(&set(free), &set(must), count);
        best.iter().map(|card| card.0[0]).collect()
    }

    #[test]
    fn cards_with_links_are_taken_together() {
        let pairs = machine(8, &[(0, 3, 4), (1, 2, 4), (4, 7, 4), (5, 6, 2)]);
        let all: Vec<u8> = (0..8).collect();
        assert_eq!(best(&pairs, &all, &[], 2), [0, 3]);
        assert_eq!(best(&pairs, &[1, 2, 4, 5, 6, 7], &[], 2), [1, 2]);
        assert_eq!(best(&pairs, &all, &[5], 2), [5, 6]);
        assert_eq!(best(&pairs, &[0, 1, 5, 6], &[], 2), [5, 6]);
        assert_eq!(best(&pairs, &all, &[], 4), [0, 1, 2, 3]);
    }

    #[test]
    fn a_lone_card_breaks_no_pair() {
        let pairs = machine(4, &[(0, 3, 4)]);
        assert_eq!(best(&pairs, &[0, 1, 2, 3], &[], 1), [1]);
        assert_eq!(best(&pairs, &[0, 3, 2], &[], 1), [2]);
    }

    #[test]
    fn without_links_cards_of_one_node_are_taken_together() {
        let plain = machine(8, &[]);
        assert_eq!(best(&plain, &[2, 3, 4, 5, 6], &[], 3), [4, 5, 6]);
        assert_eq!(best(&plain, &[0, 4, 5], &[], 2), [4, 5]);
    }

    #[test]
    fn equal_cards_are_taken_in_the_drivers_order() {
        let switched: Vec<_> = (0..8)
            .flat_map(|one| (one + 1..8).map(move |other| (one, other, 18)))
            .collect();
        let machine = machine(8, &switched);
        assert_eq!(best(&machine, &[7, 6, 5, 1], &[], 2), [1, 5]);
        assert_eq!(best(&machine, &[7, 6], &[], 4), [6, 7]);
        assert!(best(&machine, &[], &[], 1).is_empty());
    }

    #[test]
    fn many_cards_are_taken_without_looking_at_every_set() {
        let links: Vec<_> = (0..63).map(|one| (one, one + 1, 1)).collect();
        let chain = machine(64, &links);
        let free: Vec<u8> = (0..64).collect();
        assert_eq!(best(&chain, &free, &[30], 20).len(), 20);
        assert!(sets(64, 20).is_none());
        assert_eq!(sets(8, 4), Some(70));
    }
}
