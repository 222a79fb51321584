//! Multicast objects. Memory of several devices is bound to an object, which keeps it until it is unbound or the object
//! ends. An object has a handle like physical memory. Here it cannot be mapped or exported.

use std::collections::HashMap;

use crate::driver::tables;
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::pointer::{In, Out};
use crate::retained_memory::{device_of, hold, let_go, mapped_at};

/// The bindings of each object by device and offset, with size and handle.
pub(crate) type Multicasts = HashMap<u64, HashMap<(i32, u64), (u64, u64)>>;

/// `CUmulticastObjectProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MulticastObjectProp {
    devices: u32,
    bytes: u64,
    handle_types: u64,
    flags: u64,
}

/// The granularity of bindings.
const GRANULE: usize = 2 << 20;

exports! {
    cuMulticastCreate(out: Out<u64>, properties: In<MulticastObjectProp>) = create => "cuMulticastCreate" @ 12010;
    cuMulticastAddDevice(object: u64, device: i32) = add_device => "cuMulticastAddDevice" @ 12010;
    cuMulticastBindMem(object: u64, offset: usize, handle: u64, at: usize, bytes: usize, flags: u64) = bind => "cuMulticastBindMem" @ 12010;
    cuMulticastBindMem_v2(object: u64, device: i32, offset: usize, handle: u64, at: usize, bytes: usize, flags: u64) = bind_on => "cuMulticastBindMem" @ 13010;
    cuMulticastBindAddr(object: u64, offset: usize, address: u64, bytes: usize, flags: u64) = bind_address => "cuMulticastBindAddr" @ 12010;
    cuMulticastBindAddr_v2(object: u64, device: i32, offset: usize, address: u64, bytes: usize, flags: u64) = bind_address_on => "cuMulticastBindAddr" @ 13010;
    cuMulticastUnbind(object: u64, device: i32, offset: usize, bytes: usize) = unbind => "cuMulticastUnbind" @ 12010;
    cuMulticastGetGranularity(out: Out<usize>, properties: In<MulticastObjectProp>, option: u32) = get_granularity => "cuMulticastGetGranularity" @ 12010;
}

fn create(out: Out<u64>, properties: In<MulticastObjectProp>) -> Outcome {
    out.check()?;
    let MulticastObjectProp { devices, bytes, .. } = properties.get()?;
    if devices == 0 || bytes == 0 || !bytes.is_multiple_of(GRANULE as u64) {
        return Err(INVALID_VALUE);
    }
    let mut tables = tables();
    let handle = tables.fresh();
    tables.multicasts.insert(handle, HashMap::new());
    out.put(handle)
}

/// Whether a handle is that of a multicast object.
pub(crate) fn is_one(handle: u64) -> bool {
    tables().multicasts.contains_key(&handle)
}

/// Ends an object and releases its bindings.
pub(crate) fn end(object: u64) -> Outcome {
    let gone = tables().multicasts.remove(&object).unwrap_or_default();
    gone.into_values()
        .try_for_each(|(_, handle)| let_go(handle))
}

fn check(object: u64) -> Result<(), CudaError> {
    is_one(object).then_some(()).ok_or(INVALID_VALUE)
}

fn add_device(object: u64, device: i32) -> Outcome {
    crate::driver::driver()?.card(device)?;
    check(object)
}

fn bind_on(
    object: u64,
    device: i32,
    offset: usize,
    handle: u64,
    at: usize,
    bytes: usize,
    flags: u64,
) -> Outcome {
    check(object)?;
    let is_whole = [offset, at, bytes]
        .iter()
        .all(|size| size.is_multiple_of(GRANULE));
    let key = (device, offset as u64);
    let is_free = tables()
        .multicasts
        .get(&object)
        .is_some_and(|bound| !bound.contains_key(&key));
    if flags != 0 || bytes == 0 || !is_whole || !is_free {
        return Err(INVALID_VALUE);
    }
    hold(handle)?;
    let mut tables = tables();
    let bound = tables.multicasts.get_mut(&object).ok_or(INVALID_VALUE)?;
    bound.insert(key, (bytes as u64, handle));
    Ok(())
}

fn bind(object: u64, offset: usize, handle: u64, at: usize, bytes: usize, flags: u64) -> Outcome {
    let device = device_of(handle)?;
    bind_on(object, device, offset, handle, at, bytes, flags)
}

fn bind_address(object: u64, offset: usize, address: u64, bytes: usize, flags: u64) -> Outcome {
    let (handle, device) = mapped_at(address)?;
    bind_on(object, device, offset, handle, 0, bytes, flags)
}

fn bind_address_on(
    object: u64,
    device: i32,
    offset: usize,
    address: u64,
    bytes: usize,
    flags: u64,
) -> Outcome {
    let (handle, _) = mapped_at(address)?;
    bind_on(object, device, offset, handle, 0, bytes, flags)
}

/// Size and offset must match a binding.
fn unbind(object: u64, device: i32, offset: usize, bytes: usize) -> Outcome {
    check(object)?;
    let key = (device, offset as u64);
    let gone = {
        let mut tables = tables();
        let bound = tables.multicasts.get_mut(&object).ok_or(INVALID_VALUE)?;
        let is_it = bound
            .get(&key)
            .is_some_and(|(size, _)| *size == bytes as u64);
        is_it.then(|| bound.remove(&key)).flatten()
    };
    let (_, handle) = gone.ok_or(INVALID_VALUE)?;
    let_go(handle)
}

fn get_granularity(out: Out<usize>, properties: In<MulticastObjectProp>, option: u32) -> Outcome {
    properties.get()?;
    match option {
        0 | 1 => out.put(GRANULE),
        _ => Err(INVALID_VALUE),
    }
}
