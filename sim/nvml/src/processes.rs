//! The processes on a card, in the three generations of process lists. PIDs are those of the host: the daemon learns
//! them from the kernel, as the driver does.

use std::ffi::{c_uint, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

use apportion_sim_machine::{CardSnapshot, ProcessSnapshot};
use nvml_wrapper_sys::bindings::{
    nvmlProcessDetail_v1_t, nvmlProcessDetailList_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t,
    nvmlProcessUtilizationSample_t,
};

use crate::foreign::ForeignPointer;
use crate::handles::DeviceHandle;
use crate::memory::version_word;
use crate::status::NvmlStatus;

/// `NVML_VALUE_NOT_AVAILABLE`: the card does not know.
const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;

/// The instance of a process on a card that is not partitioned.
const NO_INSTANCE: c_uint = c_uint::MAX;

pub(crate) fn compute_v1(
    device: DeviceHandle,
    count: ForeignPointer<c_uint>,
    list: ForeignPointer<nvmlProcessInfo_v1_t>,
) -> Result<(), NvmlStatus> {
    let card = device.card()?;
    let entries = entries(&card, |process| nvmlProcessInfo_v1_t {
        pid: process.pid,
        usedGpuMemory: used(process),
    });
    list.put_list(count, &entries)
}

/// `nvmlDeviceGetComputeRunningProcesses_v2` and `_v3`, which differ in name only.
pub(crate) fn compute_v3(
    device: DeviceHandle,
    count: ForeignPointer<c_uint>,
    list: ForeignPointer<nvmlProcessInfo_v2_t>,
) -> Result<(), NvmlStatus> {
    let card = device.card()?;
    let entries = entries(&card, |process| nvmlProcessInfo_v2_t {
        pid: process.pid,
        usedGpuMemory: used(process),
        gpuInstanceId: NO_INSTANCE,
        computeInstanceId: NO_INSTANCE,
    });
    list.put_list(count, &entries)
}

/// The lists of graphics processes and of MPS clients: the simulated driver has neither.
pub(crate) fn none(
    device: DeviceHandle,
    count: ForeignPointer<c_uint>,
    list: ForeignPointer<u8>,
) -> Result<(), NvmlStatus> {
    device.card()?;
    list.put_list(count, &[])
}

pub(crate) fn detail_list(
    device: DeviceHandle,
    list: ForeignPointer<nvmlProcessDetailList_t>,
) -> Result<(), NvmlStatus> {
    const FIRST_CAPABLE: (i32, i32) = (9, 0);
    let card = device.card()?;
    let mut header = list.get()?;
    if header.version != version_word::<nvmlProcessDetailList_t>(1) {
        return Err(NvmlStatus::VersionMismatch);
    }
    if card.compute_capability < FIRST_CAPABLE {
        return Err(NvmlStatus::NotSupported);
    }
    let details = details(&card, header.mode)?;
    let array = ForeignPointer::nested(header.procArray);
    let written = array.put_list(
        ForeignPointer::to(&mut header.numProcArrayEntries),
        &details,
    );
    list.put(header)?;
    written
}

fn details(card: &CardSnapshot, mode: c_uint) -> Result<Vec<nvmlProcessDetail_v1_t>, NvmlStatus> {
    match mode {
        0 | 3 => Ok(entries(card, |process| nvmlProcessDetail_v1_t {
            pid: process.pid,
            usedGpuMemory: used(process),
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
            usedGpuCcProtectedMemory: 0,
        })),
        1 | 2 => Ok(Vec::new()),
        _ => Err(NvmlStatus::InvalidArgument),
    }
}

/// `nvmlDeviceGetProcessUtilization`: the card's load, in equal parts.
pub(crate) fn utilisation(
    device: DeviceHandle,
    list: ForeignPointer<nvmlProcessUtilizationSample_t>,
    count: ForeignPointer<c_uint>,
    last_seen: c_ulonglong,
) -> Result<(), NvmlStatus> {
    let card = device.card()?;
    let now = now_micros();
    if card.processes.is_empty() || last_seen >= now {
        return Err(NvmlStatus::NotFound);
    }
    let among = c_uint::try_from(card.processes.len()).map_err(|_| NvmlStatus::Unknown)?;
    let samples = entries(&card, |process| nvmlProcessUtilizationSample_t {
        pid: process.pid,
        timeStamp: now,
        smUtil: card.utilisation.gpu / among,
        memUtil: card.utilisation.memory / among,
        encUtil: card.utilisation.encoder / among,
        decUtil: card.utilisation.decoder / among,
    });
    list.put_list(count, &samples)
}

fn entries<T>(card: &CardSnapshot, entry: impl Fn(&ProcessSnapshot) -> T) -> Vec<T> {
    card.processes.iter().map(entry).collect()
}

fn used(process: &ProcessSnapshot) -> c_ulonglong {
    process.used.unwrap_or(NOT_AVAILABLE)
}

pub(crate) fn now_micros() -> c_ulonglong {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        c_ulonglong::try_from(since.as_micros()).unwrap_or(c_ulonglong::MAX)
    })
}
