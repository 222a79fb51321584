//! The NVIDIA driver's own memory limits of control groups: `nvmlDeviceSetMemoryLimits_v1` and its counterpart.
//!
//! Drivers have them since release 615. The functions are looked up when the library is opened, so the same program
//! runs on older drivers. That a driver has the functions does not mean that it keeps limits: only a limit that was
//! set and read back shows that.
//!
//! Source: `nvml.h` of CUDA 13.4, and NVIDIA's "MPS v3 Memory Partitioning".

use std::ffi::{CString, OsStr, c_char, c_int, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use libloading::Library;
use nvml_wrapper::error::{NvmlError, nvml_try};

/// The hard limit that means "no limit": `NVML_DEVICE_MEMORY_LIMIT_MAX`.
pub const NO_LIMIT: u64 = u64::MAX;

/// `nvmlDevice_t`.
type Device = *mut c_void;
type Init = unsafe extern "C" fn() -> u32;
type Shutdown = unsafe extern "C" fn() -> u32;
type HandleByUuid = unsafe extern "C" fn(*const c_char, *mut Device) -> u32;
type SetLimits = unsafe extern "C" fn(Device, *mut ForeignSetLimits) -> u32;
type GetLimits = unsafe extern "C" fn(Device, *mut ForeignGetLimits) -> u32;

/// `nvmlSetMemoryLimits_v1_t`.
#[repr(C)]
struct ForeignSetLimits {
    name_space: *const c_char,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
}

/// `nvmlGetMemoryLimits_v1_t`.
#[repr(C)]
struct ForeignGetLimits {
    name_space: *const c_char,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
    current_used: c_ulonglong,
}

/// The limits of a control group on one GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMemoryLimits {
    /// What the group is guaranteed.
    pub soft: u64,
    /// What the group cannot exceed.
    pub hard: u64,
}

impl GroupMemoryLimits {
    /// The limits of a group that has none.
    pub const NONE: Self = Self {
        soft: 0,
        hard: NO_LIMIT,
    };
}

/// Why the library cannot be used for limits.
#[derive(Debug, thiserror::Error)]
pub enum OpenLimitsError {
    /// The driver is older than the functions.
    #[error("the driver has no memory limits for control groups")]
    Older,
    /// The library could not be opened.
    #[error("failed to open the driver's management library")]
    Open(#[source] libloading::Error),
}

/// The functions of a loaded driver library. The library stays loaded.
#[derive(Debug)]
pub struct DriverMemoryLimits {
    init: Init,
    shutdown: Shutdown,
    handle: HandleByUuid,
    set: SetLimits,
    get: GetLimits,
}

/// An open session with the driver. The library counts sessions, and a program can only meet a restarted driver once
/// all of its sessions are closed. So a session should be short.
#[derive(Debug)]
pub struct LimitsSession<'a> {
    functions: &'a DriverMemoryLimits,
}

impl DriverMemoryLimits {
    /// Opens the driver's management library.
    ///
    /// # Errors
    /// If it is not there or is older than the functions.
    pub fn open(library: &OsStr) -> Result<Self, OpenLimitsError> {
        // SAFETY: the library is the driver's, which the program has loaded before by the same name.
        let library = unsafe { Library::new(library) }.map_err(OpenLimitsError::Open)?;
        let limits = Self {
            init: symbol(&library, c"nvmlInit_v2")?,
            shutdown: symbol(&library, c"nvmlShutdown")?,
            handle: symbol(&library, c"nvmlDeviceGetHandleByUUID")?,
            set: symbol(&library, c"nvmlDeviceSetMemoryLimits_v1")?,
            get: symbol(&library, c"nvmlDeviceGetMemoryLimits_v1")?,
        };
        // The function pointers must outlive this value.
        std::mem::forget(library);
        Ok(limits)
    }

    /// Opens a session with the driver.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn session(&self) -> Result<LimitsSession<'_>, NvmlError> {
        // SAFETY: the function takes nothing.
        nvml_try(unsafe { (self.init)() })?;
        Ok(LimitsSession { functions: self })
    }
}

impl LimitsSession<'_> {
    /// Sets the limits of a control group on the GPU with this UUID. The group is named by its folder.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn set(&self, gpu: &str, group: &Path, limits: GroupMemoryLimits) -> Result<(), NvmlError> {
        let device = self.device(gpu)?;
        let group = c_path(group)?;
        let mut asked = ForeignSetLimits {
            name_space: group.as_ptr(),
            soft_limit: limits.soft,
            hard_limit: limits.hard,
        };
        // SAFETY: the structure is the function's, and the path in it outlives the call.
        nvml_try(unsafe { (self.functions.set)(device, &raw mut asked) })
    }

    /// The limits that hold for a control group on the GPU with this UUID; `None` if it has none.
    ///
    /// # Errors
    /// What the driver answers. A driver without its `dmem` backend answers `NotSupported` both if it keeps no limits
    /// and if it was never given one for this group.
    pub fn get(&self, gpu: &str, group: &Path) -> Result<Option<GroupMemoryLimits>, NvmlError> {
        let device = self.device(gpu)?;
        let group = c_path(group)?;
        let mut found = ForeignGetLimits {
            name_space: group.as_ptr(),
            soft_limit: 0,
            hard_limit: 0,
            current_used: 0,
        };
        // SAFETY: the structure is the function's, and the path in it outlives the call.
        match nvml_try(unsafe { (self.functions.get)(device, &raw mut found) }) {
            Ok(()) => Ok(Some(GroupMemoryLimits {
                soft: found.soft_limit,
                hard: found.hard_limit,
            })),
            Err(NvmlError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn device(&self, gpu: &str) -> Result<Device, NvmlError> {
        let gpu = CString::new(gpu).map_err(|_| NvmlError::InvalidArg)?;
        let mut device: Device = ptr::null_mut();
        // SAFETY: both pointers are valid for the call.
        nvml_try(unsafe { (self.functions.handle)(gpu.as_ptr(), &raw mut device) })?;
        Ok(device)
    }
}

impl Drop for LimitsSession<'_> {
    fn drop(&mut self) {
        // SAFETY: the function takes nothing, and the session was opened.
        let _ = unsafe { (self.functions.shutdown)() };
    }
}

/// A function of the library.
fn symbol<T: Copy>(library: &Library, name: &std::ffi::CStr) -> Result<T, OpenLimitsError> {
    const { assert!(size_of::<T>() == size_of::<unsafe extern "C" fn() -> c_int>()) };
    // SAFETY: every caller asks for a function by the type that `nvml.h` declares for this name.
    let found = unsafe { library.get::<T>(name.to_bytes_with_nul()) };
    found
        .map(|found| *found)
        .map_err(|_| OpenLimitsError::Older)
}

fn c_path(path: &Path) -> Result<CString, NvmlError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| NvmlError::InvalidArg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_the_functions_is_an_older_driver() {
        let opened = DriverMemoryLimits::open(OsStr::new("libc.so.6"));
        assert!(matches!(opened, Err(OpenLimitsError::Older)), "{opened:?}");
    }

    #[test]
    fn a_missing_library_is_told_apart_from_an_older_driver() {
        let opened = DriverMemoryLimits::open(OsStr::new("libapportion-is-not-there.so.1"));
        assert!(
            matches!(opened, Err(OpenLimitsError::Open(_))),
            "{opened:?}"
        );
    }
}
