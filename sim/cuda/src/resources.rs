//! Device resources: all or some multiprocessors of a device, and the descriptors from which green contexts are made. A
//! split is counted, not simulated: kernels take the same time on any part.
//!
//! A resource stores its device and the split that it comes from in the bytes that the structure reserves for the
//! driver.

use std::collections::HashMap;

use crate::driver::{driver, tables};
use crate::error::{
    CudaError, INVALID_CONTEXT, INVALID_RESOURCE_CONFIGURATION, INVALID_RESOURCE_TYPE,
    INVALID_VALUE, Outcome,
};
use crate::export::exports;
use crate::pointer::{In, Out};

/// `CUdevResource`. The header of CUDA 12 has only the first number of a multiprocessor resource; the size is the same.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct DevResource {
    kind: u32,
    device: i32,
    /// The number of the split. Zero if the resource was not split.
    split: u64,
    padding: [u32; 20],
    multiprocessors: u32,
    smallest_part: u32,
    alignment: u32,
    flags: u32,
    rest: [u32; 8],
}

const _: () = assert!(size_of::<DevResource>() == 144);

/// What a green context is made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DevResourceDesc {
    pub(crate) device: i32,
    pub(crate) multiprocessors: u32,
}

/// The descriptors of a process. They live as long as the process.
pub(crate) type Descriptions = HashMap<u64, DevResourceDesc>;

/// `CU_DEV_SM_RESOURCE_GROUP_PARAMS`: the wanted properties of one part.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct SmResourceGroupParams {
    multiprocessors: u32,
    together: u32,
    rather_together: u32,
    flags: u32,
    rest: [u32; 12],
}

/// `CU_DEV_RESOURCE_TYPE_SM`, the only type here.
const MULTIPROCESSORS: u32 = 1;
/// `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`.
const IGNORE_COSCHEDULING: u32 = 1;
/// All flags: the above and `CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE`.
const ALL_FLAGS: u32 = 3;
/// `CU_DEV_SM_RESOURCE_GROUP_BACKFILL`; parts by locality are not simulated.
const BACKFILL: u32 = 1;
/// Multiprocessors come in pairs. The second constant is the most that can be scheduled together.
const PAIR: u32 = 2;
const MOST_TOGETHER: u32 = 32;

exports! {
    cuDeviceGetDevResource(device: i32, resource: Out<DevResource>, kind: u32) = of_device => "cuDeviceGetDevResource" @ 12040;
    cuCtxGetDevResource(context: u64, resource: Out<DevResource>, kind: u32) = of_context => "cuCtxGetDevResource" @ 12040;
    cuGreenCtxGetDevResource(green: u64, resource: Out<DevResource>, kind: u32) = of_green => "cuGreenCtxGetDevResource" @ 12040;
    cuStreamGetDevResource(stream: u64, resource: Out<DevResource>, kind: u32) = of_stream => "cuStreamGetDevResource" @ 13010 | cuStreamGetDevResource_ptsz @ 13010;
    cuDevSmResourceSplit(groups: Out<DevResource>, count: u32, input: In<DevResource>, remainder: Out<DevResource>, flags: u32, wishes: Out<SmResourceGroupParams>) = split_by_wishes => "cuDevSmResourceSplit" @ 13010;
    cuDevSmResourceSplitByCount(groups: Out<DevResource>, count: Out<u32>, input: In<DevResource>, remainder: Out<DevResource>, flags: u32, least: u32) = split => "cuDevSmResourceSplitByCount" @ 12040;
    cuDevResourceGenerateDesc(out: Out<u64>, resources: In<DevResource>, count: u32) = describe => "cuDevResourceGenerateDesc" @ 12040;
}

impl DevResource {
    /// `multiprocessors` multiprocessors of a device. The number may be zero.
    fn new(device: i32, split: u64, multiprocessors: u32) -> Result<Self, CudaError> {
        let (smallest_part, alignment) = parts(device, 0)?;
        let is_there = multiprocessors > 0;
        Ok(Self {
            kind: u32::from(is_there) * MULTIPROCESSORS,
            device,
            split,
            padding: [0; 20],
            multiprocessors,
            smallest_part,
            alignment,
            flags: 0,
            rest: [0; 8],
        })
    }

    fn checked(self) -> Result<Self, CudaError> {
        match self.kind {
            MULTIPROCESSORS => Ok(self),
            _ => Err(INVALID_RESOURCE_TYPE),
        }
    }
}

/// The minimum size of a part and the number that its size must be a multiple of, from the driver's guide to green
/// contexts, by compute capability.
fn parts(device: i32, flags: u32) -> Result<(u32, u32), CudaError> {
    let (major, _) = driver()?.facts(device)?.compute_capability;
    Ok(match (major, flags & IGNORE_COSCHEDULING) {
        (9.., 0) => (8, 8),
        (8, 0) => (4, 2),
        (7.., _) => (2, 2),
        (_, _) => (1, 1),
    })
}

fn whole(device: i32) -> Result<DevResource, CudaError> {
    DevResource::new(device, 0, driver()?.facts(device)?.multiprocessors)
}

fn give(out: Out<DevResource>, kind: u32, found: DevResource) -> Outcome {
    match kind {
        MULTIPROCESSORS => out.put(found),
        _ => Err(INVALID_RESOURCE_TYPE),
    }
}

fn of_device(device: i32, out: Out<DevResource>, kind: u32) -> Outcome {
    out.check()?;
    give(out, kind, whole(device)?)
}

