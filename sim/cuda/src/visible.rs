//! `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`: which cards a process sees, and in what order.

use std::cmp::Reverse;

use apportion_sim_machine::CardFacts;

/// The cards in the driver's order, by their number in the machine: by PCI bus if `wish` asks for it, else the fastest
/// first.
pub(crate) fn order(wish: Option<&str>, cards: &[CardFacts]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..cards.len()).collect();
    order.sort_by_key(|card| cards[*card].pci_bus);
    if wish != Some("PCI_BUS_ID") {
        order.sort_by_key(|card| Reverse(cards[*card].multiprocessors));
    }
    order
}

/// The cards that `wish` makes visible, by their number in the machine. As with the real driver, the list ends at the
/// first entry that names no card, and a card that is named twice empties it.
pub(crate) fn visible(wish: Option<&str>, uuids: &[&str]) -> Vec<usize> {
    let Some(wish) = wish else {
        return (0..uuids.len()).collect();
    };
    let mut cards = Vec::new();
    for entry in wish.split(',') {
        let Some(card) = named(entry.trim(), uuids) else {
            break;
        };
        if cards.contains(&card) {
            return Vec::new();
        }
        cards.push(card);
    }
    cards
}

/// The card that an entry names: by number, or by an unambiguous prefix of its UUID.
fn named(entry: &str, uuids: &[&str]) -> Option<usize> {
    if entry.starts_with("GPU-") {
        let mut matching = (0..uuids.len()).filter(|card| uuids[*card].starts_with(entry));
        let card = matching.next()?;
        return matching.next().is_none().then_some(card);
    }
    entry.parse().ok().filter(|card| *card < uuids.len())
}

#[cfg(test)]
mod tests {
    use super::{order, visible};
    use apportion_sim_machine::CardFacts;

    const UUIDS: &[&str] = &["GPU-aaa1", "GPU-aab2", "GPU-ccc3"];

    #[test]
    fn the_fastest_card_comes_first_unless_the_bus_is_asked_for() {
        let cards =
            [(0x40, 80), (0x20, 80), (0x30, 132)].map(|(pci_bus, multiprocessors)| CardFacts {
                model: String::new(),
                uuid: String::new(),
                uuid_bytes: [0; 16],
                usable: 0,
                pci_bus,
                compute_capability: (9, 0),
                multiprocessors,
            });
        assert_eq!(order(None, &cards), [2, 1, 0]);
        assert_eq!(order(Some("FASTEST_FIRST"), &cards), [2, 1, 0]);
        assert_eq!(order(Some("PCI_BUS_ID"), &cards), [1, 2, 0]);
    }

    #[test]
    fn without_a_wish_every_card_is_visible() {
        assert_eq!(visible(None, UUIDS), [0, 1, 2]);
    }

    #[test]
    fn cards_come_in_the_order_in_which_they_are_named() {
        assert_eq!(visible(Some("2,0"), UUIDS), [2, 0]);
        assert_eq!(visible(Some(" 1 , GPU-ccc3"), UUIDS), [1, 2]);
    }

    #[test]
    fn a_uuid_may_be_abbreviated_as_long_as_it_means_one_card() {
        assert_eq!(visible(Some("GPU-aab"), UUIDS), [1]);
        assert_eq!(visible(Some("GPU-aa"), UUIDS), [0; 0]);
    }

    #[test]
    fn the_list_ends_at_the_first_entry_that_names_nothing() {
        assert_eq!(visible(Some("1,9,0"), UUIDS), [1]);
        assert_eq!(visible(Some("-1"), UUIDS), [0; 0]);
        assert_eq!(visible(Some(""), UUIDS), [0; 0]);
        assert_eq!(visible(Some("NoDevFiles"), UUIDS), [0; 0]);
    }

    #[test]
    fn a_card_named_twice_leaves_none() {
        assert_eq!(visible(Some("1,1"), UUIDS), [0; 0]);
    }
}
