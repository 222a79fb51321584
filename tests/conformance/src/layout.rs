//! The structures that are passed to the driver, with the layout of `cuda.h` and `nvml.h`.

use std::ffi::c_void;

/// `CUmemLocationType`: a card.
pub(crate) const DEVICE: i32 = 1;
/// `CUmemLocationType`: the host's memory near one processor.
pub(crate) const HOST_NUMA: i32 = 3;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const FILE_DESCRIPTOR: i32 = 1;

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Location {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct HandleProperties {
    kind: i32,
    shareable: i32,
    location: Location,
    windows: usize,
    flags: [u8; 8],
}

impl HandleProperties {
    /// Pinned memory at a location. `shareable` is the type of handle that it can be exported as.
    pub(crate) const fn new(location: Location, shareable: i32) -> Self {
        Self {
            kind: 1,
            shareable,
            location,
            windows: 0,
            flags: [0; 8],
        }
    }
}

/// `CUmemAccessDesc` for reading and writing from a location.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ReadWriteAccess {
    location: Location,
    flags: i32,
}

impl ReadWriteAccess {
    pub(crate) const fn of(location: Location) -> Self {
        Self { location, flags: 3 }
    }
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct FillNode {
    pub(crate) address: u64,
    pitch: usize,
    pub(crate) value: u32,
    element: u32,
    pub(crate) width: usize,
    height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct HostNode {
    pub(crate) function: extern "C" fn(*mut c_void),
    pub(crate) data: *mut c_void,
}

/// `CUDA_KERNEL_NODE_PARAMS`, without parameters.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct KernelNode {
    pub(crate) function: usize,
    pub(crate) shape: [u32; 7],
    rest: [usize; 4],
}

impl KernelNode {
    /// One block of `threads` threads.
    pub(crate) const fn new(function: usize, threads: u32) -> Self {
        Self {
            function,
            shape: [1, 1, 1, threads, 1, 1, 0],
            rest: [0; 4],
        }
    }
}

/// `CUmemcpyAttributes`: in stream order, without hints.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CopyAttributes {
    order: u32,
    hints: [u32; 4],
    flags: u32,
}

impl CopyAttributes {
    pub(crate) const IN_ORDER: Self = Self {
        order: 1,
        hints: [0; 4],
        flags: 0,
    };
}

/// `CUmemcpy3DOperand` for a pointer, with its row length and slice height.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct RowOperand {
    kind: u32,
    address: u64,
    row: usize,
    height: usize,
    hint: u64,
}

/// `CUDA_MEMCPY3D_BATCH_OP`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CopyOfRows {
    from: RowOperand,
    to: RowOperand,
    extent: [usize; 3],
    order: u32,
    flags: u32,
}

impl CopyOfRows {
    /// Copies `bytes` bytes from each of `rows` longer rows into rows without gaps.
    pub(crate) fn new(to: u64, from: (u64, usize), bytes: usize, rows: usize) -> Self {
        const POINTER: u32 = 1;
        let end = |address, row| RowOperand {
            kind: POINTER,
            address,
            row,
            height: 0,
            hint: 0,
        };
        Self {
            from: end(from.0, from.1),
            to: end(to, 0),
            extent: [bytes, rows, 1],
            order: 1,
            flags: 0,
        }
    }
}

/// `CUDA_RESOURCE_DESC`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct TextureResource {
    pub(crate) kind: u32,
    pub(crate) handle: u64,
    format: i32,
    channels: u32,
    bytes: usize,
    reserved: [u64; 13],
    flags: u64,
}

impl TextureResource {
    const EMPTY: Self = Self {
        kind: 0,
        handle: 0,
        format: 0,
        channels: 0,
        bytes: 0,
        reserved: [0; 13],
        flags: 0,
    };

    pub(crate) const fn of_array(array: usize) -> Self {
        Self {
            handle: array as u64,
            ..Self::EMPTY
        }
    }

    /// `bytes` bytes of floating-point numbers.
    pub(crate) const fn of_memory(address: u64, bytes: usize) -> Self {
        const LINEAR: u32 = 2;
        Self {
            kind: LINEAR,
            handle: address,
            format: FLOATS,
            channels: 1,
            bytes,
            ..Self::EMPTY
        }
    }
}

/// `CUDA_TEXTURE_DESC`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct TextureSampling {
    pub(crate) modes: [u32; 3],
    rest: [u32; 23],
}

