//! The types of the driver that the hooks use: handle types, status codes and the structures that a hook reads. A
//! test compares the hooks' signatures with the driver's headers.

use core::ffi::c_void;

use apportion_gate::{BindingRegion, ConditionalBodies};

/// `CUresult` or `nvmlReturn_t`.
pub type Status = i32;
/// `CUdevice`.
pub type Device = i32;
/// `CUdeviceptr`.
pub type DevicePointer = u64;
/// A pointer that a hook only passes on.
pub type Opaque = *mut c_void;
/// `CUcontext`.
pub type Context = *mut c_void;
/// `CUstream`.
pub type Stream = *mut c_void;
/// `CUevent`.
pub type Event = *mut c_void;
/// `CUmemoryPool`.
pub type Pool = *mut c_void;
/// `CUmemGenericAllocationHandle`.
pub type Handle = u64;
/// `nvmlDevice_t`.
pub type NvmlDevice = *mut c_void;

/// The success status of both APIs.
pub(crate) const SUCCESS: Status = 0;
/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) const INVALID_VALUE: Status = 1;
/// `CUDA_ERROR_INVALID_HANDLE`.
pub(crate) const INVALID_HANDLE: Status = 400;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: Status = 2;
/// `CUDA_ERROR_NOT_INITIALIZED`: the result of a hook without a driver.
pub(crate) const NOT_INITIALIZED: Status = 3;
/// `NVML_ERROR_UNINITIALIZED`: the same for NVML.
pub(crate) const NVML_UNINITIALIZED: Status = 1;
/// `NVML_ERROR_NOT_FOUND`.
pub(crate) const NVML_NOT_FOUND: Status = 6;
/// `NVML_ERROR_INSUFFICIENT_SIZE`.
pub(crate) const NVML_INSUFFICIENT_SIZE: Status = 7;
/// `NVML_ERROR_MEMORY`.
pub(crate) const NVML_MEMORY: Status = 20;

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN`: a part of a device; the low byte of the id is the device.
const LOCATION_DOMAIN: u32 = 6;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
pub(crate) const POOL_RESERVED: u32 = 5;
/// `CUDA_ERROR_NOT_READY`.
pub(crate) const NOT_READY: Status = 600;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(crate) const CAPTURE_RELAXED: u32 = 2;
/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const WITHOUT_TIMING: u32 = 2;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
pub(crate) const GRAPHS_RESERVED: u32 = 2;
/// `CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`.
pub(crate) const LOCAL_BYTES: u32 = 3;
/// `CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL`.
const SPARSE_LEVEL: u32 = 0;
/// `CU_MODULE_LAZY_LOADING`.
pub(crate) const LAZY_LOADING: u32 = 2;

/// `CUipcMemHandle`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IpcHandle(pub(crate) [u8; 64]);

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct MemoryLocation {
    kind: u32,
    id: i32,
}

impl MemoryLocation {
    /// The device, if the memory is on one. A locality domain counts as its device.
    pub(crate) fn device(self) -> Option<Device> {
        match self.kind {
            LOCATION_DEVICE => Some(self.id),
            LOCATION_DOMAIN => Some(self.id & 0xff),
            _ => None,
        }
    }
}

/// The start of `CUmemAllocationProp`.
#[derive(Debug)]
#[repr(C)]
pub struct AllocationProperties {
    kind: u32,
    requested_handle_types: u32,
    pub(crate) location: MemoryLocation,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`. The pool's properties beyond their start are padding.
