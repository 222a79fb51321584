//! Functions and their launches. A kernel computes nothing, and its name says what it costs. `spin_50us` keeps a core
//! busy for 50 microseconds, `busy_2ms` waits for two milliseconds, and any other name takes no time. Each thread of
//! `local_4096b` has 4096 bytes of local memory. From the first launch on, the context holds this for all threads that
//! the card can run at once. A launch of `hidden_8mib` makes its context hold 8 MiB that no call announces. It stands
//! for memory that nobody can charge beforehand and that the agent finds within a second (queues, page tables, code
//! that is loaded when it first runs).

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::thread;
use std::time::{Duration, Instant};

use crate::capture::captured;
use crate::context::current;
use crate::driver::tables;
use crate::error::{CudaError, INVALID_HANDLE, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::graphs::{self, GraphNode};
use crate::kernel_footprint::KernelFootprint;
use crate::kernel_nodes::KernelLaunch;
use crate::modules;
use crate::pointer::{In, Out};
use crate::stream::stream;

/// The functions of a process by handle.
pub(crate) type Functions = HashMap<u64, LoadedFunction>;

/// A function that the program has asked for.
#[derive(Debug)]
pub(crate) struct LoadedFunction {
    name: &'static CStr,
    module: u64,
    cost: LaunchTime,
    needs: KernelFootprint,
    attributes: HashMap<u32, i32>,
}

/// How a launch spends its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LaunchTime {
    Nothing,
    Spin(Duration),
    Wait(Duration),
}

/// The shape of a launch, common to all parameter structures: the grid, the block, and the bytes of shared memory.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct LaunchShape {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
}

/// `CUlaunchConfig`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LaunchConfig {
    shape: LaunchShape,
    stream: u64,
    attributes: u64,
    count: u32,
}

/// `CUDA_LAUNCH_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MultiDeviceLaunch {
    function: u64,
    shape: LaunchShape,
    stream: u64,
    parameters: u64,
}

/// The most threads of a block.
const BLOCK_THREADS: u32 = 1024;

exports! {
    cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: u64) = get_attribute => "cuFuncGetAttribute" @ 2020;
    cuFuncSetAttribute(function: u64, attribute: u32, value: i32) = set_attribute => "cuFuncSetAttribute" @ 9000;
    cuFuncSetCacheConfig(function: u64, config: u32) = set_config => "cuFuncSetCacheConfig" @ 3000;
    cuFuncSetSharedMemConfig(function: u64, config: u32) = set_config => "cuFuncSetSharedMemConfig" @ 4020;
    cuFuncGetModule(module: Out<u64>, function: u64) = get_module => "cuFuncGetModule" @ 11000;
    cuFuncGetName(name: Out<*const c_char>, function: u64) = get_name => "cuFuncGetName" @ 12030;
    cuFuncGetParamInfo(function: u64, index: usize, offset: Out<usize>, bytes: Out<usize>) = get_parameter => "cuFuncGetParamInfo" @ 12040;
    cuFuncGetParamCount(function: u64, count: Out<usize>) = get_parameter_count => "cuFuncGetParamCount" @ 13020;
    cuFuncIsLoaded(state: Out<u32>, function: u64) = is_loaded => "cuFuncIsLoaded" @ 12040;
    cuFuncLoad(function: u64) = load => "cuFuncLoad" @ 12040;
    cuKernelGetName(name: Out<*const c_char>, kernel: u64) = get_name => "cuKernelGetName" @ 12030;
    cuKernelGetAttribute(value: Out<i32>, attribute: u32, kernel: u64, device: i32) = get_kernel_attribute => "cuKernelGetAttribute" @ 12000;
    cuKernelSetAttribute(attribute: u32, value: i32, kernel: u64, device: i32) = set_kernel_attribute => "cuKernelSetAttribute" @ 12000;
    cuKernelSetCacheConfig(kernel: u64, config: u32, device: i32) = set_kernel_config => "cuKernelSetCacheConfig" @ 12000;
    cuKernelGetParamInfo(kernel: u64, index: usize, offset: Out<usize>, bytes: Out<usize>) = get_parameter => "cuKernelGetParamInfo" @ 12040;
    cuKernelGetParamCount(kernel: u64, count: Out<usize>) = get_parameter_count => "cuKernelGetParamCount" @ 13020;
    cuLaunchKernel(function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32, stream: u64, parameters: In<u64>, extra: In<u64>) = launch => "cuLaunchKernel" @ 4000 | cuLaunchKernel_ptsz @ 7000;
    cuLaunchKernelEx(config: In<LaunchConfig>, function: u64, parameters: In<u64>, extra: In<u64>) = launch_with_config => "cuLaunchKernelEx" @ 11060 | cuLaunchKernelEx_ptsz @ 11060;
    cuLaunchCooperativeKernelMultiDevice(launches: In<MultiDeviceLaunch>, count: u32, flags: u32) = launch_on_many => "cuLaunchCooperativeKernelMultiDevice" @ 9000;
    cuLaunchCooperativeKernel(function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32, stream: u64, parameters: In<u64>) = launch_cooperative => "cuLaunchCooperativeKernel" @ 9000 | cuLaunchCooperativeKernel_ptsz @ 9000;
}

