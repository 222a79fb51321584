//! CUDA's ordinals of the cards under `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
//!
//! CUDA then numbers its devices in ascending order of their PCI addresses (CUDA programming guide, environment
//! variables). NVML's order is not reliable. The agent assigns ordinals only if every card of the machine is sure to
//! be counted: one card in MIG mode, or one that cannot be read, makes all ordinals uncertain.

use nvml_wrapper::Nvml;

use super::FoundCard;

/// A PCI address: domain, bus and device.
type Address = (u32, u32, u32);

/// Fills in the ordinal of each card, if these are all of the driver's `count` cards.
pub(super) fn enter(nvml: &Nvml, count: u32, cards: &mut [FoundCard]) {
    let addresses: Option<Vec<Address>> = cards
        .iter()
        .map(|card| -> Option<Address> {
            let pci = nvml.device_by_index(card.index).ok()?.pci_info().ok()?;
            Some((pci.domain, pci.bus, pci.device))
        })
        .collect();
    let is_complete = u32::try_from(cards.len()) == Ok(count);
    let ordinals = addresses.filter(|_| is_complete).and_then(|all| of(&all));
    for (card, ordinal) in cards.iter_mut().zip(ordinals.into_iter().flatten()) {
        card.cuda_ordinal = Some(ordinal);
    }
}

/// The position of each address in the order; `None` if two are equal.
fn of(addresses: &[Address]) -> Option<Vec<u32>> {
    addresses
        .iter()
        .map(|own| {
            let is_twice = addresses.iter().filter(|other| *other == own).count() > 1;
            let before = addresses.iter().filter(|other| *other < own).count();
            u32::try_from(before).ok().filter(|_| !is_twice)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn cards_are_counted_by_their_addresses() {
        let addresses = [(0, 0x40, 0), (1, 0x10, 0), (0, 0x20, 1), (0, 0x20, 0)];
        assert_eq!(of(&addresses), Some(vec![2, 3, 1, 0]));
        assert_eq!(of(&[]), Some(Vec::new()));
    }

    #[test]
    fn two_cards_at_one_address_have_no_numbers() {
        assert_eq!(of(&[(0, 1, 0), (0, 2, 0), (0, 1, 0)]), None);
    }
}
