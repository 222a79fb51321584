//! Contexts, and each thread's stack of them.

use std::cell::RefCell;

use apportion_sim_machine::{ContextLimit, MachineRequest};

use crate::driver::{ask, create, driver, tables};
use crate::error::{
    CudaError, INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED, Outcome, PEER_ACCESS_ALREADY_ENABLED,
    PEER_ACCESS_NOT_ENABLED,
};
use crate::export::exports;
use crate::pointer::{In, Out};
use crate::tables::Context;

/// The API version that contexts of `cuCtxCreate_v2` and later report.
const API_VERSION: u32 = 3020;
/// All valid bits of a context's flags.
const FLAGS: u32 = 0x1ff;
/// The valid values of the flags under `CU_CTX_SCHED_MASK`: at most one scheduling policy.
const SCHEDULES: [u32; 4] = [0, 1, 2, 4];

thread_local! {
    /// The contexts that this thread has pushed; the last one is current.
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

exports! {
    cuCtxCreate(out: Out<u64>, flags: u32, device: i32) = create_v1 => "cuCtxCreate" @ 2000;
    cuCtxCreate_v2(out: Out<u64>, flags: u32, device: i32) = create_v2 => "cuCtxCreate" @ 3020;
    cuCtxCreate_v3(out: Out<u64>, affinity: In<u64>, count: i32, flags: u32, device: i32) = create_v3 => "cuCtxCreate" @ 11040;
    cuCtxCreate_v4(out: Out<u64>, parameters: In<u64>, flags: u32, device: i32) = create_v4 => "cuCtxCreate" @ 12050;
    cuCtxDestroy(context: u64) = destroy => "cuCtxDestroy" @ 2000;
    cuCtxDestroy_v2(context: u64) = destroy => "cuCtxDestroy" @ 4000;
    cuCtxAttach(out: Out<u64>, flags: u32) = attach => "cuCtxAttach" @ 2000;
    cuCtxDetach(context: u64) = destroy => "cuCtxDetach" @ 2000;
    cuCtxPushCurrent(context: u64) = push => "cuCtxPushCurrent" @ 2000;
    cuCtxPushCurrent_v2(context: u64) = push => "cuCtxPushCurrent" @ 4000;
    cuCtxPopCurrent(out: Out<u64>) = pop => "cuCtxPopCurrent" @ 2000;
    cuCtxPopCurrent_v2(out: Out<u64>) = pop => "cuCtxPopCurrent" @ 4000;
    cuCtxSetCurrent(context: u64) = set_current => "cuCtxSetCurrent" @ 4000;
    cuCtxGetCurrent(out: Out<u64>) = get_current => "cuCtxGetCurrent" @ 4000;
    cuCtxGetDevice(device: Out<i32>) = get_device => "cuCtxGetDevice" @ 2000;
    cuCtxGetDevice_v2(device: Out<i32>, context: u64) = get_device_of => "cuCtxGetDevice" @ 13000;
    cuCtxGetFlags(flags: Out<u32>) = get_flags => "cuCtxGetFlags" @ 7000;
    cuCtxSetFlags(flags: u32) = set_flags => "cuCtxSetFlags" @ 12010;
    cuCtxGetId(context: u64, id: Out<u64>) = get_id => "cuCtxGetId" @ 12000;
    cuCtxGetApiVersion(context: u64, version: Out<u32>) = get_api_version => "cuCtxGetApiVersion" @ 3020;
    cuCtxSynchronize() = synchronize => "cuCtxSynchronize" @ 2000;
    cuCtxSynchronize_v2(context: u64) = synchronize_of => "cuCtxSynchronize" @ 13000;
    cuCtxSetLimit(limit: u32, value: usize) = set_limit => "cuCtxSetLimit" @ 3010;
    cuCtxGetLimit(value: Out<usize>, limit: u32) = get_limit => "cuCtxGetLimit" @ 3010;
    cuCtxGetCacheConfig(config: Out<u32>) = get_cache_config => "cuCtxGetCacheConfig" @ 3020;
    cuCtxSetCacheConfig(config: u32) = set_cache_config => "cuCtxSetCacheConfig" @ 3020;
    cuCtxGetSharedMemConfig(config: Out<u32>) = get_shared_config => "cuCtxGetSharedMemConfig" @ 4020;
    cuCtxSetSharedMemConfig(config: u32) = set_shared_config => "cuCtxSetSharedMemConfig" @ 4020;
    cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) = get_priorities => "cuCtxGetStreamPriorityRange" @ 5050;
    cuCtxResetPersistingL2Cache() = reset_cache => "cuCtxResetPersistingL2Cache" @ 11000;
    cuCtxGetExecAffinity(affinity: Out<u64>, kind: u32) = get_affinity => "cuCtxGetExecAffinity" @ 11040;
    cuCtxEnablePeerAccess(peer: u64, flags: u32) = enable_peer => "cuCtxEnablePeerAccess" @ 4000;
    cuCtxDisablePeerAccess(peer: u64) = disable_peer => "cuCtxDisablePeerAccess" @ 4000;
}