#[derive(Debug, Default)]
#[repr(C)]
pub struct AllocationNode {
    pub(crate) pool: PoolProperties,
    rest: [u64; 9],
    access: usize,
    access_count: usize,
    pub(crate) bytes: usize,
    pub(crate) address: DevicePointer,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`. The first version lacks the last two fields.
#[derive(Debug)]
#[repr(C)]
pub struct KernelNode {
    pub(crate) function: Opaque,
    shape: [u32; 7],
    arguments: Opaque,
    extra: Opaque,
    pub(crate) kernel: Opaque,
    pub(crate) context: Context,
}

/// `CUlaunchConfig`.
#[derive(Debug)]
#[repr(C)]
pub struct LaunchConfig {
    shape: [u32; 7],
    pub(crate) stream: Stream,
    attributes: Opaque,
    count: u32,
}

/// `CUDA_LAUNCH_PARAMS`.
#[derive(Debug)]
#[repr(C)]
pub struct LaunchParams {
    pub(crate) function: Opaque,
    shape: [u32; 7],
    pub(crate) stream: Stream,
    arguments: Opaque,
}

/// The start of `CUgraphNodeParams`, for nodes that launch kernels or contain graphs.
#[derive(Debug)]
#[repr(C)]
pub struct NodeParameters {
    pub(crate) kind: u32,
    reserved: [u32; 3],
    /// A kernel node is the largest that is read here.
    pub(crate) rest: [u64; 9],
}

/// All of `CUgraphNodeParams`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct WholeNodeParameters {
    pub(crate) start: NodeParameters,
    rest: [u64; 21],
}

impl WholeNodeParameters {
    pub(crate) fn empty() -> Self {
        let start = NodeParameters {
            kind: 0,
            reserved: [0; 3],
            rest: [0; 9],
        };
        let rest = [0; 21];
        Self { start, rest }
    }
}

impl NodeParameters {
    /// The graph of a child graph node.
    pub(crate) fn child(&self) -> Opaque {
        let [graph, ..] = self.rest;
        graph as Opaque
    }

    /// The bodies of a conditional node.
    pub(crate) fn bodies(&self) -> ConditionalBodies {
        let [_, kind_and_count, at, ..] = self.rest;
        let count = u32::try_from(kind_and_count >> 32).unwrap_or(0);
        ConditionalBodies { at, count }
    }
}

/// `CUarrayMapInfo`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ArrayMap {
    resource_kind: u32,
    pub(crate) array: u64,
    part_kind: u32,
    part: [u64; 4],
    pub(crate) operation: u32,
    handle_kind: u32,
    pub(crate) handle: Handle,
    offset: u64,
    devices: u32,
    flags: u32,
    reserved: [u32; 2],
}

impl ArrayMap {
    /// The region of the array: a box of elements of one level and layer, or bytes of the mip tail of a layer.
    pub(crate) fn place(&self) -> BindingRegion {
        let [first, second, third, fourth] = self.part;
        let (low, high) = (|word: u64| word & 0xffff_ffff, |word: u64| word >> 32);
        let number = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
        match self.part_kind {
            SPARSE_LEVEL => BindingRegion {
                plane: [self.part_kind, number(low(first)), number(high(first))],
                start: [low(second), high(second), low(third)],
                extent: [high(third), low(fourth), high(fourth)],
            },
            _ => BindingRegion {
                plane: [self.part_kind, 0, number(low(first))],
                start: [second, 0, 0],
                extent: [third, 0, 0],
            },
        }
    }
}

/// The start of `CUmemPoolProps`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct PoolProperties {
    kind: u32,
    handle_types: u32,
    pub(crate) location: MemoryLocation,
}

/// `CUDA_ARRAY_DESCRIPTOR` as the first version of the API had it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ArrayShapeV1 {
    width: u32,
    height: u32,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ArrayShape {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR` as the first version of the API had it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ArrayShape3dV1 {
    width: u32,
    height: u32,
    depth: u32,
    format: u32,
    channels: u32,
    flags: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ArrayShape3d {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ArrayRequirements {
    pub(crate) size: usize,
    alignment: usize,
    reserved: [u32; 4],
}

/// The extent of an array, from any of the descriptor structures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrayExtent {
    pub(crate) elements: u64,
    pub(crate) format: u32,
    pub(crate) channels: u32,
    /// `CUDA_ARRAY3D_SPARSE` or `CUDA_ARRAY3D_DEFERRED_MAPPING`: the array has no memory of its own.
    pub(crate) is_empty: bool,
}

const ARRAY_SPARSE: u32 = 0x40;
const ARRAY_DEFERRED: u32 = 0x80;

/// An array descriptor of any version.
pub(crate) trait DescribesArray: Copy {
    fn extent(self) -> ArrayExtent;
}

fn extent(sides: [u64; 3], format: u32, channels: u32, flags: u32) -> ArrayExtent {
    let elements = sides
        .into_iter()
        .fold(1_u64, |all, side| all.saturating_mul(side.max(1)));
    let is_empty = flags & (ARRAY_SPARSE | ARRAY_DEFERRED) != 0;
    ArrayExtent {
        elements,
        format,
        channels,
        is_empty,
    }
}

impl DescribesArray for ArrayShapeV1 {
    fn extent(self) -> ArrayExtent {
        let sides = [u64::from(self.width), u64::from(self.height), 1];
        extent(sides, self.format, self.channels, 0)
    }
}

impl DescribesArray for ArrayShape {
    fn extent(self) -> ArrayExtent {
        let sides = [self.width as u64, self.height as u64, 1];
        extent(sides, self.format, self.channels, 0)
    }
}

impl DescribesArray for ArrayShape3dV1 {
    fn extent(self) -> ArrayExtent {
        let sides = [self.width, self.height, self.depth].map(u64::from);
        extent(sides, self.format, self.channels, self.flags)
    }
}

impl DescribesArray for ArrayShape3d {
    fn extent(self) -> ArrayExtent {
        let sides = [self.width, self.height, self.depth].map(|side| side as u64);
        extent(sides, self.format, self.channels, self.flags)
    }
}

/// `nvmlMemory_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NvmlMemory {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlMemory_v2_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NvmlMemoryV2 {
    pub(crate) version: u32,
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlProcessDetailList_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProcessDetailList {
    version: u32,
    mode: u32,
    pub(crate) count: u32,
    pub(crate) entries: Opaque,
}

/// `nvmlProcessesUtilizationInfo_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProcessUtilization {
    version: u32,
    pub(crate) count: u32,
    since: u64,
    pub(crate) entries: Opaque,
}
