//! Questions about the driver and the system rather than about a card.

use std::ffi::{c_char, c_int, c_uint};
use std::fs;

use apportion_sim_machine::DriverVersions;
use nvml_wrapper_sys::bindings::nvmlSystemDriverBranchInfo_t;

use crate::foreign::{Foreign, characters};
use crate::memory::version_word;
use crate::session;
use crate::status::Status;

/// `nvmlSystemGetDriverVersion`.
pub(crate) fn driver_version(text: Foreign<c_char>, length: c_uint) -> Result<(), Status> {
    text.put_text(length, &versions()?.driver)
}

/// `nvmlSystemGetNVMLVersion`.
pub(crate) fn nvml_version(text: Foreign<c_char>, length: c_uint) -> Result<(), Status> {
    text.put_text(length, &versions()?.nvml)
}

/// `nvmlSystemGetCudaDriverVersion`.
pub(crate) fn cuda_version(version: Foreign<c_int>) -> Result<(), Status> {
    version.put(versions()?.cuda)
}

/// `nvmlSystemGetDriverBranch`.
pub(crate) fn driver_branch(
    branch: Foreign<nvmlSystemDriverBranchInfo_t>,
    _length: c_uint,
) -> Result<(), Status> {
    let version = version_word::<nvmlSystemDriverBranchInfo_t>(1);
    if branch.get()?.version != version {
        return Err(Status::VersionMismatch);
    }
    let driver = versions()?.driver;
    let (major, _) = driver.split_once('.').ok_or(Status::Unknown)?;
    branch.put(nvmlSystemDriverBranchInfo_t {
        version,
        branch: characters(&format!("r{major}_00")),
    })
}

/// `nvmlSystemGetProcessName`: its command line.
pub(crate) fn process_name(
    pid: c_uint,
    text: Foreign<c_char>,
    length: c_uint,
) -> Result<(), Status> {
    session::running()?;
    let line = fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| Status::NotFound)?;
    let words: Vec<_> = line
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(String::from_utf8_lossy)
        .collect();
    text.put_text(length, &words.join(" "))
}

/// `nvmlUnitGetCount`: no S-class boxes.
pub(crate) fn unit_count(count: Foreign<c_uint>) -> Result<(), Status> {
    session::running()?;
    count.put(0)
}

fn versions() -> Result<DriverVersions, Status> {
    Ok(session::snapshot()?.driver)
}
