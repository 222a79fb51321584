//! What a card is set to, and the counters of what can go wrong with it. A simulated card is in the state in
//! which a card leaves the factory, but for what a test lets happen to it.

use std::ffi::{c_uint, c_ulonglong};

use apportion_sim_machine::CardSnapshot;
use nvml_wrapper_sys::bindings::nvmlDeviceAddressingMode_t;

use crate::fields;
use crate::foreign::Foreign;
use crate::handles::Device;
use crate::memory::version_word;
use crate::model;
use crate::status::Status;

/// Modes that are off, counters that stand at zero.
pub(crate) fn off(_: &CardSnapshot) -> Result<c_uint, Status> {
    Ok(0)
}

/// Modes that are on: the daemon keeps the driver loaded, which is what persistence means.
pub(crate) fn on(_: &CardSnapshot) -> Result<c_uint, Status> {
    Ok(1)
}

/// `nvmlDeviceGetCurrentClocksEventReasons`: what slows the clocks.
pub(crate) fn reasons(card: &CardSnapshot) -> Result<c_ulonglong, Status> {
    Ok(card.throttled)
}

/// `nvmlDeviceGetSupportedClocksEventReasons`: all nine of the header.
pub(crate) fn all_reasons(_: &CardSnapshot) -> Result<c_ulonglong, Status> {
    Ok(0x1ff)
}

/// `nvmlDeviceGetEccMode`.
pub(crate) fn ecc(
    device: Device,
    current: Foreign<c_uint>,
    pending: Foreign<c_uint>,
) -> Result<(), Status> {
    needs_data_centre(&device.card()?)?;
    current.put(1)?;
    pending.put(1)
}

/// `nvmlDeviceGetTotalEccErrors`.
pub(crate) fn ecc_errors(
    device: Device,
    _kind: c_uint,
    _counter: c_uint,
    errors: Foreign<c_ulonglong>,
) -> Result<(), Status> {
    needs_data_centre(&device.card()?)?;
    errors.put(0)
}

/// `nvmlDeviceGetRemappedRows`: none was remapped so far.
pub(crate) fn remapped_rows(
    device: Device,
    corrected: Foreign<c_uint>,
    uncorrected: Foreign<c_uint>,
    pending: Foreign<c_uint>,
    failed: Foreign<c_uint>,
) -> Result<(), Status> {
    let rows = fields::rows(&device.card()?)?;
    corrected.put(0)?;
    uncorrected.put(0)?;
    pending.put(rows.pending.into())?;
    failed.put(rows.failed.into())
}

/// `nvmlDeviceGetMigMode`: off where the card could be partitioned.
pub(crate) fn mig(
    device: Device,
    current: Foreign<c_uint>,
    pending: Foreign<c_uint>,
) -> Result<(), Status> {
    needs_data_centre(&device.card()?)?;
    current.put(0)?;
    pending.put(0)
}

/// `nvmlDeviceGetMaxMigDeviceCount`.
pub(crate) fn max_mig_devices(card: &CardSnapshot) -> Result<c_uint, Status> {
    Ok(if model::of(card).data_centre { 7 } else { 0 })
}

/// `nvmlDeviceGetMigDeviceHandleByIndex`: no card is partitioned.
pub(crate) fn mig_device(
    device: Device,
    _index: c_uint,
    _part: Foreign<Device>,
) -> Result<(), Status> {
    device.card()?;
    Err(Status::NotFound)
}

/// `nvmlDeviceGetAddressingMode`: host and card have page tables of their own.
pub(crate) fn addressing(
    device: Device,
    mode: Foreign<nvmlDeviceAddressingMode_t>,
) -> Result<(), Status> {
    device.card()?;
    let version = version_word::<nvmlDeviceAddressingMode_t>(1);
    if mode.get()?.version != version {
        return Err(Status::VersionMismatch);
    }
    mode.put(nvmlDeviceAddressingMode_t { version, value: 0 })
}

fn needs_data_centre(card: &CardSnapshot) -> Result<(), Status> {
    let has = model::of(card).data_centre;
    has.then_some(()).ok_or(Status::NotSupported)
}
