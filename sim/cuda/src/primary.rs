//! Primary contexts: one per device, shared by all libraries of a process.

use apportion_sim_machine::{MachineReply, MachineRequest};

use crate::context::check_flags;
use crate::driver::{ask, create, driver, tables};
use crate::error::Outcome;
use crate::export::exports;
use crate::pointer::Out;
use crate::tables::Context;

exports! {
    cuDevicePrimaryCtxRetain(out: Out<u64>, device: i32) = retain => "cuDevicePrimaryCtxRetain" @ 7000;
    cuDevicePrimaryCtxRelease(device: i32) = release => "cuDevicePrimaryCtxRelease" @ 7000;
    cuDevicePrimaryCtxRelease_v2(device: i32) = release => "cuDevicePrimaryCtxRelease" @ 11000;
    cuDevicePrimaryCtxReset(device: i32) = reset => "cuDevicePrimaryCtxReset" @ 7000;
    cuDevicePrimaryCtxReset_v2(device: i32) = reset => "cuDevicePrimaryCtxReset" @ 11000;
    cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) = set_flags => "cuDevicePrimaryCtxSetFlags" @ 7000;
    cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) = set_flags => "cuDevicePrimaryCtxSetFlags" @ 11000;
    cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) = get_state => "cuDevicePrimaryCtxGetState" @ 7000;
}

pub(crate) fn retain(out: Out<u64>, device: i32) -> Outcome {
    out.check()?;
    let card = driver()?.card(device)?;
    let name = create(MachineRequest::PrimaryRetain(card))?;
    let mut tables = tables();
    let fresh = tables.fresh();
    let primary = tables.primaries.entry(device).or_default();
    if primary.handle == 0 {
        primary.handle = fresh;
    }
    let (handle, flags) = (primary.handle, primary.flags);
    let context = Context::new(name, device, flags, 3020);
    let known = tables.contexts.entry(handle).or_insert(context);
    if !known.is_alive {
        *known = context;
    }
    out.put(handle)
}

pub(crate) fn release(device: i32) -> Outcome {
    let card = driver()?.card(device)?;
    let reply = ask(MachineRequest::PrimaryRelease(card))?;
    let mut tables = tables();
    let primary = tables.primaries.get(&device).copied();
    let Some(primary) = primary.filter(|_| reply == MachineReply::Value(0)) else {
        return Ok(());
    };
    tables.end_context(primary.handle);
    drop(tables);
    crate::tiles::end_in(primary.handle)
}

fn reset(device: i32) -> Outcome {
    let card = driver()?.card(device)?;
    ask(MachineRequest::PrimaryReset(card))?;
    let mut tables = tables();
    let Some(primary) = tables.primaries.get(&device).copied() else {
        return Ok(());
    };
    tables.end_context(primary.handle);
    drop(tables);
    crate::tiles::end_in(primary.handle)
}

fn set_flags(device: i32, flags: u32) -> Outcome {
    driver()?.card(device)?;
    check_flags(flags)?;
    let mut tables = tables();
    let primary = tables.primaries.entry(device).or_default();
    primary.flags = flags;
    let handle = primary.handle;
    if let Ok(context) = tables.context_mut(handle) {
        context.flags = flags;
    }
    Ok(())
}

fn get_state(device: i32, flags: Out<u32>, active: Out<i32>) -> Outcome {
    driver()?.card(device)?;
    let tables = tables();
    let primary = tables.primaries.get(&device).copied().unwrap_or_default();
    flags.put(primary.flags)?;
    active.put(i32::from(tables.context(primary.handle).is_ok()))
}