impl LaunchShape {
    /// A grid of blocks that share `shared_bytes` each.
    pub(crate) fn new(grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> Self {
        Self {
            grid,
            block,
            shared_bytes,
        }
    }

    /// Fails if a card cannot launch this.
    pub(crate) fn checked(self) -> Result<Self, CudaError> {
        let mut sides = self.block.iter();
        let threads = sides.try_fold(1_u32, |all, side| all.checked_mul(*side));
        let fits = threads.is_some_and(|threads| (1..=BLOCK_THREADS).contains(&threads));
        if fits && !self.grid.contains(&0) {
            Ok(self)
        } else {
            Err(INVALID_VALUE)
        }
    }
}

impl LoadedFunction {
    /// The handle of the function's module.
    pub(crate) fn module(&self) -> u64 {
        self.module
    }
}

impl LaunchTime {
    fn of(name: &str) -> Self {
        let time = |prefix| duration(name.split_once(prefix)?.1);
        if let Some(time) = time("spin_") {
            Self::Spin(time)
        } else if let Some(time) = time("busy_") {
            Self::Wait(time)
        } else {
            Self::Nothing
        }
    }

    fn pay(self) {
        match self {
            Self::Nothing => {}
            Self::Wait(time) => thread::sleep(time),
            Self::Spin(time) => {
                let start = Instant::now();
                while start.elapsed() < time {
                    std::hint::spin_loop();
                }
            }
        }
    }
}

/// Reads `50us`, `2ms` or `1s` at the start of a text.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number = number.parse().ok()?;
    match unit {
        _ if unit.starts_with("us") => Some(Duration::from_micros(number)),
        _ if unit.starts_with("ms") => Some(Duration::from_millis(number)),
        _ if unit.starts_with('s') => Some(Duration::from_secs(number)),
        _ => None,
    }
}

/// The handle of a module's function, the same for the same name.
pub(crate) fn function(module: u64, name: &str) -> Result<u64, CudaError> {
    let mut tables = tables();
    if let Some((handle, _)) = tables
        .functions
        .iter()
        .find(|(_, known)| known.module == module && known.name.to_bytes() == name.as_bytes())
    {
        return Ok(*handle);
    }
    let cost = LaunchTime::of(name);
    let needs = KernelFootprint::of(name);
    let name = CString::new(name).map_err(|_| INVALID_VALUE)?;
    // Programs may keep the pointer to a name for as long as they like.
    let name: &'static CStr = Box::leak(name.into_boxed_c_str());
    let handle = tables.fresh();
    tables.functions.insert(
        handle,
        LoadedFunction {
            name,
            module,
            cost,
            needs,
            attributes: HashMap::new(),
        },
    );
    Ok(handle)
}

/// The name of a function that exists.
pub(crate) fn name(handle: u64) -> Result<&'static CStr, CudaError> {
    Ok(tables().functions.get(&handle).ok_or(INVALID_HANDLE)?.name)
}

/// `CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`.
const LOCAL_BYTES: u32 = 3;

/// The initial value of `CU_FUNC_ATTRIBUTE_*`.
fn first_value(attribute: u32) -> Result<i32, CudaError> {
    match attribute {
        0 => Ok(1024),
        1..=3 | 7 | 8 | 10..=17 => Ok(0),
        4 => Ok(32),
        5 | 6 => Ok(90),
        9 => Ok(-1),
        _ => Err(INVALID_VALUE),
    }
}

fn get_attribute(value: Out<i32>, attribute: u32, handle: u64) -> Outcome {
    let first = first_value(attribute)?;
    let tables = tables();
    let function = tables.functions.get(&handle).ok_or(INVALID_HANDLE)?;
    if attribute == LOCAL_BYTES {
        return value.put(function.needs.local_bytes());
    }
    value.put(
        function
            .attributes
            .get(&attribute)
            .copied()
            .unwrap_or(first),
    )
}

