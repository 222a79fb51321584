//! A card's memory in both versions of the query. Both show the same numbers: the first counts the driver's reserve as
//! used, the second reports it separately.

use std::ffi::c_uint;

use apportion_sim_machine::CardSnapshot;
use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlConfComputeMemSizeInfo_t, nvmlMemory_t, nvmlMemory_v2_t,
};

use crate::foreign::ForeignPointer;
use crate::handles::DeviceHandle;
use crate::status::NvmlStatus;

/// The part of BAR1 that the driver maps for itself.
const BAR1_USED: u64 = 1 << 20;

/// A struct's version word: its size, and its version in the highest byte.
pub(crate) const fn version_word<T>(version: u32) -> c_uint {
    (version << 24) | size_of::<T>() as c_uint
}

/// `nvmlDeviceGetMemoryInfo`: the card's memory, even inside a group that the driver limits.
pub(crate) fn info(card: &CardSnapshot) -> Result<nvmlMemory_t, NvmlStatus> {
    let whole = whole_card(card)?;
    Ok(nvmlMemory_t {
        total: whole.total,
        free: whole.free,
        used: whole.used + whole.reserved,
    })
}

/// `nvmlDeviceGetMemoryInfo_v2`: inside a group that the driver limits, the group's memory.
pub(crate) fn info_v2(
    device: DeviceHandle,
    memory: ForeignPointer<nvmlMemory_v2_t>,
) -> Result<(), NvmlStatus> {
    let card = device.card()?;
    if memory.get()?.version != version_word::<nvmlMemory_v2_t>(2) {
        return Err(NvmlStatus::VersionMismatch);
    }
    memory.put(seen_by_caller(&card)?)
}

fn seen_by_caller(card: &CardSnapshot) -> Result<nvmlMemory_v2_t, NvmlStatus> {
    let whole = whole_card(card)?;
    let Some(group) = card.group else {
        return Ok(whole);
    };
    let total = group.limit.min(whole.total);
    Ok(nvmlMemory_v2_t {
        total,
        reserved: 0,
        used: group.used.min(total),
        free: total.saturating_sub(group.used).min(whole.free),
        ..whole
    })
}

fn whole_card(card: &CardSnapshot) -> Result<nvmlMemory_v2_t, NvmlStatus> {
    if !card.memory_info {
        return Err(NvmlStatus::NotSupported);
    }
    Ok(nvmlMemory_v2_t {
        version: version_word::<nvmlMemory_v2_t>(2),
        total: card.total,
        reserved: card.reserved,
        used: card.used,
        free: card.total.saturating_sub(card.reserved + card.used),
    })
}

/// `nvmlDeviceGetBAR1MemoryInfo`: wide enough for the whole card.
pub(crate) fn bar1(card: &CardSnapshot) -> Result<nvmlBAR1Memory_t, NvmlStatus> {
    let total = card.total.next_power_of_two();
    Ok(nvmlBAR1Memory_t {
        bar1Total: total,
        bar1Free: total - BAR1_USED,
        bar1Used: BAR1_USED,
    })
}

/// `nvmlDeviceGetConfComputeMemSizeInfo`: all memory is unprotected.
pub(crate) fn confidential(
    card: &CardSnapshot,
) -> Result<nvmlConfComputeMemSizeInfo_t, NvmlStatus> {
    Ok(nvmlConfComputeMemSizeInfo_t {
        protectedMemSizeKib: 0,
        unprotectedMemSizeKib: card.total >> 10,
    })
}
