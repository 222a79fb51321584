//! How the cards of a machine are connected to each other and to its CPUs, according to NVML. What the driver does
//! not report counts as the farthest distance.
//!
//! # Links
//! An NVLink leads to another card, or to an NVSwitch that connects all cards. Two cards with links to switches are
//! as close as the smaller of their two numbers of such links.

use std::collections::BTreeMap;

use apportion_abi::CardUuid;
use apportion_ledger::{CardCloseness, GpuTopology};
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::{Device, Nvml};

use super::FoundCard;

/// The most NVLinks that a card has.
const MOST_LINKS: u32 = 18;
/// Room for 1024 NUMA nodes, and the scope that selects nodes rather than sockets.
const NUMA_WORDS: usize = 16;
const NUMA_SCOPE: u32 = 0;

/// The NUMA node of a card, and its connections to other cards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CardLocality {
    numa: Option<u32>,
    others: Vec<(CardUuid, CardCloseness)>,
}

/// The topology of these cards.
pub(crate) fn topology(cards: &[FoundCard]) -> GpuTopology {
    let mut topology = GpuTopology::default();
    for card in cards {
        topology.add(card.uuid, card.near.numa);
        for (other, closeness) in &card.near.others {
            topology.connect(card.uuid, *other, *closeness);
        }
    }
    topology
}

/// Fills in the locality of each card.
pub(super) fn read_links(nvml: &Nvml, cards: &mut [FoundCard]) {
    let uuids: Vec<CardUuid> = cards.iter().map(|card| card.uuid).collect();
    let device = |uuid: CardUuid| nvml.device_by_uuid(uuid.to_string()).ok();
    let ends: Vec<LinkEndpoint> = uuids
        .iter()
        .map(|uuid| device(*uuid).map_or_else(LinkEndpoint::default, |found| end(&found)))
        .collect();
    for (at, card) in cards.iter_mut().enumerate() {
        let Some(own) = device(uuids[at]) else {
            continue;
        };
        card.near.numa = numa(&own);
        for (other, uuid) in uuids.iter().enumerate().take(at) {
            let way = device(*uuid).and_then(|other| own.topology_common_ancestor(other).ok());
            let way = way.map_or(CardCloseness::System, closeness);
            let linked = linked(&ends[at], &ends[other], &ends);
            card.near.others.push((*uuid, way.max(linked)));
        }
    }
}

/// Domain, bus and device.
type Bus = (u32, u32, u32);

/// A card's address, and its number of links to each remote address.
#[derive(Clone, Debug, Default)]
struct LinkEndpoint {
    bus: Option<Bus>,
    links: BTreeMap<Bus, u32>,
}

fn end(device: &Device<'_>) -> LinkEndpoint {
    let bus = device.pci_info().ok();
    let mut links = BTreeMap::new();
    let all = (0..MOST_LINKS).map(|number| device.link_wrapper_for(number));
    for link in all.filter(|link| link.is_active().unwrap_or(false)) {
        if let Ok(remote) = link.remote_pci_info() {
            let bus = (remote.domain, remote.bus, remote.device);
            *links.entry(bus).or_default() += 1;
        }
    }
    LinkEndpoint {
        bus: bus.map(|pci| (pci.domain, pci.bus, pci.device)),
        links,
    }
}

fn linked(one: &LinkEndpoint, other: &LinkEndpoint, cards: &[LinkEndpoint]) -> CardCloseness {
    let direct = other.bus.and_then(|bus| one.links.get(&bus)).copied();
    let to_switches = |end: &LinkEndpoint| {
        let switches = end
            .links
            .iter()
            .filter(|(bus, _)| !cards.iter().any(|card| card.bus == Some(**bus)));
        switches.map(|(_, count)| count).sum::<u32>()
    };
    let switched = to_switches(one).min(to_switches(other));
    match direct.unwrap_or_default().max(switched) {
        0 => CardCloseness::System,
        count => CardCloseness::Links(count),
    }
}

fn numa(device: &Device<'_>) -> Option<u32> {
    let words = device.memory_affinity(NUMA_WORDS, NUMA_SCOPE).ok()?;
    let nodes: u32 = words.iter().map(|word| word.count_ones()).sum();
    let (at, word) = words.iter().enumerate().find(|(_, word)| **word != 0)?;
    let before = u32::try_from(at).ok()? * std::ffi::c_ulong::BITS;
    // A card near to several nodes has no preferred one.
    (nodes == 1).then(|| before + word.trailing_zeros())
}

fn closeness(level: TopologyLevel) -> CardCloseness {
    match level {
        TopologyLevel::Internal => CardCloseness::Board,
        TopologyLevel::Single => CardCloseness::Switch,
        TopologyLevel::Multiple => CardCloseness::Switches,
        TopologyLevel::HostBridge => CardCloseness::Bridge,
        TopologyLevel::Node => CardCloseness::Node,
        TopologyLevel::System => CardCloseness::System,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(bus: u32, links: &[(u32, u32)]) -> LinkEndpoint {
        let links = links.iter().map(|(bus, count)| ((0, *bus, 0), *count));
        LinkEndpoint {
            bus: Some((0, bus, 0)),
            links: links.collect(),
        }
    }

    #[test]
    fn direct_links_and_links_to_switches_bring_cards_together() {
        let linked = |one: &[(u32, u32)], other: &[(u32, u32)]| {
            let cards = [end(1, one), end(2, other), end(3, &[])];
            linked(&cards[0], &cards[1], &cards)
        };
        assert_eq!(linked(&[(2, 4)], &[(1, 4)]), CardCloseness::Links(4));
        assert_eq!(linked(&[(3, 4)], &[(3, 4)]), CardCloseness::System);
        assert_eq!(
            linked(&[(90, 9), (91, 9)], &[(90, 12)]),
            CardCloseness::Links(12)
        );
        assert_eq!(linked(&[], &[(90, 12)]), CardCloseness::System);
    }
}
