//! What NVML and CUDA each report about the machine, as one line of JSON.

use std::error::Error;

use cudarc::driver::{CudaContext, result, sys};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use serde::Serialize;

/// The answer of one library: what it found, or why it failed.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum LibraryOutput {
    Found(LibraryCards),
    Error(String),
}

#[derive(Serialize)]
struct LibraryCards {
    version: String,
    cards: Vec<LibraryCard>,
}

#[derive(Serialize)]
struct LibraryCard {
    uuid: String,
    name: String,
    total_bytes: u64,
}

/// The answers of both libraries.
#[derive(Serialize)]
struct CardsOutput {
    nvml: LibraryOutput,
    cuda: LibraryOutput,
}

/// Asks both libraries and prints their answers.
pub(crate) fn print() -> Result<(), Box<dyn Error>> {
    let report = CardsOutput {
        nvml: answer(ask_nvml()),
        cuda: answer(ask_cuda()),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

fn answer(asked: Result<LibraryCards, Box<dyn Error>>) -> LibraryOutput {
    match asked {
        Ok(found) => LibraryOutput::Found(found),
        Err(error) => LibraryOutput::Error(error.to_string()),
    }
}

fn ask_nvml() -> Result<LibraryCards, Box<dyn Error>> {
    let nvml = Nvml::init()?;
    let mut cards = Vec::new();
    for index in 0..nvml.device_count()? {
        let device = nvml.device_by_index(index)?;
        // A GPU that uses the system's memory has none of its own to report.
        let total_bytes = match device.memory_info() {
            Err(NvmlError::NotSupported) => 0,
            told => told?.total,
        };
        cards.push(LibraryCard {
            uuid: device.uuid()?,
            name: device.name()?,
            total_bytes,
        });
    }
    Ok(LibraryCards {
        version: nvml.sys_driver_version()?,
        cards,
    })
}

fn ask_cuda() -> Result<LibraryCards, Box<dyn Error>> {
    open()?;
    let mut version = 0;
    // SAFETY: the function writes one integer, and the address is that of a live one.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
    let mut cards = Vec::new();
    for ordinal in 0..result::device::get_count()? {
        let device = result::device::get(ordinal)?;
        // SAFETY: the device was returned by the driver in this process.
        let total = unsafe { result::device::total_mem(device) }?;
        cards.push(LibraryCard {
            uuid: uuid_text(result::device::get_uuid(device)?),
            name: result::device::get_name(device)?,
            total_bytes: total.try_into()?,
        });
    }
    Ok(LibraryCards {
        version: format!("{}.{}", version / 1000, version % 1000 / 10),
        cards,
    })
}

/// Loads and initialises the CUDA library. Fails if there is none.
pub(crate) fn open() -> Result<(), Box<dyn Error>> {
    // SAFETY: it loads the machine's own driver library, as every CUDA program does.
    if !unsafe { sys::is_culib_present() } {
        return Err("libcuda.so.1 cannot be loaded".into());
    }
    Ok(result::init()?)
}

/// The UUID of the card that `context` is on, as NVML prints it.
pub(crate) fn uuid_of(context: &CudaContext) -> Result<String, Box<dyn Error>> {
    Ok(uuid_text(context.uuid()?))
}

fn uuid_text(uuid: sys::CUuuid) -> String {
    let mut text = "GPU-".to_owned();
    for (place, byte) in uuid.bytes.iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
