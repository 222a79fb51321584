//! Topology of cards and processors: all are in one NUMA node, and no two cards are on one board. So all placements are
//! equal, except for NVLinks (see `links`).

use std::ffi::{c_int, c_uint, c_ulong};

use crate::foreign::ForeignPointer;
use crate::handles::DeviceHandle;
use crate::session;
use crate::status::NvmlStatus;

/// `NVML_TOPOLOGY_INTERNAL`.
const SAME_BOARD: c_uint = 0;

/// `NVML_TOPOLOGY_NODE`.
const SAME_NODE: c_uint = 40;

/// `NVML_TOPOLOGY_SYSTEM`.
const SAME_SYSTEM: c_uint = 50;

/// `nvmlDeviceGetTopologyCommonAncestor`: the node for any two cards.
pub(crate) fn common_ancestor(
    first: DeviceHandle,
    second: DeviceHandle,
    level: ForeignPointer<c_uint>,
) -> Result<(), NvmlStatus> {
    first.card()?;
    second.card()?;
    level.put(if first == second {
        SAME_BOARD
    } else {
        SAME_NODE
    })
}

pub(crate) fn on_same_board(
    first: DeviceHandle,
    second: DeviceHandle,
    same: ForeignPointer<c_int>,
) -> Result<(), NvmlStatus> {
    first.card()?;
    second.card()?;
    same.put(c_int::from(first == second))
}

pub(crate) fn cpu_affinity(
    device: DeviceHandle,
    words: c_uint,
    set: ForeignPointer<c_ulong>,
) -> Result<(), NvmlStatus> {
    device.card()?;
    let online = std::thread::available_parallelism().map_or(1, usize::from);
    let bits_before = (0..words).map(|word| word as usize * c_ulong::BITS as usize);
    let mask: Vec<c_ulong> = bits_before
        .map(|before| mask_of(online.saturating_sub(before)))
        .collect();
    set.put_list(ForeignPointer::to(&mut words.clone()), &mask)
}

/// The lowest `count` bits of a word.
fn mask_of(count: usize) -> c_ulong {
    u32::try_from(count)
        .ok()
        .and_then(|count| c_ulong::MAX.checked_shl(count))
        .map_or(c_ulong::MAX, |above| !above)
}

/// `nvmlDeviceGetCpuAffinityWithinScope`: node and socket are the same.
pub(crate) fn cpu_affinity_within(
    device: DeviceHandle,
    words: c_uint,
    set: ForeignPointer<c_ulong>,
    _scope: c_uint,
) -> Result<(), NvmlStatus> {
    cpu_affinity(device, words, set)
}

/// `nvmlDeviceGetMemoryAffinity`: all memory is in the first node.
pub(crate) fn memory_affinity(
    device: DeviceHandle,
    words: c_uint,
    set: ForeignPointer<c_ulong>,
    _scope: c_uint,
) -> Result<(), NvmlStatus> {
    device.card()?;
    let mask: Vec<c_ulong> = (0..words).map(|word| c_ulong::from(word == 0)).collect();
    set.put_list(ForeignPointer::to(&mut words.clone()), &mask)
}

/// `nvmlDeviceGetTopologyNearestGpus`: all other cards at the level of the node, none below it.
pub(crate) fn nearest(
    device: DeviceHandle,
    level: c_uint,
    count: ForeignPointer<c_uint>,
    list: ForeignPointer<DeviceHandle>,
) -> Result<(), NvmlStatus> {
    device.card()?;
    let others = others(device.position()?, session::snapshot()?.cards.len())?;
    match level {
        SAME_NODE => list.put_list(count, &others),
        SAME_BOARD..SAME_NODE | SAME_SYSTEM => list.put_list(count, &[]),
        _ => Err(NvmlStatus::InvalidArgument),
    }
}

pub(crate) fn near_processor(
    _processor: c_uint,
    count: ForeignPointer<c_uint>,
    list: ForeignPointer<DeviceHandle>,
) -> Result<(), NvmlStatus> {
    let cards = u32::try_from(session::snapshot()?.cards.len()).map_err(|_| NvmlStatus::Unknown)?;
    let all: Result<Vec<DeviceHandle>, NvmlStatus> = (0..cards).map(DeviceHandle::at).collect();
    list.put_list(count, &all?)
}

fn others(own: u32, count: usize) -> Result<Vec<DeviceHandle>, NvmlStatus> {
    let count = u32::try_from(count).map_err(|_| NvmlStatus::Unknown)?;
    (0..count)
        .filter(|position| *position != own)
        .map(DeviceHandle::at)
        .collect()
}

/// `nvmlDeviceGetP2PStatus`: the simulated bus has no peer traffic.
pub(crate) fn peer_status(
    first: DeviceHandle,
    second: DeviceHandle,
    _kind: c_uint,
    status: ForeignPointer<c_int>,
) -> Result<(), NvmlStatus> {
    const CHIPSET_NOT_SUPPORTED: c_int = 1;
    first.card()?;
    second.card()?;
    status.put(CHIPSET_NOT_SUPPORTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_as_many_bits_as_there_are_processors() {
        assert_eq!(mask_of(0), 0);
        assert_eq!(mask_of(5), 0b11111);
        assert_eq!(mask_of(400), c_ulong::MAX);
    }
}
