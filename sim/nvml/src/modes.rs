//! Modes of a card and its error counters. A simulated card is in factory state, except for what a test changes.

use std::ffi::{c_uint, c_ulonglong};

use apportion_sim_machine::CardSnapshot;
use nvml_wrapper_sys::bindings::nvmlDeviceAddressingMode_t;

use crate::fields;
use crate::foreign::ForeignPointer;
use crate::handles::DeviceHandle;
use crate::memory::version_word;
use crate::model;
use crate::status::NvmlStatus;

/// For modes that are off and counters at zero.
pub(crate) fn off(_: &CardSnapshot) -> Result<c_uint, NvmlStatus> {
    Ok(0)
}

/// For modes that are on. The daemon keeps the driver loaded, which is persistence mode.
pub(crate) fn on(_: &CardSnapshot) -> Result<c_uint, NvmlStatus> {
    Ok(1)
}

/// `nvmlDeviceGetCurrentClocksEventReasons`: what slows the clocks down.
pub(crate) fn reasons(card: &CardSnapshot) -> Result<c_ulonglong, NvmlStatus> {
    Ok(card.throttled)
}

/// `nvmlDeviceGetSupportedClocksEventReasons`: all nine of the header.
pub(crate) fn all_reasons(_: &CardSnapshot) -> Result<c_ulonglong, NvmlStatus> {
    Ok(0x1ff)
}

pub(crate) fn ecc(
    device: DeviceHandle,
    current: ForeignPointer<c_uint>,
    pending: ForeignPointer<c_uint>,
) -> Result<(), NvmlStatus> {
    needs_data_centre(&device.card()?)?;
    current.put(1)?;
    pending.put(1)
}

pub(crate) fn ecc_errors(
    device: DeviceHandle,
    _kind: c_uint,
    _counter: c_uint,
    errors: ForeignPointer<c_ulonglong>,
) -> Result<(), NvmlStatus> {
    needs_data_centre(&device.card()?)?;
    errors.put(0)
}

/// `nvmlDeviceGetRemappedRows`: none was remapped so far.
pub(crate) fn remapped_rows(
    device: DeviceHandle,
    corrected: ForeignPointer<c_uint>,
    uncorrected: ForeignPointer<c_uint>,
    pending: ForeignPointer<c_uint>,
    failed: ForeignPointer<c_uint>,
) -> Result<(), NvmlStatus> {
    let rows = fields::rows(&device.card()?)?;
    corrected.put(0)?;
    uncorrected.put(0)?;
    pending.put(rows.pending.into())?;
    failed.put(rows.failed.into())
}

/// `nvmlDeviceGetMigMode`: off where the card could be partitioned.
pub(crate) fn mig(
    device: DeviceHandle,
    current: ForeignPointer<c_uint>,
    pending: ForeignPointer<c_uint>,
) -> Result<(), NvmlStatus> {
    needs_data_centre(&device.card()?)?;
    current.put(0)?;
    pending.put(0)
}

pub(crate) fn max_mig_devices(card: &CardSnapshot) -> Result<c_uint, NvmlStatus> {
    Ok(if model::of(card).data_centre { 7 } else { 0 })
}

/// `nvmlDeviceGetMigDeviceHandleByIndex`: no card is partitioned.
pub(crate) fn mig_device(
    device: DeviceHandle,
    _index: c_uint,
    _part: ForeignPointer<DeviceHandle>,
) -> Result<(), NvmlStatus> {
    device.card()?;
    Err(NvmlStatus::NotFound)
}

/// `nvmlDeviceGetAddressingMode`: host and card have separate page tables.
pub(crate) fn addressing(
    device: DeviceHandle,
    mode: ForeignPointer<nvmlDeviceAddressingMode_t>,
) -> Result<(), NvmlStatus> {
    device.card()?;
    let version = version_word::<nvmlDeviceAddressingMode_t>(1);
    if mode.get()?.version != version {
        return Err(NvmlStatus::VersionMismatch);
    }
    mode.put(nvmlDeviceAddressingMode_t { version, value: 0 })
}

fn needs_data_centre(card: &CardSnapshot) -> Result<(), NvmlStatus> {
    let has = model::of(card).data_centre;
    has.then_some(()).ok_or(NvmlStatus::NotSupported)
}
