//! The CUDA driver as a victim uses it: one table of functions, found in one of several ways.
//!
//! A program finds a function by a linked symbol, by `dlsym`, or by `cuGetProcAddress`. The creator of a [`Driver`]
//! decides how. Nothing here knows about limits.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;

use libloading::os::unix::{Library, RTLD_NOW};

/// `CUDA_ERROR_NOT_FOUND`: the driver does not have the function.
pub(crate) const NOT_FOUND: i32 = 500;
/// `CUDA_ERROR_NO_DEVICE`, also used if there is no driver at all.
pub(crate) const NO_DEVICE: i32 = 100;

/// `CUmemAllocationProp` for pinned memory on a card or in the host.
#[repr(C)]
pub(crate) struct AllocationProperties {
    kind: c_int,
    handle_types: c_int,
    location: AllocationLocation,
    windows: usize,
    flags: u64,
}

/// `CUmemLocation`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AllocationLocation {
    kind: c_int,
    id: c_int,
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub(crate) struct AccessDesc {
    location: AllocationLocation,
    flags: c_int,
}

/// `CUmemPoolProps`.
#[repr(C)]
pub(crate) struct PoolProperties {
    kind: c_int,
    handle_types: c_int,
    location: AllocationLocation,
    windows: usize,
    max_size: usize,
    reserved: [u64; 7],
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
pub(crate) struct AllocationNode {
    pool: PoolProperties,
    access: usize,
    access_count: usize,
    bytes: usize,
    pub(crate) address: u64,
}

/// `CUDA_KERNEL_NODE_PARAMS`, for one thread.
#[repr(C)]
pub(crate) struct KernelNode {
    function: usize,
    shape: [u32; 7],
    rest: [usize; 4],
}

/// `CUlaunchConfig`, for one thread.
#[repr(C)]
pub(crate) struct LaunchConfig {
    shape: [u32; 7],
    rest: [usize; 3],
}

/// `CUDA_LAUNCH_PARAMS`, for one thread.
#[repr(C)]
pub(crate) struct SingleThreadLaunch {
    function: usize,
    shape: [u32; 7],
    stream: usize,
    parameters: usize,
}

/// A grid of one block of one thread, without shared memory.
const ONE_THREAD: [u32; 7] = [1, 1, 1, 1, 1, 1, 0];

impl KernelNode {
    pub(crate) fn of(function: usize) -> Self {
        Self {
            function,
            shape: ONE_THREAD,
            rest: [0; 4],
        }
    }
}

impl SingleThreadLaunch {
    pub(crate) fn of(function: usize, stream: usize) -> Self {
        Self {
            function,
            shape: ONE_THREAD,
            stream,
            parameters: 0,
        }
    }
}

impl LaunchConfig {
    pub(crate) fn of_one_thread() -> Self {
        Self {
            shape: ONE_THREAD,
            rest: [0; 3],
        }
    }
}

/// `CUipcMemHandle`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle(pub(crate) [u64; 8]);

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
pub(crate) struct Array3dDescriptor {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

impl Array3dDescriptor {
    /// Rows of 64 KiB.
    pub(crate) fn of(bytes: usize) -> Self {
        const FLOAT: u32 = 0x20;
        Self {
            width: 16 << 10,
            height: bytes >> 16,
            depth: 0,
            format: FLOAT,
            channels: 1,
            flags: 0,
        }
    }

