//! A driver that does nothing and returns at once: what is measured over it is the hook alone.
//!
//! It has one card and answers just enough for a program to reach an allocation and a launch. It is for the benches
//! only. It refuses nothing, so it proves nothing about limits; the simulated driver does. Its functions only write
//! through pointers that the caller vouches for. So each is `unsafe` with the one requirement of `cuda.h`: pointers are
//! valid or NULL.
#![expect(
    clippy::missing_safety_doc,
    reason = "the requirement is the same for all and stands above"
)]
#![expect(missing_docs, reason = "cuda.h documents each of them")]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

/// The UUID of the only card.
const UUID: [u8; 16] = *b"apportion-null-0";
const MEMORY: usize = 1 << 40;
/// The next address to return.
static NEXT: AtomicU64 = AtomicU64::new(0x7000_0000_0000);

thread_local! {
    /// The stream capture mode of the thread.
    static MODE: Cell<u32> = const { Cell::new(0) };
}

const SUCCESS: i32 = 0;
const INVALID_VALUE: i32 = 1;
const NOT_FOUND: i32 = 500;

/// Writes an output, or returns `CUDA_ERROR_INVALID_VALUE` for NULL, as the driver does.
///
/// # Safety
/// `to` is NULL or valid for a write.
unsafe fn give<T>(to: *mut T, value: T) -> i32 {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not NULL, and otherwise valid by the caller's promise.
    unsafe { to.write(value) };
    SUCCESS
}

fn address(bytes: usize) -> u64 {
    let step = bytes.next_multiple_of(512) as u64;
    NEXT.fetch_add(step, Ordering::Relaxed)
}

macro_rules! exports {
    ($($name:ident ($($argument:ident: $type:ty),*) => $body:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> i32 {
                $body
            }
        )*

        /// The exported function with this name.
        fn exported(name: &CStr) -> Option<*mut c_void> {
            $(
                if name.to_bytes() == stringify!($name).as_bytes() {
                    return Some($name as *mut c_void);
                }
            )*
            None
        }
    };
}

