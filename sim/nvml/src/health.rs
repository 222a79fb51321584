//! Health of a card: load, temperature, power, clocks. The simulated hardware has only a load. The rest is derived from
//! it, so that a monitoring program sees a card that warms up under work.

use std::ffi::c_uint;

use apportion_sim_machine::CardSnapshot;
use nvml_wrapper_sys::bindings::{nvmlTemperature_t, nvmlUtilization_t};

use crate::foreign::ForeignPointer;
use crate::handles::DeviceHandle;
use crate::memory::version_word;
use crate::model::{self, CardGeneration};
use crate::status::NvmlStatus;

/// The period of the utilisation counters, in microseconds.
const SAMPLING_PERIOD: c_uint = 167_000;

/// The clock of an idle card in MHz.
const IDLE_CLOCK: c_uint = 210;

pub(crate) fn utilisation(card: &CardSnapshot) -> Result<nvmlUtilization_t, NvmlStatus> {
    Ok(nvmlUtilization_t {
        gpu: card.utilisation.gpu,
        memory: card.utilisation.memory,
    })
}

pub(crate) fn encoder(
    device: DeviceHandle,
    utilisation: ForeignPointer<c_uint>,
    period: ForeignPointer<c_uint>,
) -> Result<(), NvmlStatus> {
    let card = device.card()?;
    utilisation.put(card.utilisation.encoder)?;
    period.put(SAMPLING_PERIOD)
}

pub(crate) fn decoder(
    device: DeviceHandle,
    utilisation: ForeignPointer<c_uint>,
    period: ForeignPointer<c_uint>,
) -> Result<(), NvmlStatus> {
    let card = device.card()?;
    utilisation.put(card.utilisation.decoder)?;
    period.put(SAMPLING_PERIOD)
}

/// `nvmlDeviceGetTemperature`: one sensor, in degrees Celsius.
pub(crate) fn temperature(
    device: DeviceHandle,
    sensor: c_uint,
    degrees: ForeignPointer<c_uint>,
) -> Result<(), NvmlStatus> {
    let card = device.card()?;
    if sensor != 0 {
        return Err(NvmlStatus::InvalidArgument);
    }
    degrees.put(degrees_of(&card))
}

pub(crate) fn temperature_value(
    device: DeviceHandle,
    temperature: ForeignPointer<nvmlTemperature_t>,
) -> Result<(), NvmlStatus> {
    let card = device.card()?;
    let asked = temperature.get()?;
    if asked.version != version_word::<nvmlTemperature_t>(1) {
        return Err(NvmlStatus::VersionMismatch);
    }
    if asked.sensorType != 0 {
        return Err(NvmlStatus::InvalidArgument);
    }
    let degrees = degrees_of(&card).cast_signed();
    temperature.put(nvmlTemperature_t {
        temperature: degrees,
        ..asked
    })
}

pub(crate) fn temperature_threshold(
    device: DeviceHandle,
    threshold: c_uint,
    degrees: ForeignPointer<c_uint>,
) -> Result<(), NvmlStatus> {
    const SHUTDOWN_SLOWDOWN_MEMORY_GPU: [c_uint; 4] = [92, 89, 95, 85];
    device.card()?;
    let threshold = usize::try_from(threshold).map_err(|_| NvmlStatus::InvalidArgument)?;
    let known = SHUTDOWN_SLOWDOWN_MEMORY_GPU.get(threshold);
    degrees.put(*known.ok_or(NvmlStatus::NotSupported)?)
}

/// From 32 degrees when idle to 72 under full load.
fn degrees_of(card: &CardSnapshot) -> c_uint {
    32 + card.utilisation.gpu * 40 / 100
}

/// `nvmlDeviceGetPowerUsage` in milliwatts: an eighth when idle, the limit under full load.
pub(crate) fn power(card: &CardSnapshot) -> Result<c_uint, NvmlStatus> {
    let limit = model::of(card).power_limit;
    let idle = limit / 8;
    Ok(idle + (limit - idle) / 100 * card.utilisation.gpu.min(100))
}

/// `nvmlDeviceGetPowerManagementLimit` and its default and enforced forms.
pub(crate) fn power_limit(card: &CardSnapshot) -> Result<c_uint, NvmlStatus> {
    Ok(model::of(card).power_limit)
}

pub(crate) fn power_constraints(
    device: DeviceHandle,
    least: ForeignPointer<c_uint>,
    most: ForeignPointer<c_uint>,
) -> Result<(), NvmlStatus> {
    let limit = model::of(&device.card()?).power_limit;
    least.put(limit / 4)?;
    most.put(limit)
}

/// `nvmlDeviceGetClockInfo`: graphics, multiprocessor, memory or video clock in MHz.
pub(crate) fn clock(
    device: DeviceHandle,
    kind: c_uint,
    clock: ForeignPointer<c_uint>,
) -> Result<(), NvmlStatus> {
    let card = device.card()?;
    let most = clock_of(model::of(&card), kind)?;
    let busy = card.utilisation.gpu > 0;
    clock.put(if busy { most } else { most.min(IDLE_CLOCK) })
}

pub(crate) fn max_clock(
    device: DeviceHandle,
    kind: c_uint,
    clock: ForeignPointer<c_uint>,
) -> Result<(), NvmlStatus> {
    clock.put(clock_of(model::of(&device.card()?), kind)?)
}

fn clock_of(model: &CardGeneration, kind: c_uint) -> Result<c_uint, NvmlStatus> {
    match kind {
        0 | 1 => Ok(model.core_clock),
        2 => Ok(model.memory_clock),
        3 => Ok(model.core_clock / 10 * 9),
        _ => Err(NvmlStatus::InvalidArgument),
    }
}

/// `nvmlDeviceGetPerformanceState`: data centre parts stay in P0, other idle cards are in P8.
pub(crate) fn performance_state(card: &CardSnapshot) -> Result<c_uint, NvmlStatus> {
    let rests = card.utilisation.gpu == 0 && !model::of(card).data_centre;
    Ok(if rests { 8 } else { 0 })
}

pub(crate) fn memory_bus(card: &CardSnapshot) -> Result<c_uint, NvmlStatus> {
    Ok(model::of(card).memory_bus_bits)
}

/// `nvmlDeviceGetCurrPcieLinkGeneration` and its maximum.
pub(crate) fn pcie_generation(card: &CardSnapshot) -> Result<c_uint, NvmlStatus> {
    Ok(model::of(card).pcie_generation)
}

/// `nvmlDeviceGetCurrPcieLinkWidth` and its maximum.
pub(crate) fn pcie_width(_: &CardSnapshot) -> Result<c_uint, NvmlStatus> {
    Ok(16)
}

/// `nvmlDeviceGetPcieThroughput` in KB/s. Simulated copies never use the bus.
pub(crate) fn pcie_throughput(
    device: DeviceHandle,
    counter: c_uint,
    throughput: ForeignPointer<c_uint>,
) -> Result<(), NvmlStatus> {
    const COUNTERS: c_uint = 2;
    device.card()?;
    if counter >= COUNTERS {
        return Err(NvmlStatus::InvalidArgument);
    }
    throughput.put(0)
}
