//! The processes of a card, from NVML's separate lists. Falls back from version 3 of the lists to version 2.

use std::collections::BTreeMap;

use apportion_abi::Bytes;
use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

/// How often to read a process list again that grew between the two calls for size and content.
const LIST_ATTEMPTS: usize = 3;

/// Compute, graphics and MPS processes. For a process in several lists the highest number counts.
pub(super) fn of(device: &Device<'_>) -> Result<BTreeMap<u32, Option<Bytes>>, NvmlError> {
    let compute = list(|| {
        let newest = device.running_compute_processes();
        or_older(newest, || device.running_compute_processes_v2())
    })?;
    // Not every card and driver has the other two lists.
    let graphics = list(|| {
        let newest = device.running_graphics_processes();
        or_older(newest, || device.running_graphics_processes_v2())
    });
    let shared = list(|| device.mps_running_compute_processes());
    let mut all = BTreeMap::new();
    for process in compute
        .into_iter()
        .chain(graphics.unwrap_or_default())
        .chain(shared.unwrap_or_default())
    {
        let used = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
            UsedGpuMemory::Unavailable => None,
        };
        let most = all.entry(process.pid).or_insert(used);
        *most = used.max(*most);
    }
    Ok(all)
}

fn or_older(
    newest: Result<Vec<ProcessInfo>, NvmlError>,
    older: impl FnOnce() -> Result<Vec<ProcessInfo>, NvmlError>,
) -> Result<Vec<ProcessInfo>, NvmlError> {
    match newest {
        Err(NvmlError::FailedToLoadSymbol(_)) => older(),
        answer => answer,
    }
}

fn list(
    read: impl Fn() -> Result<Vec<ProcessInfo>, NvmlError>,
) -> Result<Vec<ProcessInfo>, NvmlError> {
    for _ in 1..LIST_ATTEMPTS {
        match read() {
            Err(NvmlError::InsufficientSize(_)) => {}
            answer => return answer,
        }
    }
    read()
}