exports! {
    cuInit(_flags: u32) => SUCCESS;
    // SAFETY: the caller's promise.
    cuDriverGetVersion(version: *mut i32) => unsafe { give(version, 13000) };
    // SAFETY: the caller's promise.
    cuDeviceGetCount(count: *mut i32) => unsafe { give(count, 1) };
    // SAFETY: the caller's promise.
    cuDeviceGet(device: *mut i32, _ordinal: i32) => unsafe { give(device, 0) };
    // SAFETY: the caller's promise.
    cuDeviceGetUuid(uuid: *mut [u8; 16], _device: i32) => unsafe { give(uuid, UUID) };
    // SAFETY: the caller's promise.
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], _device: i32) => unsafe { give(uuid, UUID) };
    // SAFETY: the caller's promise.
    cuDeviceGetAttribute(value: *mut i32, _attribute: i32, _device: i32) => unsafe { give(value, 1) };
    // SAFETY: the caller's promise.
    cuDeviceTotalMem_v2(bytes: *mut usize, _device: i32) => unsafe { give(bytes, MEMORY) };
    // SAFETY: the caller's promise.
    cuDevicePrimaryCtxRetain(context: *mut usize, _device: i32) => unsafe { give(context, 0x1000) };
    cuDevicePrimaryCtxRelease_v2(_device: i32) => SUCCESS;
    cuDevicePrimaryCtxReset_v2(_device: i32) => SUCCESS;
    // SAFETY: the caller's promise.
    cuDevicePrimaryCtxGetState(_device: i32, _flags: *mut u32, active: *mut i32) => unsafe { give(active, 1) };
    cuCtxSetCurrent(_context: usize) => SUCCESS;
    // SAFETY: the caller's promise.
    cuCtxGetCurrent(context: *mut usize) => unsafe { give(context, 0x1000) };
    // SAFETY: the caller's promise.
    cuCtxGetDevice(device: *mut i32) => unsafe { give(device, 0) };
    // SAFETY: the caller's promise.
    cuCtxGetId(_context: usize, id: *mut u64) => unsafe { give(id, 1) };
    cuCtxSynchronize() => SUCCESS;
    // SAFETY: the caller's promise.
    cuCtxCreate_v2(context: *mut usize, _flags: u32, _device: i32) => unsafe { give(context, 0x1001) };
    cuCtxDestroy_v2(_context: usize) => SUCCESS;
    cuStreamSynchronize(_stream: usize) => SUCCESS;
    cuThreadExchangeStreamCaptureMode(mode: *mut u32) => {
        if mode.is_null() {
            return INVALID_VALUE;
        }
        // SAFETY: not NULL, and otherwise valid by the caller's promise.
        let mode = unsafe { &mut *mode };
        MODE.with(|now| *mode = now.replace(*mode));
        SUCCESS
    };
    // SAFETY: the caller's promise.
    cuStreamGetCtx(_stream: usize, context: *mut usize) => unsafe { give(context, 0x1000) };
    // SAFETY: the caller's promise.
    cuStreamIsCapturing(_stream: usize, status: *mut i32) => unsafe { give(status, 0) };
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => {
        // SAFETY: the caller's promise.
        let first = unsafe { give(free, MEMORY) };
        // SAFETY: the caller's promise.
        first.max(unsafe { give(total, MEMORY) })
    };
    // SAFETY: the caller's promise.
    cuMemAlloc_v2(to: *mut u64, bytes: usize) => unsafe { give(to, address(bytes)) };
    cuMemFree_v2(_address: u64) => SUCCESS;
    // SAFETY: the caller's promise.
    cuMemAllocAsync(to: *mut u64, bytes: usize, _stream: usize) => unsafe { give(to, address(bytes)) };
    cuMemFreeAsync(_address: u64, _stream: usize) => SUCCESS;
    // SAFETY: the caller's promise.
    cuDeviceGetDefaultMemPool(pool: *mut usize, _device: i32) => unsafe { give(pool, 0x2000) };
    // SAFETY: the caller's promise.
    cuDeviceGetMemPool(pool: *mut usize, _device: i32) => unsafe { give(pool, 0x2000) };
    // SAFETY: the caller's promise.
    cuMemPoolGetAttribute(_pool: usize, _attribute: i32, value: *mut u64) => unsafe { give(value, 1 << 25) };
    cuMemPoolTrimTo(_pool: usize, _keep: usize) => SUCCESS;
    // SAFETY: the caller's promise.
    cuModuleLoadData(module: *mut usize, _image: *const c_void) => unsafe { give(module, 0x3000) };
    // SAFETY: the caller's promise.
    cuModuleGetFunction(function: *mut usize, _module: usize, _name: *const c_char) => unsafe { give(function, 0x4000) };
    // SAFETY: the caller's promise.
    cuFuncGetAttribute(value: *mut i32, _attribute: i32, _function: usize) => unsafe { give(value, 0) };
    // SAFETY: the caller's promise.
    cuCtxGetLimit(value: *mut usize, _limit: u32) => unsafe { give(value, 1024) };
    cuLaunchKernel(
        _function: usize, _grid_x: u32, _grid_y: u32, _grid_z: u32, _block_x: u32, _block_y: u32,
        _block_z: u32, _shared: u32, _stream: usize, _arguments: *mut c_void, _extra: *mut c_void
    ) => SUCCESS;
    cuGetProcAddress_v2(
        name: *const c_char, function: *mut *mut c_void, _version: i32, _flags: u64, status: *mut i32
    ) => {
        if name.is_null() {
            return INVALID_VALUE;
        }
        // SAFETY: not NULL, and otherwise a C string by the caller's promise.
        let found = versioned(unsafe { CStr::from_ptr(name) });
        if !status.is_null() {
            // SAFETY: not NULL, and otherwise valid by the caller's promise.
            unsafe { status.write(i32::from(found.is_none())) };
        }
        // SAFETY: the caller's promise.
        let given = unsafe { give(function, found.unwrap_or(std::ptr::null_mut())) };
        if found.is_none() { NOT_FOUND } else { given }
    };
}

/// The newest version of a function. This driver has one version of each.
fn versioned(name: &CStr) -> Option<*mut c_void> {
    let newest = format!("{}_v2\0", name.to_string_lossy());
    let newest = CStr::from_bytes_until_nul(newest.as_bytes()).ok()?;
    exported(newest).or_else(|| exported(name))
}
