//! NVLinks: as many as the machine's file gives a card, all of them up. A card without any has no NVLink at
//! all, which is another answer than a link that is down.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::nvmlPciInfo_t;

use crate::foreign::Foreign;
use crate::handles::Device;
use crate::identity;
use crate::session;
use crate::status::Status;

/// As many links as any card has, `NVML_NVLINK_MAX_LINKS`.
const MOST: c_uint = 18;
const DOWN: c_uint = 0;
const UP: c_uint = 1;

/// The card's position at the other end; nothing where the link is down.
fn end(device: Device, link: c_uint) -> Result<Option<u32>, Status> {
    let links = device.card()?.links;
    match (links.is_empty(), link < MOST) {
        (true, _) => Err(Status::NotSupported),
        (false, false) => Err(Status::InvalidArgument),
        (false, true) => Ok(links.get(link as usize).copied()),
    }
}

/// `nvmlDeviceGetNvLinkState`.
pub(crate) fn state(device: Device, link: c_uint, state: Foreign<c_uint>) -> Result<(), Status> {
    let is_up = end(device, link)?.is_some();
    state.put(if is_up { UP } else { DOWN })
}

/// `nvmlDeviceGetNvLinkRemotePciInfo_v2`.
pub(crate) fn remote(
    device: Device,
    link: c_uint,
    info: Foreign<nvmlPciInfo_t>,
) -> Result<(), Status> {
    let other = end(device, link)?.ok_or(Status::NotSupported)?;
    let cards = session::snapshot()?.cards;
    let card = cards.get(other as usize).ok_or(Status::Unknown)?;
    info.put(identity::pci_info_v3(card)?)
}
