//! A card's memory according to NVML, by both versions of the query.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::mem;

use libloading::os::unix::{Library, RTLD_NOW, Symbol};

use crate::driver::NO_DEVICE;
use crate::script::{StepOutcome, result};

type Device = *mut c_void;

/// `nvmlMemory_t`.
#[derive(Default)]
#[repr(C)]
struct MemoryV1 {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[derive(Default)]
#[repr(C)]
struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// Total, free and used bytes.
pub(crate) fn memory(uuid: Option<String>, index: i32) -> Result<StepOutcome, i32> {
    let library = open()?;
    let device = device(&library, uuid, index)?;
    let mut memory = MemoryV1::default();
    let ask: Symbol<unsafe extern "C" fn(Device, *mut MemoryV1) -> c_int> =
        function(&library, b"nvmlDeviceGetMemoryInfo\0")?;
    // SAFETY: the handle is from NVML and the result is valid.
    let code = unsafe { ask(device, &raw mut memory) };
    mem::forget(library);
    Ok(StepOutcome::with(
        code,
        [memory.total, memory.free, memory.used],
    ))
}

/// Total, reserved, free and used bytes.
pub(crate) fn memory_v2(uuid: Option<String>, index: i32) -> Result<StepOutcome, i32> {
    let library = open()?;
    let device = device(&library, uuid, index)?;
    let version = size_of::<MemoryV2>() as c_uint | 2 << 24;
    let mut memory = MemoryV2 {
        version,
        ..MemoryV2::default()
    };
    let ask: Symbol<unsafe extern "C" fn(Device, *mut MemoryV2) -> c_int> =
        function(&library, b"nvmlDeviceGetMemoryInfo_v2\0")?;
    // SAFETY: the handle is from NVML, and the result is valid and has its version set.
    let code = unsafe { ask(device, &raw mut memory) };
    mem::forget(library);
    Ok(StepOutcome::with(
        code,
        [memory.total, memory.reserved, memory.free, memory.used],
    ))
}

fn open() -> Result<Library, i32> {
    // SAFETY: every NVML program runs NVML's initialisers.
    let library = unsafe { Library::open(Some("libnvidia-ml.so.1"), RTLD_NOW) };
    let library = library.map_err(|_| NO_DEVICE)?;
    let start: Symbol<unsafe extern "C" fn() -> c_int> = function(&library, b"nvmlInit_v2\0")?;
    // SAFETY: the call has no arguments and may be repeated.
    result(unsafe { start() })?;
    Ok(library)
}

fn device(library: &Library, uuid: Option<String>, index: i32) -> Result<Device, i32> {
    let mut device = std::ptr::null_mut();
    let Some(uuid) = uuid.and_then(|uuid| CString::new(uuid).ok()) else {
        let find: Symbol<unsafe extern "C" fn(c_uint, *mut Device) -> c_int> =
            function(library, b"nvmlDeviceGetHandleByIndex_v2\0")?;
        // SAFETY: the result is valid.
        return result(unsafe { find(index.unsigned_abs(), &raw mut device) }).map(|()| device);
    };
    let find: Symbol<unsafe extern "C" fn(*const c_char, *mut Device) -> c_int> =
        function(library, b"nvmlDeviceGetHandleByUUID\0")?;
    // SAFETY: the UUID is a C string and the result is valid.
    result(unsafe { find(uuid.as_ptr(), &raw mut device) }).map(|()| device)
}

fn function<T>(library: &Library, name: &[u8]) -> Result<Symbol<T>, i32> {
    // SAFETY: every caller gives the type of NVML's header for the name.
    unsafe { library.get(name) }.map_err(|_| crate::driver::NOT_FOUND)
}
