//! NVLinks: those of the card's configuration, all of them up. A card without any does not support NVLink, which is
//! another answer than a link that is down.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::nvmlPciInfo_t;

use crate::foreign::ForeignPointer;
use crate::handles::DeviceHandle;
use crate::identity;
use crate::session;
use crate::status::NvmlStatus;

/// The most links of any card, `NVML_NVLINK_MAX_LINKS`.
const MOST: c_uint = 18;
const DOWN: c_uint = 0;
const UP: c_uint = 1;

/// The position of the card at the other end. None if the link is down.
fn end(device: DeviceHandle, link: c_uint) -> Result<Option<u32>, NvmlStatus> {
    let links = device.card()?.links;
    match (links.is_empty(), link < MOST) {
        (true, _) => Err(NvmlStatus::NotSupported),
        (false, false) => Err(NvmlStatus::InvalidArgument),
        (false, true) => Ok(links.get(link as usize).copied()),
    }
}

pub(crate) fn state(
    device: DeviceHandle,
    link: c_uint,
    state: ForeignPointer<c_uint>,
) -> Result<(), NvmlStatus> {
    let is_up = end(device, link)?.is_some();
    state.put(if is_up { UP } else { DOWN })
}

pub(crate) fn remote(
    device: DeviceHandle,
    link: c_uint,
    info: ForeignPointer<nvmlPciInfo_t>,
) -> Result<(), NvmlStatus> {
    let other = end(device, link)?.ok_or(NvmlStatus::NotSupported)?;
    let cards = session::snapshot()?.cards;
    let card = cards.get(other as usize).ok_or(NvmlStatus::Unknown)?;
    info.put(identity::pci_info_v3(card)?)
}
