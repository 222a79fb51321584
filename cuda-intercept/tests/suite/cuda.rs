//! The driver as a program sees it: functions found by `dlsym` in `libcuda.so.1`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;

pub(crate) const OUT_OF_MEMORY: i32 = 2;
pub(crate) type Pointer = *mut c_void;

/// A loaded driver with a context on the first card.
pub(crate) struct LoadedCuda {
    handle: usize,
}

/// `CUmemAllocationProp` and the start of `CUmemPoolProps`: pinned memory on a device or in the host.
#[repr(C)]
pub(crate) struct PinnedProperties {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location: i32,
    rest: [u64; 9],
}

impl PinnedProperties {
    pub(crate) fn device(device: i32) -> Self {
        Self::at(1, device)
    }

    pub(crate) fn host() -> Self {
        Self::at(2, 0)
    }

    fn at(location_kind: u32, location: i32) -> Self {
        Self {
            kind: 1,
            handle_types: 0,
            location_kind,
            location,
            rest: [0; 9],
        }
    }
}

macro_rules! functions {
    ($($method:ident = $symbol:literal($($arg:ident: $type:ty),*);)*) => {
        impl LoadedCuda {$(
            pub(crate) fn $method(&self, $($arg: $type),*) -> i32 {
                let function: unsafe extern "C" fn($($type),*) -> i32 = self.function($symbol);
                // SAFETY: the signature is the driver's; the tests pass what the driver takes.
                unsafe { function($($arg),*) }
            }
        )*}
    };
}

functions! {
    init = c"cuInit"(flags: c_uint);
    primary_retain = c"cuDevicePrimaryCtxRetain"(context: *mut Pointer, device: c_int);
    primary_release = c"cuDevicePrimaryCtxRelease_v2"(device: c_int);
    primary_reset = c"cuDevicePrimaryCtxReset_v2"(device: c_int);
    create_context = c"cuCtxCreate_v2"(context: *mut Pointer, flags: c_uint, device: c_int);
    destroy_context = c"cuCtxDestroy_v2"(context: Pointer);
    set_current = c"cuCtxSetCurrent"(context: Pointer);
    synchronize = c"cuCtxSynchronize"();
    mem_alloc = c"cuMemAlloc_v2"(address: *mut u64, bytes: usize);
    mem_alloc_v1 = c"cuMemAlloc"(address: *mut u32, bytes: c_uint);
    mem_alloc_managed = c"cuMemAllocManaged"(address: *mut u64, bytes: usize, flags: c_uint);
    mem_alloc_pitch = c"cuMemAllocPitch_v2"(address: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint);
    mem_free = c"cuMemFree_v2"(address: u64);
    mem_free_v1 = c"cuMemFree"(address: u32);
    mem_get_info = c"cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    device_total = c"cuDeviceTotalMem_v2"(bytes: *mut usize, device: c_int);
    mem_create = c"cuMemCreate"(handle: *mut u64, bytes: usize, properties: *const PinnedProperties, flags: c_ulonglong);
    mem_release = c"cuMemRelease"(handle: u64);
    address_reserve = c"cuMemAddressReserve"(address: *mut u64, bytes: usize, alignment: usize, wish: u64, flags: c_ulonglong);
    mem_map = c"cuMemMap"(address: u64, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong);
    mem_unmap = c"cuMemUnmap"(address: u64, bytes: usize);
    retain_handle = c"cuMemRetainAllocationHandle"(handle: *mut u64, address: Pointer);
    alloc_async = c"cuMemAllocAsync"(address: *mut u64, bytes: usize, stream: Pointer);
    alloc_async_ptsz = c"cuMemAllocAsync_ptsz"(address: *mut u64, bytes: usize, stream: Pointer);
    alloc_from_pool = c"cuMemAllocFromPoolAsync"(address: *mut u64, bytes: usize, pool: Pointer, stream: Pointer);
    free_async = c"cuMemFreeAsync"(address: u64, stream: Pointer);
    pool_create = c"cuMemPoolCreate"(pool: *mut Pointer, properties: *const PinnedProperties);
    pool_default_at = c"cuMemGetDefaultMemPool"(pool: *mut Pointer, location: *const [c_int; 2], kind: c_uint);
    pool_current_at = c"cuMemGetMemPool"(pool: *mut Pointer, location: *const [c_int; 2], kind: c_uint);
    pool_destroy = c"cuMemPoolDestroy"(pool: Pointer);
    pool_trim = c"cuMemPoolTrimTo"(pool: Pointer, keep: usize);
    pool_set = c"cuMemPoolSetAttribute"(pool: Pointer, attribute: c_uint, value: *mut u64);
    get_proc_address = c"cuGetProcAddress"(symbol: *const c_char, function: *mut Pointer, version: c_int, flags: u64);
    get_proc_address_v2 = c"cuGetProcAddress_v2"(symbol: *const c_char, function: *mut Pointer, version: c_int, flags: u64, status: *mut c_int);
    array_create = c"cuArrayCreate_v2"(array: *mut Pointer, shape: *const ArrayShape);
    array_destroy = c"cuArrayDestroy"(array: Pointer);
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
pub(crate) struct ArrayShape {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: u32,
    pub(crate) channels: u32,
}

impl LoadedCuda {
    /// Loads the driver without a context.
    pub(crate) fn load() -> Self {
        // SAFETY: loading a library runs its constructors, and the driver has none that matter.
        let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "no driver");
        let cuda = Self {
            handle: handle as usize,
        };
        assert_eq!(cuda.init(0), 0);
        cuda
    }

    /// Loads the driver and makes the first card's primary context current.
    pub(crate) fn start() -> Self {
        let cuda = Self::load();
        let mut context = null_mut();
        assert_eq!(cuda.primary_retain(&raw mut context, 0), 0);
        assert_eq!(cuda.set_current(context), 0);
        cuda
    }

    /// The address that `dlsym` returns.
    pub(crate) fn address(&self, symbol: &CStr) -> usize {
        // SAFETY: the handle is that of a loaded library, the name a string.
        unsafe { libc::dlsym(self.handle as Pointer, symbol.as_ptr()) as usize }
    }

    fn function<F>(&self, symbol: &CStr) -> F {
        let address = self.address(symbol);
        assert!(address != 0, "the driver has no {symbol:?}");
        // SAFETY: the caller names a function type, which is a pointer, of that function's signature.
        unsafe { transmute_copy(&address) }
    }

    /// Allocates, and returns the address or the status.
    pub(crate) fn alloc(&self, bytes: u64) -> Result<u64, i32> {
        let mut address = 0;
        match self.mem_alloc(&raw mut address, bytes as usize) {
            0 => Ok(address),
            status => Err(status),
        }
    }

    /// Free and total bytes.
    pub(crate) fn info(&self) -> (u64, u64) {
        let (mut free, mut total) = (0, 0);
        assert_eq!(self.mem_get_info(&raw mut free, &raw mut total), 0);
        (free as u64, total as u64)
    }
}
