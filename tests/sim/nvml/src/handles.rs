//! Device handles. NVML's are opaque pointers; ours are numbers that only look like pointers, so a
//! wrong one is found by comparison and never followed.

use apportion_sim_machine::{CardSnapshot, Snapshot};

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use crate::foreign::Foreign;
use crate::session;
use crate::status::Status;

/// The first card's handle; the others follow. Far from null and from every small mistake.
const FIRST: usize = 0x4e56_4d4c_0000;

/// `nvmlDevice_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Device(usize);

impl Device {
    /// The handle of the card at this position in PCI order.
    pub(crate) fn at(position: u32) -> Result<Self, Status> {
        let position = usize::try_from(position).map_err(|_| Status::InvalidArgument)?;
        Ok(Self(FIRST + position))
    }

    /// Which card the handle means, if it is one of ours.
    pub(crate) fn position(self) -> Result<u32, Status> {
        let position = self.0.checked_sub(FIRST).ok_or(Status::InvalidArgument)?;
        u32::try_from(position).map_err(|_| Status::InvalidArgument)
    }

    /// The handle as the pointer that it passes for.
    pub(crate) fn pointer(self) -> nvmlDevice_t {
        std::ptr::without_provenance_mut(self.0)
    }

    /// The card as it is now; an error if it has fallen off the bus.
    pub(crate) fn card(self) -> Result<CardSnapshot, Status> {
        let snapshot = session::snapshot()?;
        self.card_in(snapshot)
    }

    fn card_in(self, snapshot: Snapshot) -> Result<CardSnapshot, Status> {
        let position = usize::try_from(self.position()?).map_err(|_| Status::InvalidArgument)?;
        let mut cards = snapshot.cards.into_iter();
        let card = cards.nth(position).ok_or(Status::InvalidArgument)?;
        if card.lost {
            return Err(Status::CardLost);
        }
        Ok(card)
    }
}

/// `nvmlDeviceGetIndex`.
pub(crate) fn index(device: Device, index: Foreign<u32>) -> Result<(), Status> {
    device.card()?;
    index.put(device.position()?)
}

/// Writes the handle of the first card that `is_meant`, or says that there is none.
pub(crate) fn find(
    device: Foreign<Device>,
    is_meant: impl Fn(&CardSnapshot) -> bool,
) -> Result<(), Status> {
    let snapshot = session::snapshot()?;
    let position = snapshot.cards.iter().position(is_meant);
    let position = u32::try_from(position.ok_or(Status::NotFound)?).map_err(|_| Status::Unknown)?;
    let found = Device::at(position)?;
    found.card_in(snapshot)?;
    device.put(found)
}

/// `nvmlDeviceGetHandleByIndex`.
pub(crate) fn by_index(index: u32, device: Foreign<Device>) -> Result<(), Status> {
    let found = Device::at(index)?;
    found.card()?;
    device.put(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_leads_back_to_its_card_and_a_stray_pointer_to_none() {
        assert_eq!(Device::at(3).and_then(Device::position), Ok(3));
        assert_eq!(Device(0).position(), Err(Status::InvalidArgument));
        assert_eq!(Device(FIRST - 1).position(), Err(Status::InvalidArgument));
    }
}
