//! `nvmlDeviceGetFieldValues`: many values in one call, each with its own return code. Fields that a simulated card
//! does not have return "not supported", as on a card without that unit.

use std::ffi::{c_int, c_uint};

use apportion_sim_machine::{CardSnapshot, RemappedRows};
use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlValue_t};

use crate::foreign::ForeignPointer;
use crate::handles::DeviceHandle;
use crate::health;
use crate::model;
use crate::processes::now_micros;
use crate::status::{NvmlStatus, SUCCESS};

/// `NVML_FI_DEV_POWER_INSTANT`, in milliwatts.
const POWER_INSTANT: c_uint = 186;

/// `NVML_FI_DEV_REMAPPED_PENDING`.
const REMAP_PENDING: c_uint = 144;

/// `NVML_FI_DEV_REMAPPED_FAILURE`.
const REMAP_FAILED: c_uint = 145;

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`; zero is none.
const RECOVERY_ACTION: c_uint = 230;

/// `NVML_VALUE_TYPE_UNSIGNED_INT`.
const UNSIGNED_INT: c_uint = 1;

/// Fills in each entry of the caller's array in place.
pub(crate) fn values(
    device: DeviceHandle,
    count: c_int,
    values: ForeignPointer<nvmlFieldValue_t>,
) -> Result<(), NvmlStatus> {
    let card = device.card()?;
    let count = usize::try_from(count).map_err(|_| NvmlStatus::InvalidArgument)?;
    values.update_each(count, |field| answer(&card, field))
}

fn answer(card: &CardSnapshot, field: &mut nvmlFieldValue_t) {
    field.timestamp = now_micros().cast_signed();
    field.latencyUsec = 0;
    match value(card, field.fieldId) {
        Ok(value) => {
            field.valueType = UNSIGNED_INT;
            field.value = nvmlValue_t {
                ullVal: value.into(),
            };
            field.nvmlReturn = SUCCESS;
        }
        Err(status) => field.nvmlReturn = status.into(),
    }
}

fn value(card: &CardSnapshot, field: c_uint) -> Result<c_uint, NvmlStatus> {
    match field {
        POWER_INSTANT => health::power(card),
        REMAP_PENDING => rows(card).map(|rows| rows.pending.into()),
        REMAP_FAILED => rows(card).map(|rows| rows.failed.into()),
        RECOVERY_ACTION => Ok(card.recovery),
        _ => Err(NvmlStatus::NotSupported),
    }
}

/// The remapped rows of a card, if its memory supports remapping.
pub(crate) fn rows(card: &CardSnapshot) -> Result<RemappedRows, NvmlStatus> {
    let has = model::of(card).data_centre;
    has.then_some(card.rows).ok_or(NvmlStatus::NotSupported)
}