/// The multiprocessors of a green context, or all of the device.
fn of_context(context: u64, out: Out<DevResource>, kind: u32) -> Outcome {
    out.check()?;
    let device = tables().context(context)?.device;
    match of_green(context, out, kind) {
        Err(INVALID_CONTEXT) => of_device(device, out, kind),
        found => found,
    }
}

fn of_green(green: u64, out: Out<DevResource>, kind: u32) -> Outcome {
    out.check()?;
    let found = tables().greens.get(&green).copied();
    let found = found.ok_or(INVALID_CONTEXT)?;
    give(
        out,
        kind,
        DevResource::new(found.device, 0, found.multiprocessors)?,
    )
}

/// Makes as many equal parts as asked for and as fit. Without an array for them, returns how many would fit. A part
/// cannot be split again until a green context has it.
fn split(
    groups: Out<DevResource>,
    count: Out<u32>,
    input: In<DevResource>,
    remainder: Out<DevResource>,
    flags: u32,
    least: u32,
) -> Outcome {
    count.check()?;
    let input = input.get()?.checked()?;
    if flags & !ALL_FLAGS != 0 || least > input.multiprocessors {
        return Err(INVALID_VALUE);
    }
    if input.split != 0 {
        return Err(INVALID_RESOURCE_CONFIGURATION);
    }
    let (smallest, alignment) = parts(input.device, flags)?;
    let each = least.max(smallest).next_multiple_of(alignment);
    let possible = input.multiprocessors / each;
    if groups.check().is_err() {
        return count.put(possible);
    }
    let made = possible.min(count.read()?);
    if made == 0 {
        return Err(INVALID_RESOURCE_CONFIGURATION);
    }
    let serial = tables().fresh();
    for at in 0..made {
        groups.put_at(at as usize, DevResource::new(input.device, serial, each)?)?;
    }
    let left = input.multiprocessors - made * each;
    remainder.offer(DevResource::new(input.device, serial, left)?);
    count.put(made)
}

fn of_stream(handle: u64, out: Out<DevResource>, kind: u32) -> Outcome {
    out.check()?;
    of_context(crate::stream::known(handle)?.context(), out, kind)
}

impl SmResourceGroupParams {
    /// The size of the part, if `left` multiprocessors are left. A wish of zero takes all.
    fn granted(&self, device: i32, left: u32) -> Result<u32, CudaError> {
        let together = match self.together {
            0 => parts(device, 0)?.1.max(PAIR),
            together => together,
        };
        let wanted = self.multiprocessors;
        let is_even = wanted.is_multiple_of(PAIR) && together.is_multiple_of(PAIR);
        let fits = self.flags == BACKFILL || wanted.is_multiple_of(together);
        if !is_even || !fits || together > MOST_TOGETHER || self.flags & !BACKFILL != 0 {
            return Err(INVALID_VALUE);
        }
        match wanted {
            0 => Ok(left - left % together),
            wanted if wanted <= left => Ok(wanted),
            _ => Err(INVALID_RESOURCE_CONFIGURATION),
        }
    }
}

/// Makes parts by a list of wishes, in order, and writes each part's size into its wish. Without an array for the
/// parts, only the sizes are written.
fn split_by_wishes(
    groups: Out<DevResource>,
    count: u32,
    input: In<DevResource>,
    remainder: Out<DevResource>,
    flags: u32,
    wishes: Out<SmResourceGroupParams>,
) -> Outcome {
    wishes.check()?;
    let input = input.get()?.checked()?;
    if flags != 0 || count == 0 {
        return Err(INVALID_VALUE);
    }
    if input.split != 0 {
        return Err(INVALID_RESOURCE_CONFIGURATION);
    }
    let asked = In::<SmResourceGroupParams>::from_address(wishes.address());
    let mut left = input.multiprocessors;
    let mut granted = Vec::new();
    for at in 0..count as usize {
        let wish = asked.at(at)?;
        let part = wish.granted(input.device, left)?;
        if groups.check().is_ok() && part == 0 {
            return Err(INVALID_RESOURCE_CONFIGURATION);
        }
        left -= part;
        granted.push((wish, part));
    }
    let serial = tables().fresh();
    for (at, (wish, multiprocessors)) in granted.into_iter().enumerate() {
        if groups.check().is_ok() {
            let part = DevResource::new(input.device, serial, multiprocessors)?;
            groups.put_at(at, part)?;
        }
        let found = SmResourceGroupParams {
            multiprocessors,
            ..wish
        };
        wishes.put_at(at, found)?;
    }
    remainder.offer(DevResource::new(input.device, serial, left)?);
    Ok(())
}

/// Makes one descriptor of several resources. All must come from the same split.
fn describe(out: Out<u64>, resources: In<DevResource>, count: u32) -> Outcome {
    out.check()?;
    if count == 0 {
        return Err(INVALID_VALUE);
    }
    let first = resources.get()?.checked()?;
    let mut multiprocessors = 0;
    for at in 0..count {
        let one = resources.at(at as usize)?.checked()?;
        let is_alike = one.device == first.device && one.split == first.split;
        if !is_alike || (count > 1 && one.split == 0) {
            return Err(INVALID_RESOURCE_CONFIGURATION);
        }
        multiprocessors += one.multiprocessors;
    }
    let device = first.device;
    let mut tables = tables();
    let handle = tables.fresh();
    let description = DevResourceDesc {
        device,
        multiprocessors,
    };
    tables.descriptions.insert(handle, description);
    out.put(handle)
}