/// The current context of this thread. Fails if it does not exist.
pub(crate) fn current() -> Result<(u64, Context), CudaError> {
    let handle = top().ok_or(INVALID_CONTEXT)?;
    Ok((handle, *tables().context(handle)?))
}

/// A context by its handle, or the current one for zero.
fn named(handle: u64) -> Result<(u64, Context), CudaError> {
    if handle == 0 {
        current()
    } else {
        Ok((handle, *tables().context(handle)?))
    }
}

/// The top of the stack. A thread that is ending has no stack any more, and so no context.
fn top() -> Option<u64> {
    STACK
        .try_with(|stack| stack.borrow().last().copied())
        .ok()
        .flatten()
}

fn with_stack<T>(change: impl FnOnce(&mut Vec<u64>) -> T) -> Outcome {
    let changed = STACK.try_with(|stack| change(&mut stack.borrow_mut()));
    changed.map(|_| ()).map_err(|_| INVALID_CONTEXT)
}

pub(crate) fn check_flags(flags: u32) -> Outcome {
    let is_known = flags & !FLAGS == 0 && SCHEDULES.contains(&(flags & 7));
    if is_known { Ok(()) } else { Err(INVALID_VALUE) }
}

fn create_v1(out: Out<u64>, flags: u32, device: i32) -> Outcome {
    create_as(out, flags, device, 3010)
}

fn create_v2(out: Out<u64>, flags: u32, device: i32) -> Outcome {
    create_as(out, flags, device, API_VERSION)
}

fn create_v3(out: Out<u64>, affinity: In<u64>, count: i32, flags: u32, device: i32) -> Outcome {
    if count < 0 || (affinity.is_null() && count > 0) {
        return Err(INVALID_VALUE);
    }
    create_as(out, flags, device, API_VERSION)
}

fn create_v4(out: Out<u64>, _parameters: In<u64>, flags: u32, device: i32) -> Outcome {
    create_as(out, flags, device, API_VERSION)
}

fn create_as(out: Out<u64>, flags: u32, device: i32, api_version: u32) -> Outcome {
    out.check()?;
    check_flags(flags)?;
    let card = driver()?.card(device)?;
    let name = create(MachineRequest::ContextCreate(card))?;
    let mut tables = tables();
    let handle = tables.fresh();
    tables
        .contexts
        .insert(handle, Context::new(name, device, flags, api_version));
    drop(tables);
    with_stack(|stack| stack.push(handle))?;
    out.put(handle)
}

fn destroy(handle: u64) -> Outcome {
    let name = tables().context(handle)?.name;
    ask(MachineRequest::ContextDestroy(name))?;
    tables().end_context(handle);
    crate::tiles::end_in(handle)?;
    if top() == Some(handle) {
        with_stack(Vec::pop)?;
    }
    Ok(())
}

/// Attach counts have had no use since contexts are per process.
fn attach(out: Out<u64>, flags: u32) -> Outcome {
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    out.put(current()?.0)
}

fn push(handle: u64) -> Outcome {
    tables().context(handle)?;
    with_stack(|stack| stack.push(handle))
}

fn pop(out: Out<u64>) -> Outcome {
    let handle = top().ok_or(INVALID_CONTEXT)?;
    with_stack(Vec::pop)?;
    out.offer(handle);
    Ok(())
}

/// Replaces the top of the stack; zero removes it. A primary context may be made current before it is retained and
/// after it ended: the handle works again when the context is retained again.
fn set_current(handle: u64) -> Outcome {
    let tables = tables();
    if handle != 0
        && !tables
            .primaries
            .values()
            .any(|primary| primary.handle == handle)
    {
        tables.context(handle)?;
    }
    drop(tables);
    with_stack(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    })
}