impl TextureSampling {
    /// Coordinates beyond an edge are clamped to the edge.
    pub(crate) const CLAMPED: Self = Self {
        modes: [1; 3],
        rest: [0; 23],
    };
}

/// `CU_DEV_SM_RESOURCE_GROUP_PARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SmGroupParams {
    pub(crate) multiprocessors: u32,
    rest: [u32; 15],
}

impl SmGroupParams {
    /// `multiprocessors` multiprocessors with the card's default scheduling. Zero for all that are left.
    pub(crate) const fn of(multiprocessors: u32) -> Self {
        Self {
            multiprocessors,
            rest: [0; 15],
        }
    }
}

impl FillNode {
    /// One row of bytes.
    pub(crate) const fn new(address: u64, value: u8, bytes: usize) -> Self {
        Self {
            address,
            pitch: 0,
            value: value as u32,
            element: 1,
            width: bytes,
            height: 1,
        }
    }
}

/// `CUdevResource` for multiprocessors.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct SmResource {
    pub(crate) kind: u32,
    driver: [u8; 92],
    pub(crate) multiprocessors: u32,
    rest: [u8; 44],
}

impl SmResource {
    pub(crate) const EMPTY: Self = Self {
        kind: 0,
        driver: [0; 92],
        multiprocessors: 0,
        rest: [0; 44],
    };
}

/// `CUmemPoolProps`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PoolProperties {
    kind: i32,
    shareable: i32,
    location: Location,
    windows: usize,
    max_bytes: usize,
    reserved: [u8; 56],
}

impl PoolProperties {
    pub(crate) const fn new(location: Location) -> Self {
        Self {
            kind: 1,
            shareable: 0,
            location,
            windows: 0,
            max_bytes: 0,
            reserved: [0; 56],
        }
    }
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`: one allocation of a graph, and the address that the driver writes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AllocationNode {
    pool: PoolProperties,
    access: usize,
    access_count: usize,
    bytes: usize,
    pub(crate) address: u64,
}

impl AllocationNode {
    pub(crate) const fn new(location: Location, bytes: usize) -> Self {
        Self {
            pool: PoolProperties::new(location),
            access: 0,
            access_count: 0,
            bytes,
            address: 0,
        }
    }
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ArrayDescriptor {
    /// Elements per row.
    pub(crate) width: usize,
    /// Rows. 0 for an array of one dimension.
    pub(crate) height: usize,
    /// `CUarray_format`. The cases use [`BYTES`] and [`FLOATS`].
    pub(crate) format: i32,
    /// Channels per element.
    pub(crate) channels: u32,
}

/// `CU_AD_FORMAT_UNSIGNED_INT8`.
pub(crate) const BYTES: i32 = 1;
/// `CU_AD_FORMAT_FLOAT`.
pub(crate) const FLOATS: i32 = 0x20;

/// `CUcheckpointLockArgs`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct LockArguments {
    timeout_ms: u32,
    reserved: [u32; 15],
}

impl LockArguments {
    pub(crate) fn within(timeout_ms: u32) -> Self {
        Self {
            timeout_ms,
            reserved: [0; 15],
        }
    }
}

/// `nvmlMemory_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct CardMemory {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlMemory_v2_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CardMemoryV2 {
    version: u32,
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

impl Default for CardMemoryV2 {
    fn default() -> Self {
        let size = size_of::<Self>() as u32;
        Self {
            version: size | (2 << 24),
            total: 0,
            reserved: 0,
            free: 0,
            used: 0,
        }
    }
}

/// `nvmlProcessInfo_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RunningProcess {
    pub(crate) pid: u32,
    pub(crate) used: u64,
    instances: [u32; 2],
}

const _: () = {
    assert!(size_of::<HandleProperties>() == 32);
    assert!(size_of::<ReadWriteAccess>() == 12);
    assert!(size_of::<PoolProperties>() == 88);
    assert!(size_of::<ArrayDescriptor>() == 24);
    assert!(size_of::<KernelNode>() == 72);
    assert!(size_of::<CopyAttributes>() == 24);
    assert!(size_of::<CopyOfRows>() == 112);
    assert!(size_of::<TextureResource>() == 144);
    assert!(size_of::<TextureSampling>() == 104);
    assert!(size_of::<SmGroupParams>() == 64);
    assert!(size_of::<CardMemory>() == 24);
    assert!(size_of::<CardMemoryV2>() == 40);
    assert!(size_of::<RunningProcess>() == 24);
};
