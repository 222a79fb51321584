//! How a card feels: load, temperature, power, clocks. The simulated hardware knows its load;
//! the rest follows from it, so that a monitoring program sees a card that warms up under work.

use std::ffi::c_uint;

use apportion_sim_machine::CardSnapshot;
use nvml_wrapper_sys::bindings::{nvmlTemperature_t, nvmlUtilization_t};

use crate::foreign::Foreign;
use crate::handles::Device;
use crate::memory::version_word;
use crate::model::{self, Model};
use crate::status::Status;

/// How long the utilisation counters look back, in microseconds.
const SAMPLING_PERIOD: c_uint = 167_000;

/// The clock of an idle card in MHz.
const IDLE_CLOCK: c_uint = 210;

/// `nvmlDeviceGetUtilizationRates`.
pub(crate) fn utilisation(card: &CardSnapshot) -> Result<nvmlUtilization_t, Status> {
    Ok(nvmlUtilization_t {
        gpu: card.utilisation.gpu,
        memory: card.utilisation.memory,
    })
}

/// `nvmlDeviceGetEncoderUtilization`.
pub(crate) fn encoder(
    device: Device,
    utilisation: Foreign<c_uint>,
    period: Foreign<c_uint>,
) -> Result<(), Status> {
    let card = device.card()?;
    utilisation.put(card.utilisation.encoder)?;
    period.put(SAMPLING_PERIOD)
}

/// `nvmlDeviceGetDecoderUtilization`.
pub(crate) fn decoder(
    device: Device,
    utilisation: Foreign<c_uint>,
    period: Foreign<c_uint>,
) -> Result<(), Status> {
    let card = device.card()?;
    utilisation.put(card.utilisation.decoder)?;
    period.put(SAMPLING_PERIOD)
}

/// `nvmlDeviceGetTemperature`: one sensor, in degrees Celsius.
pub(crate) fn temperature(
    device: Device,
    sensor: c_uint,
    degrees: Foreign<c_uint>,
) -> Result<(), Status> {
    let card = device.card()?;
    if sensor != 0 {
        return Err(Status::InvalidArgument);
    }
    degrees.put(degrees_of(&card))
}

/// `nvmlDeviceGetTemperatureV`.
pub(crate) fn temperature_value(
    device: Device,
    temperature: Foreign<nvmlTemperature_t>,
) -> Result<(), Status> {
    let card = device.card()?;
    let asked = temperature.get()?;
    if asked.version != version_word::<nvmlTemperature_t>(1) {
        return Err(Status::VersionMismatch);
    }
    if asked.sensorType != 0 {
        return Err(Status::InvalidArgument);
    }
    let degrees = degrees_of(&card).cast_signed();
    temperature.put(nvmlTemperature_t {
        temperature: degrees,
        ..asked
    })
}

/// `nvmlDeviceGetTemperatureThreshold`.
pub(crate) fn temperature_threshold(
    device: Device,
    threshold: c_uint,
    degrees: Foreign<c_uint>,
) -> Result<(), Status> {
    const SHUTDOWN_SLOWDOWN_MEMORY_GPU: [c_uint; 4] = [92, 89, 95, 85];
    device.card()?;
    let threshold = usize::try_from(threshold).map_err(|_| Status::InvalidArgument)?;
    let known = SHUTDOWN_SLOWDOWN_MEMORY_GPU.get(threshold);
    degrees.put(*known.ok_or(Status::NotSupported)?)
}

/// From an idle 32 degrees to 72 under full load.
fn degrees_of(card: &CardSnapshot) -> c_uint {
    32 + card.utilisation.gpu * 40 / 100
}

/// `nvmlDeviceGetPowerUsage` in milliwatts: an eighth when idle, the limit under full load.
pub(crate) fn power(card: &CardSnapshot) -> Result<c_uint, Status> {
    let limit = model::of(card).power_limit;
    let idle = limit / 8;
    Ok(idle + (limit - idle) / 100 * card.utilisation.gpu.min(100))
}

/// `nvmlDeviceGetPowerManagementLimit` and its default and enforced forms.
pub(crate) fn power_limit(card: &CardSnapshot) -> Result<c_uint, Status> {
    Ok(model::of(card).power_limit)
}

/// `nvmlDeviceGetPowerManagementLimitConstraints`.
pub(crate) fn power_constraints(
    device: Device,
    least: Foreign<c_uint>,
    most: Foreign<c_uint>,
) -> Result<(), Status> {
    let limit = model::of(&device.card()?).power_limit;
    least.put(limit / 4)?;
    most.put(limit)
}

/// `nvmlDeviceGetClockInfo`: graphics, multiprocessor, memory or video clock in MHz.
pub(crate) fn clock(device: Device, kind: c_uint, clock: Foreign<c_uint>) -> Result<(), Status> {
    let card = device.card()?;
    let most = clock_of(model::of(&card), kind)?;
    let busy = card.utilisation.gpu > 0;
    clock.put(if busy { most } else { most.min(IDLE_CLOCK) })
}

/// `nvmlDeviceGetMaxClockInfo`.
pub(crate) fn max_clock(
    device: Device,
    kind: c_uint,
    clock: Foreign<c_uint>,
) -> Result<(), Status> {
    clock.put(clock_of(model::of(&device.card()?), kind)?)
}

fn clock_of(model: &Model, kind: c_uint) -> Result<c_uint, Status> {
    match kind {
        0 | 1 => Ok(model.core_clock),
        2 => Ok(model.memory_clock),
        3 => Ok(model.core_clock / 10 * 9),
        _ => Err(Status::InvalidArgument),
    }
}

/// `nvmlDeviceGetPerformanceState`: data centre parts stay in P0, others rest in P8.
pub(crate) fn performance_state(card: &CardSnapshot) -> Result<c_uint, Status> {
    let rests = card.utilisation.gpu == 0 && !model::of(card).data_centre;
    Ok(if rests { 8 } else { 0 })
}

/// `nvmlDeviceGetMemoryBusWidth`.
pub(crate) fn memory_bus(card: &CardSnapshot) -> Result<c_uint, Status> {
    Ok(model::of(card).memory_bus_bits)
}

/// `nvmlDeviceGetCurrPcieLinkGeneration` and its maximum.
pub(crate) fn pcie_generation(card: &CardSnapshot) -> Result<c_uint, Status> {
    Ok(model::of(card).pcie_generation)
}

/// `nvmlDeviceGetCurrPcieLinkWidth` and its maximum.
pub(crate) fn pcie_width(_: &CardSnapshot) -> Result<c_uint, Status> {
    Ok(16)
}

/// `nvmlDeviceGetPcieThroughput` in KB/s: copies are the host's in the simulation.
pub(crate) fn pcie_throughput(
    device: Device,
    counter: c_uint,
    throughput: Foreign<c_uint>,
) -> Result<(), Status> {
    const COUNTERS: c_uint = 2;
    device.card()?;
    if counter >= COUNTERS {
        return Err(Status::InvalidArgument);
    }
    throughput.put(0)
}