fn get_current(out: Out<u64>) -> Outcome {
    out.put(top().unwrap_or(0))
}

fn get_device(device: Out<i32>) -> Outcome {
    device.put(current()?.1.device)
}

fn get_device_of(device: Out<i32>, context: u64) -> Outcome {
    device.put(named(context)?.1.device)
}

fn get_flags(flags: Out<u32>) -> Outcome {
    flags.put(current()?.1.flags)
}

fn set_flags(flags: u32) -> Outcome {
    check_flags(flags)?;
    let (handle, _) = current()?;
    tables().context_mut(handle)?.flags = flags;
    Ok(())
}

fn get_id(context: u64, id: Out<u64>) -> Outcome {
    id.put(named(context)?.1.name)
}

fn get_api_version(context: u64, version: Out<u32>) -> Outcome {
    version.put(named(context)?.1.api_version)
}

/// All work is done already. What remains is to trim pools, as any synchronization does.
pub(crate) fn synchronize() -> Outcome {
    current()?;
    crate::driver::synchronize()
}

fn synchronize_of(context: u64) -> Outcome {
    named(context)?;
    crate::driver::synchronize()
}

/// `CUlimit`: its number, its initial value, and the machine's limit if it costs memory.
static LIMITS: &[(u32, usize, Option<ContextLimit>)] = &[
    (0, 1024, Some(ContextLimit::Stack)),
    (1, 1 << 20, Some(ContextLimit::PrintfFifo)),
    (2, 8 << 20, Some(ContextLimit::MallocHeap)),
    (3, 2, None),
    (4, 2048, None),
    (5, 64, None),
    (6, 0, None),
];

fn limit_row(limit: u32) -> Result<(usize, Option<ContextLimit>), CudaError> {
    let row = LIMITS
        .iter()
        .find(|row| row.0 == limit)
        .ok_or(INVALID_VALUE)?;
    Ok((row.1, row.2))
}

fn set_limit(limit: u32, value: usize) -> Outcome {
    let (handle, context) = current()?;
    if let Some(limit) = limit_row(limit)?.1 {
        let bytes = value as u64;
        ask(MachineRequest::ContextLimit {
            context: context.name,
            limit,
            bytes,
        })?;
    }
    tables().limits.insert((handle, limit), value);
    Ok(())
}

fn get_limit(value: Out<usize>, limit: u32) -> Outcome {
    let first = limit_row(limit)?.0;
    let (handle, _) = current()?;
    value.put(
        tables()
            .limits
            .get(&(handle, limit))
            .copied()
            .unwrap_or(first),
    )
}

fn get_cache_config(config: Out<u32>) -> Outcome {
    config.put(current()?.1.cache_config)
}

fn set_cache_config(config: u32) -> Outcome {
    if config > 3 {
        return Err(INVALID_VALUE);
    }
    let (handle, _) = current()?;
    tables().context_mut(handle)?.cache_config = config;
    Ok(())
}

fn get_shared_config(config: Out<u32>) -> Outcome {
    current()?;
    config.put(1)
}

fn set_shared_config(config: u32) -> Outcome {
    current()?;
    if config > 2 {
        Err(INVALID_VALUE)
    } else {
        Ok(())
    }
}

fn get_priorities(least: Out<i32>, greatest: Out<i32>) -> Outcome {
    current()?;
    least.offer(0);
    greatest.offer(-5);
    Ok(())
}

fn reset_cache() -> Outcome {
    current().map(drop)
}

fn get_affinity(_affinity: Out<u64>, _kind: u32) -> Outcome {
    current()?;
    Err(NOT_SUPPORTED)
}

fn enable_peer(peer: u64, flags: u32) -> Outcome {
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    let (handle, _) = current()?;
    let mut tables = tables();
    tables.context(peer)?;
    let is_new = tables.peers.insert((handle, peer));
    if is_new {
        Ok(())
    } else {
        Err(PEER_ACCESS_ALREADY_ENABLED)
    }
}

fn disable_peer(peer: u64) -> Outcome {
    let (handle, _) = current()?;
    let was_there = tables().peers.remove(&(handle, peer));
    if was_there {
        Ok(())
    } else {
        Err(PEER_ACCESS_NOT_ENABLED)
    }
}
