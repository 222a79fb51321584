//! Queries about the driver and the system.

use std::ffi::{c_char, c_int, c_uint};
use std::fs;

use apportion_sim_machine::DriverVersions;
use nvml_wrapper_sys::bindings::nvmlSystemDriverBranchInfo_t;

use crate::foreign::{ForeignPointer, characters};
use crate::memory::version_word;
use crate::session;
use crate::status::NvmlStatus;

pub(crate) fn driver_version(
    text: ForeignPointer<c_char>,
    length: c_uint,
) -> Result<(), NvmlStatus> {
    text.put_text(length, &versions()?.driver)
}

pub(crate) fn nvml_version(text: ForeignPointer<c_char>, length: c_uint) -> Result<(), NvmlStatus> {
    text.put_text(length, &versions()?.nvml)
}

pub(crate) fn cuda_version(version: ForeignPointer<c_int>) -> Result<(), NvmlStatus> {
    version.put(versions()?.cuda)
}

pub(crate) fn driver_branch(
    branch: ForeignPointer<nvmlSystemDriverBranchInfo_t>,
    _length: c_uint,
) -> Result<(), NvmlStatus> {
    let version = version_word::<nvmlSystemDriverBranchInfo_t>(1);
    if branch.get()?.version != version {
        return Err(NvmlStatus::VersionMismatch);
    }
    let driver = versions()?.driver;
    let (major, _) = driver.split_once('.').ok_or(NvmlStatus::Unknown)?;
    branch.put(nvmlSystemDriverBranchInfo_t {
        version,
        branch: characters(&format!("r{major}_00")),
    })
}

/// `nvmlSystemGetProcessName`: the process's command line.
pub(crate) fn process_name(
    pid: c_uint,
    text: ForeignPointer<c_char>,
    length: c_uint,
) -> Result<(), NvmlStatus> {
    session::running()?;
    let line = fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NvmlStatus::NotFound)?;
    let words: Vec<_> = line
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(String::from_utf8_lossy)
        .collect();
    text.put_text(length, &words.join(" "))
}

/// `nvmlUnitGetCount`: no S-class boxes.
pub(crate) fn unit_count(count: ForeignPointer<c_uint>) -> Result<(), NvmlStatus> {
    session::running()?;
    count.put(0)
}

fn versions() -> Result<DriverVersions, NvmlStatus> {
    Ok(session::snapshot()?.driver)
}
