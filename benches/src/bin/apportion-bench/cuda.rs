//! The few driver functions that a measured process calls, resolved as most programs do.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use anyhow::{Context, Result, ensure};
use libloading::Library;

macro_rules! functions {
    ($($method:ident = $symbol:literal ($($argument:ident: $type:ty),*);)*) => {
        /// The driver that the loader finds.
        #[derive(Debug)]
        pub(crate) struct Cuda {
            $($method: extern "C" fn($($type),*) -> i32,)*
            _library: Library,
        }

        impl Cuda {
            /// Loads the driver and resolves its functions.
            pub(crate) fn open() -> Result<Self> {
                // SAFETY: a driver library runs nothing at load that this program could disturb.
                let library = unsafe { Library::new("libcuda.so.1") }?;
                Ok(Self {
                    $($method: {
                        // SAFETY: the row's signature is that of the symbol in cuda.h.
                        let found = unsafe { library.get($symbol.as_bytes()) };
                        *found.context($symbol)?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    init = "cuInit" (flags: u32);
    device = "cuDeviceGet" (device: &mut i32, ordinal: i32);
    uuid = "cuDeviceGetUuid_v2" (uuid: &mut [u8; 16], device: i32);
    retain = "cuDevicePrimaryCtxRetain" (context: &mut usize, device: i32);
    set_current = "cuCtxSetCurrent" (context: usize);
    context_create = "cuCtxCreate_v2" (context: &mut usize, flags: u32, device: i32);
    context_destroy = "cuCtxDestroy_v2" (context: usize);
    synchronise = "cuCtxSynchronize" ();
    wait = "cuStreamSynchronize" (stream: usize);
    memory_info = "cuMemGetInfo_v2" (free: &mut usize, total: &mut usize);
    alloc = "cuMemAlloc_v2" (address: &mut u64, bytes: usize);
    free = "cuMemFree_v2" (address: u64);
    alloc_async = "cuMemAllocAsync" (address: &mut u64, bytes: usize, stream: usize);
    free_async = "cuMemFreeAsync" (address: u64, stream: usize);
    load = "cuModuleLoadData" (module: &mut usize, image: *const c_void);
    function = "cuModuleGetFunction" (function: &mut usize, module: usize, name: *const c_char);
    launch_kernel = "cuLaunchKernel" (function: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: usize, arguments: *mut c_void, extra: *mut c_void);
}

/// Fails unless a call that the measurement depends on succeeded.
pub(crate) fn must(what: &str, code: i32) -> Result<()> {
    ensure!(code == 0, "{what} returned {code}");
    Ok(())
}

impl Cuda {
    /// The UUID of the first card.
    pub(crate) fn card(&self) -> Result<[u8; 16]> {
        must("cuInit", (self.init)(0))?;
        let (mut device, mut uuid) = (0, [0; 16]);
        must("cuDeviceGet", (self.device)(&mut device, 0))?;
        must("cuDeviceGetUuid_v2", (self.uuid)(&mut uuid, device))?;
        Ok(uuid)
    }

    /// Makes the primary context of the first card current.
    pub(crate) fn enter(&self) -> Result<()> {
        self.card()?;
        let mut context = 0;
        must("cuDevicePrimaryCtxRetain", (self.retain)(&mut context, 0))?;
        must("cuCtxSetCurrent", (self.set_current)(context))
    }

    /// A kernel that does nothing.
    pub(crate) fn kernel(&self) -> Result<usize> {
        /// Newer drivers stop compiling for the oldest cards.
        const IMAGES: [&CStr; 2] = [
            c".version 8.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n",
            c".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n",
        ];
        let (mut module, mut function) = (0, 0);
        let refused = IMAGES
            .into_iter()
            .map(|image| (self.load)(&mut module, image.as_ptr().cast()))
            .take_while(|&code| code != 0);
        let loaded = refused.count() < IMAGES.len();
        ensure!(loaded, "cuModuleLoadData takes no kernel");
        must(
            "cuModuleGetFunction",
            (self.function)(&mut function, module, c"nothing".as_ptr()),
        )?;
        Ok(function)
    }

    /// Makes no context current, by a function that has no hook.
    pub(crate) fn leave(&self) -> i32 {
        (self.set_current)(0)
    }

    /// The free memory that the driver reports, in bytes.
    pub(crate) fn free_memory(&self) -> Result<usize> {
        let (mut free, mut total) = (0, 0);
        must("cuMemGetInfo_v2", (self.memory_info)(&mut free, &mut total))?;
        Ok(free)
    }

    /// Creates another context and destroys it. The previous one is current again.
    pub(crate) fn make_and_destroy_context(&self) -> Result<()> {
        let mut context = 0;
        must("cuCtxCreate_v2", (self.context_create)(&mut context, 0, 0))?;
        must("cuCtxDestroy_v2", (self.context_destroy)(context))
    }

    /// Waits for all launched work.
    pub(crate) fn synchronize(&self) -> i32 {
        (self.synchronise)()
    }

    /// Waits for the default stream.
    pub(crate) fn wait_for_stream(&self) -> i32 {
        (self.wait)(0)
    }

    /// Allocates. Returns the address.
    pub(crate) fn take(&self, bytes: usize) -> Result<u64> {
        let mut address = 0;
        must("cuMemAlloc_v2", (self.alloc)(&mut address, bytes))?;
        Ok(address)
    }

    pub(crate) fn give(&self, address: u64) -> i32 {
        (self.free)(address)
    }

    /// Allocates and never frees.
    pub(crate) fn keep(&self, bytes: usize) -> i32 {
        (self.alloc)(&mut 0, bytes)
    }

    /// Allocates more than the account allows. A driver without the library may succeed; then the memory is freed.
    pub(crate) fn alloc_too_much(&self, bytes: usize) -> i32 {
        const OUT_OF_MEMORY: i32 = 2;
        let mut address = 0;
        match (self.alloc)(&mut address, bytes) {
            0 => (self.free)(address),
            OUT_OF_MEMORY => 0,
            other => other,
        }
    }

    pub(crate) fn alloc_and_free(&self, bytes: usize) -> i32 {
        let mut address = 0;
        (self.alloc)(&mut address, bytes) | (self.free)(address)
    }

    /// Allocates and frees in the order of the default stream.
    pub(crate) fn alloc_and_free_async(&self, bytes: usize) -> i32 {
        let mut address = 0;
        (self.alloc_async)(&mut address, bytes, 0) | (self.free_async)(address, 0)
    }

    /// Queries free and total memory.
    pub(crate) fn ask_memory(&self) -> i32 {
        let (mut free, mut total) = (0, 0);
        (self.memory_info)(&mut free, &mut total)
    }

    /// Launches a kernel on one thread.
    pub(crate) fn launch(&self, kernel: usize) -> i32 {
        let none = ptr::null_mut();
        (self.launch_kernel)(kernel, 1, 1, 1, 1, 1, 1, 0, 0, none, none)
    }
}