/// Attributes that the code itself determines cannot be set.
fn set_attribute(handle: u64, attribute: u32, value: i32) -> Outcome {
    first_value(attribute)?;
    let mut tables = tables();
    let function = tables.functions.get_mut(&handle).ok_or(INVALID_HANDLE)?;
    if attribute < 8 {
        return Err(INVALID_VALUE);
    }
    function.attributes.insert(attribute, value);
    Ok(())
}

fn set_config(handle: u64, _config: u32) -> Outcome {
    name(handle).map(drop)
}

/// The handle of a function's module.
fn module_of(handle: u64) -> Result<u64, CudaError> {
    let tables = tables();
    let function = tables.functions.get(&handle).ok_or(INVALID_HANDLE)?;
    Ok(function.module)
}

fn get_module(module: Out<u64>, handle: u64) -> Outcome {
    module.put(module_of(handle)?)
}

fn get_name(out: Out<*const c_char>, handle: u64) -> Outcome {
    out.put(name(handle)?.as_ptr())
}

/// No parameters of a function are known.
fn get_parameter(handle: u64, _index: usize, _: Out<usize>, _: Out<usize>) -> Outcome {
    name(handle)?;
    Err(INVALID_VALUE)
}

fn get_parameter_count(handle: u64, count: Out<usize>) -> Outcome {
    name(handle)?;
    count.put(0)
}

fn is_loaded(state: Out<u32>, handle: u64) -> Outcome {
    state.put(u32::from(modules::is_loaded(module_of(handle)?)?))
}

fn load(handle: u64) -> Outcome {
    modules::load_code(module_of(handle)?)
}

fn get_kernel_attribute(value: Out<i32>, attribute: u32, kernel: u64, device: i32) -> Outcome {
    crate::driver::driver()?.card(device)?;
    get_attribute(value, attribute, kernel)
}

fn set_kernel_attribute(attribute: u32, value: i32, kernel: u64, device: i32) -> Outcome {
    crate::driver::driver()?.card(device)?;
    set_attribute(kernel, attribute, value)
}

fn set_kernel_config(kernel: u64, config: u32, _device: i32) -> Outcome {
    set_config(kernel, config)
}

/// Runs a function. Its code is loaded first if that has not happened yet.
pub(crate) fn start(handle: u64) -> Outcome {
    let (cost, needs) = {
        let tables = tables();
        let function = tables.functions.get(&handle).ok_or(INVALID_HANDLE)?;
        (function.cost, function.needs)
    };
    load(handle)?;
    needs.hold()?;
    cost.pay();
    Ok(())
}

/// Launches a function. In a captured stream, the launch becomes a graph node.
pub(crate) fn run(handle: u64, shape: LaunchShape, on: u64) -> Outcome {
    current()?;
    let kernel = KernelLaunch::new(handle, shape)?;
    stream(on)?;
    match captured(on)? {
        Some(to) => graphs::add(to, GraphNode::Kernel(kernel)).map(drop),
        None => kernel.start(),
    }
}

#[expect(clippy::too_many_arguments, reason = "the driver's own signature")]
fn launch(
    function: u64,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    on: u64,
    _parameters: In<u64>,
    _extra: In<u64>,
) -> Outcome {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    run(function, LaunchShape::new(grid, block, shared_bytes), on)
}

#[expect(clippy::too_many_arguments, reason = "the driver's own signature")]
fn launch_cooperative(
    function: u64,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    on: u64,
    _parameters: In<u64>,
) -> Outcome {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    run(function, LaunchShape::new(grid, block, shared_bytes), on)
}

/// Launches once on each of several devices. The streams determine the devices.
fn launch_on_many(launches: In<MultiDeviceLaunch>, count: u32, flags: u32) -> Outcome {
    if count == 0 || flags > 3 {
        return Err(INVALID_VALUE);
    }
    for at in 0..count as usize {
        let one = launches.at(at)?;
        run(one.function, one.shape, one.stream)?;
    }
    Ok(())
}

fn launch_with_config(
    config: In<LaunchConfig>,
    function: u64,
    _parameters: In<u64>,
    _extra: In<u64>,
) -> Outcome {
    let config = config.get()?;
    run(function, config.shape, config.stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_costs_what_its_name_says() {
        assert_eq!(
            LaunchTime::of("spin_50us"),
            LaunchTime::Spin(Duration::from_micros(50))
        );
        assert_eq!(
            LaunchTime::of("_Z8busy_2msPf"),
            LaunchTime::Wait(Duration::from_millis(2))
        );
        assert_eq!(LaunchTime::of("saxpy"), LaunchTime::Nothing);
        assert_eq!(LaunchTime::of("spin_fast"), LaunchTime::Nothing);
    }
}
