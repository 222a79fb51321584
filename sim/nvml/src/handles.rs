//! Device handles. NVML's are opaque pointers. Ours are numbers that only look like pointers, so a wrong one is found
//! by comparison and never followed.

use apportion_sim_machine::{CardSnapshot, MachineSnapshot};

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use crate::foreign::ForeignPointer;
use crate::session;
use crate::status::NvmlStatus;

/// The first card's handle; the others follow. It is far from null and from small numbers passed by mistake.
const FIRST: usize = 0x4e56_4d4c_0000;

/// `nvmlDevice_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct DeviceHandle(usize);

impl DeviceHandle {
    /// The handle of the card at this position in PCI order.
    pub(crate) fn at(position: u32) -> Result<Self, NvmlStatus> {
        let position = usize::try_from(position).map_err(|_| NvmlStatus::InvalidArgument)?;
        Ok(Self(FIRST + position))
    }

    /// The position of the handle's card, if the handle is valid.
    pub(crate) fn position(self) -> Result<u32, NvmlStatus> {
        let position = self
            .0
            .checked_sub(FIRST)
            .ok_or(NvmlStatus::InvalidArgument)?;
        u32::try_from(position).map_err(|_| NvmlStatus::InvalidArgument)
    }

    /// The handle in the type of NVML's header.
    pub(crate) fn pointer(self) -> nvmlDevice_t {
        std::ptr::without_provenance_mut(self.0)
    }

    /// The card's current state. Fails if it has fallen off the bus.
    pub(crate) fn card(self) -> Result<CardSnapshot, NvmlStatus> {
        let snapshot = session::snapshot()?;
        self.card_in(snapshot)
    }

    fn card_in(self, snapshot: MachineSnapshot) -> Result<CardSnapshot, NvmlStatus> {
        let position =
            usize::try_from(self.position()?).map_err(|_| NvmlStatus::InvalidArgument)?;
        let mut cards = snapshot.cards.into_iter();
        let card = cards.nth(position).ok_or(NvmlStatus::InvalidArgument)?;
        if card.lost {
            return Err(NvmlStatus::CardLost);
        }
        Ok(card)
    }
}

pub(crate) fn index(device: DeviceHandle, index: ForeignPointer<u32>) -> Result<(), NvmlStatus> {
    device.card()?;
    index.put(device.position()?)
}

/// Writes the handle of the first card that `is_meant` selects. Fails if there is none.
pub(crate) fn find(
    device: ForeignPointer<DeviceHandle>,
    is_meant: impl Fn(&CardSnapshot) -> bool,
) -> Result<(), NvmlStatus> {
    let snapshot = session::snapshot()?;
    let position = snapshot.cards.iter().position(is_meant);
    let position =
        u32::try_from(position.ok_or(NvmlStatus::NotFound)?).map_err(|_| NvmlStatus::Unknown)?;
    let found = DeviceHandle::at(position)?;
    found.card_in(snapshot)?;
    device.put(found)
}

pub(crate) fn by_index(index: u32, device: ForeignPointer<DeviceHandle>) -> Result<(), NvmlStatus> {
    let found = DeviceHandle::at(index)?;
    found.card()?;
    device.put(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_leads_back_to_its_card_and_a_stray_pointer_to_none() {
        assert_eq!(DeviceHandle::at(3).and_then(DeviceHandle::position), Ok(3));
        assert_eq!(DeviceHandle(0).position(), Err(NvmlStatus::InvalidArgument));
        assert_eq!(
            DeviceHandle(FIRST - 1).position(),
            Err(NvmlStatus::InvalidArgument)
        );
    }
}
