//! Launches. `<<<grid, block>>>` pushes its configuration, and the kernel's host function pops it.

use std::cell::RefCell;
use std::ffi::c_void;

use crate::code;
use crate::default_stream::{PerThreadDefault, RuntimeStream};
use crate::driver::driver_functions;
use crate::entry::entry_points;
use crate::error::{INVALID_CONFIGURATION, INVALID_VALUE, Outcome};

/// `dim3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Dim3 {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) z: u32,
}

impl PerThreadDefault for Dim3 {
    fn on_thread(self) -> Self {
        self
    }
}

/// `cudaLaunchConfig_t`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RuntimeLaunchConfig {
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: RuntimeStream,
    attributes: *mut c_void,
    count: u32,
}

/// `CUlaunchConfig`. Its attributes are those of the runtime.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct DriverLaunchConfig {
    grid: Dim3,
    block: Dim3,
    shared_bytes: u32,
    stream: RuntimeStream,
    attributes: *mut c_void,
    count: u32,
}

/// The configurations that were pushed and not popped.
#[derive(Debug)]
struct CallConfiguration {
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: RuntimeStream,
}

thread_local! {
    static PUSHED: RefCell<Vec<CallConfiguration>> = const { RefCell::new(Vec::new()) };
}

driver_functions! {
    cuLaunchKernel(function: *mut c_void, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32, stream: RuntimeStream, arguments: *mut *mut c_void, extra: *mut *mut c_void) => c"cuLaunchKernel" @ 4000;
    cuLaunchKernelEx(configuration: *const DriverLaunchConfig, function: *mut c_void, arguments: *mut *mut c_void, extra: *mut *mut c_void) => c"cuLaunchKernelEx" @ 11060;
    cuLaunchCooperativeKernel(function: *mut c_void, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32, stream: RuntimeStream, arguments: *mut *mut c_void) => c"cuLaunchCooperativeKernel" @ 9000;
}

entry_points! {
    context cudaLaunchKernel | cudaLaunchKernel_ptsz (function: *const c_void, grid: Dim3, block: Dim3, arguments: *mut *mut c_void, shared_bytes: usize, stream: RuntimeStream) = launch;
    context __cudaLaunchKernel | __cudaLaunchKernel_ptsz (kernel: *const c_void, grid: Dim3, block: Dim3, arguments: *mut *mut c_void, shared_bytes: usize, stream: RuntimeStream) = launch;
    context cudaLaunchCooperativeKernel | cudaLaunchCooperativeKernel_ptsz (function: *const c_void, grid: Dim3, block: Dim3, arguments: *mut *mut c_void, shared_bytes: usize, stream: RuntimeStream) = launch_cooperative;
    context cudaLaunchKernelExC(configuration: *const RuntimeLaunchConfig, function: *const c_void, arguments: *mut *mut c_void) = launch_configured;
    context cudaLaunchKernelExC_ptsz(configuration: *const RuntimeLaunchConfig, function: *const c_void, arguments: *mut *mut c_void) = launch_configured_on_thread;
    nothing __cudaPopCallConfiguration(grid: *mut Dim3, block: *mut Dim3, shared_bytes: *mut usize, stream: *mut RuntimeStream) = pop;
}

/// Returns no error code: zero means that the kernel's host function may be called.
#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration(
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: RuntimeStream,
) -> u32 {
    let pushed = CallConfiguration {
        grid,
        block,
        shared_bytes,
        stream,
    };
    let done = PUSHED.try_with(|all| all.borrow_mut().push(pushed));
    u32::from(done.is_err())
}

fn pop(
    grid: *mut Dim3,
    block: *mut Dim3,
    shared_bytes: *mut usize,
    stream: *mut RuntimeStream,
) -> Outcome {
    let popped = PUSHED.try_with(|all| all.borrow_mut().pop());
    let popped = popped.ok().flatten().ok_or(INVALID_CONFIGURATION)?;
    // SAFETY: nvcc's code gives a valid pointer for each part.
    unsafe { grid.write(popped.grid) };
    // SAFETY: as above.
    unsafe { block.write(popped.block) };
    // SAFETY: as above.
    unsafe { shared_bytes.write(popped.shared_bytes) };
    // SAFETY: as above.
    unsafe { stream.write(popped.stream) };
    Ok(())
}

/// The driver has 32 bits for shared memory. No card has more.
fn shared(bytes: usize) -> Result<u32, crate::error::CudartError> {
    u32::try_from(bytes).map_err(|_| INVALID_VALUE)
}

fn launch(
    function: *const c_void,
    grid: Dim3,
    block: Dim3,
    arguments: *mut *mut c_void,
    shared_bytes: usize,
    stream: RuntimeStream,
) -> Outcome {
    let kernel = code::kernel(function)?;
    let shared_bytes = shared(shared_bytes)?;
    cuLaunchKernel(
        kernel,
        grid.x,
        grid.y,
        grid.z,
        block.x,
        block.y,
        block.z,
        shared_bytes,
        stream,
        arguments,
        std::ptr::null_mut(),
    )
}

fn launch_cooperative(
    function: *const c_void,
    grid: Dim3,
    block: Dim3,
    arguments: *mut *mut c_void,
    shared_bytes: usize,
    stream: RuntimeStream,
) -> Outcome {
    let kernel = code::kernel(function)?;
    let shared_bytes = shared(shared_bytes)?;
    cuLaunchCooperativeKernel(
        kernel,
        grid.x,
        grid.y,
        grid.z,
        block.x,
        block.y,
        block.z,
        shared_bytes,
        stream,
        arguments,
    )
}

/// Converts a configuration to the driver's structure.
pub(crate) fn configuration(
    given: *const RuntimeLaunchConfig,
) -> Result<DriverLaunchConfig, crate::error::CudartError> {
    // SAFETY: a pointer that is not null points to a whole structure.
    let given = unsafe { given.as_ref() }.ok_or(INVALID_VALUE)?;
    Ok(DriverLaunchConfig {
        grid: given.grid,
        block: given.block,
        shared_bytes: shared(given.shared_bytes)?,
        stream: given.stream,
        attributes: given.attributes,
        count: given.count,
    })
}

fn launch_configured(
    given: *const RuntimeLaunchConfig,
    function: *const c_void,
    arguments: *mut *mut c_void,
) -> Outcome {
    let configuration = configuration(given)?;
    let kernel = code::kernel(function)?;
    cuLaunchKernelEx(
        &raw const configuration,
        kernel,
        arguments,
        std::ptr::null_mut(),
    )
}

fn launch_configured_on_thread(
    given: *const RuntimeLaunchConfig,
    function: *const c_void,
    arguments: *mut *mut c_void,
) -> Outcome {
    let mut configuration = configuration(given)?;
    configuration.stream = configuration.stream.on_thread();
    let kernel = code::kernel(function)?;
    cuLaunchKernelEx(
        &raw const configuration,
        kernel,
        arguments,
        std::ptr::null_mut(),
    )
}