    /// The same without memory of its own.
    pub(crate) fn sparse(bytes: usize) -> Self {
        const SPARSE: u32 = 0x40;
        Self {
            flags: SPARSE,
            ..Self::of(bytes)
        }
    }
}

/// `CUarrayMapInfo`, for all of an array.
#[repr(C)]
pub(crate) struct WholeArrayMap {
    kind: u32,
    array: usize,
    part_kind: u32,
    part: [u64; 4],
    operation: u32,
    handle_kind: u32,
    handle: u64,
    offset: u64,
    devices: u32,
    flags: u32,
    reserved: [u32; 2],
}

impl WholeArrayMap {
    /// Maps a handle, or unmaps if there is none.
    pub(crate) fn of(array: usize, handle: Option<u64>) -> Self {
        Self {
            kind: 0,
            array,
            part_kind: 0,
            // The level and its layer, three offsets, width, height and depth.
            part: [0, 0, (16 << 10) << 32, (1 << 32) | (16 << 10)],
            operation: if handle.is_some() { 1 } else { 2 },
            handle_kind: 0,
            handle: handle.unwrap_or(0),
            offset: 0,
            devices: 1,
            flags: 0,
            reserved: [0; 2],
        }
    }
}

impl AllocationNode {
    pub(crate) fn of(location: AllocationLocation, bytes: usize) -> Self {
        Self {
            pool: PoolProperties::at(location),
            access: 0,
            access_count: 0,
            bytes,
            address: 0,
        }
    }
}

impl AllocationLocation {
    pub(crate) fn card(id: i32) -> Self {
        Self { kind: 1, id }
    }

    pub(crate) fn host() -> Self {
        Self { kind: 2, id: 0 }
    }
}

impl AllocationProperties {
    pub(crate) fn at(location: AllocationLocation) -> Self {
        Self {
            kind: 1,
            handle_types: 0,
            location,
            windows: 0,
            flags: 0,
        }
    }
}

impl AllocationProperties {
    /// The properties of memory that can be exported as a file descriptor.
    pub(crate) fn shareable(location: AllocationLocation) -> Self {
        Self {
            handle_types: 1,
            ..Self::at(location)
        }
    }
}

impl AccessDesc {
    pub(crate) fn read_write(location: AllocationLocation) -> Self {
        Self { location, flags: 3 }
    }
}

impl PoolProperties {
    pub(crate) fn at(location: AllocationLocation) -> Self {
        Self {
            kind: 1,
            handle_types: 0,
            location,
            windows: 0,
            max_size: 0,
            reserved: [0; 7],
        }
    }
}

macro_rules! functions {
    ($($name:ident($($arg:ident: $type:ty),*) = $base:literal @ $version:literal;)*) => {
        /// The functions that a victim calls. One that the driver lacks returns [`NOT_FOUND`].
        #[expect(non_snake_case, reason = "the driver's own names")]
        pub(crate) struct Driver {
            $($name: Option<unsafe extern "C" fn($($type),*) -> c_int>,)*
        }

        #[expect(
            non_snake_case,
            clippy::too_many_arguments,
            reason = "the driver's own names and arguments"
        )]
        impl Driver {
            /// Calls `find` for each function, with exported name, base name and version.
            pub(crate) fn new(mut find: impl FnMut(&str, &str, c_int) -> *mut c_void) -> Self {
                Self {
                    $($name: {
                        let found = find(stringify!($name), $base, $version);
                        // SAFETY: the row has the signature of the driver's header, and a null pointer is `None`.
                        unsafe { mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($type),*) -> c_int>>(found) }
                    },)*
                }
            }

            $(pub(crate) fn $name(&self, $($arg: $type),*) -> i32 {
                match self.$name {
                    // SAFETY: references are valid for the call or null where the row allows it, pointers are to images
                    // and paths, and the driver checks every pointer, handle and number that it gets.
                    Some(function) => unsafe { function($($arg),*) },
                    None => NOT_FOUND,
                }
            })*
        }
    };
}
include!("functions.in");

impl Driver {
    /// The text of `cuGetErrorName`, to test that functions without a hook still work.
    pub(crate) fn error_name(code: i32) -> Option<String> {
        // SAFETY: as in `open`; the library is loaded already.
        let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW) }.ok()?;
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the signature is that of `cuGetErrorName` in the driver's header.
        let name = unsafe {
            library.get::<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>(
                b"cuGetErrorName\0",
            )
        };
        // SAFETY: the result is valid for the call.
        let result = unsafe { name.ok()?(code, &raw mut text) };
        if result != 0 || text.is_null() {
            return None;
        }
        // SAFETY: the driver gives a static C string.
        Some(
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
        )
    }
}
