//! Green contexts: a part of a device with a handle of its own. Each retains the device's primary context. The part is
//! that of a descriptor from [`crate::resources`].

use std::collections::HashMap;

use apportion_sim_machine::MachineRequest;

use crate::context::current;
use crate::context_events;
use crate::driver::{ask, create as create_in_machine, driver, tables};
use crate::error::{INVALID_CONTEXT, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::pointer::Out;
use crate::primary;
use crate::resources::DevResourceDesc;
use crate::stream;
use crate::tables::Context;

/// The green contexts of a process, with the descriptor that each was created from.
pub(crate) type Greens = HashMap<u64, DevResourceDesc>;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

exports! {
    cuGreenCtxCreate(out: Out<u64>, description: u64, device: i32, flags: u32) = create => "cuGreenCtxCreate" @ 12040;
    cuGreenCtxDestroy(green: u64) = destroy => "cuGreenCtxDestroy" @ 12040;
    cuGreenCtxStreamCreate(out: Out<u64>, green: u64, flags: u32, priority: i32) = create_stream => "cuGreenCtxStreamCreate" @ 12050;
    cuStreamGetGreenCtx(stream: u64, out: Out<u64>) = of_stream => "cuStreamGetGreenCtx" @ 12040;
    cuGreenCtxGetId(green: u64, id: Out<u64>) = get_id => "cuGreenCtxGetId" @ 12090;
    cuGreenCtxRecordEvent(green: u64, event: u64) = record => "cuGreenCtxRecordEvent" @ 12040;
    cuGreenCtxWaitEvent(green: u64, event: u64) = wait => "cuGreenCtxWaitEvent" @ 12040;
    cuCtxFromGreenCtx(out: Out<u64>, green: u64) = context_of => "cuCtxFromGreenCtx" @ 12040;
}

/// A green context and its context have the same handle here.
fn create(out: Out<u64>, description: u64, device: i32, flags: u32) -> Outcome {
    out.check()?;
    let described = tables().descriptions.get(&description).copied();
    let described = described.filter(|described| described.device == device && flags <= 1);
    let described = described.ok_or(INVALID_VALUE)?;
    let card = driver()?.card(device)?;
    let mut primary = 0;
    primary::retain(Out::to(&mut primary), device)?;
    let name = match create_in_machine(MachineRequest::ContextCreate(card)) {
        Ok(name) => name,
        Err(error) => {
            primary::release(device)?;
            return Err(error);
        }
    };
    let mut tables = tables();
    let handle = tables.fresh();
    tables
        .contexts
        .insert(handle, Context::new(name, device, 0, 3020));
    tables.greens.insert(handle, described);
    out.put(handle)
}

fn destroy(green: u64) -> Outcome {
    let gone = tables().greens.remove(&green);
    let device = gone.ok_or(INVALID_CONTEXT)?.device;
    let name = tables().context(green)?.name;
    ask(MachineRequest::ContextDestroy(name))?;
    tables().end_context(green);
    crate::tiles::end_in(green)?;
    primary::release(device)
}

fn check(green: u64) -> Outcome {
    if tables().greens.contains_key(&green) {
        Ok(())
    } else {
        Err(INVALID_CONTEXT)
    }
}

fn context_of(out: Out<u64>, green: u64) -> Outcome {
    check(green)?;
    out.put(green)
}

/// Without a green context, uses the current context, which must then be a green one.
fn get_id(green: u64, id: Out<u64>) -> Outcome {
    id.check()?;
    let green = match green {
        0 => current()?.0,
        green => green,
    };
    check(green)?;
    id.put(tables().context(green)?.name)
}

fn record(green: u64, event: u64) -> Outcome {
    check(green)?;
    context_events::record(green, event)
}

fn wait(green: u64, event: u64) -> Outcome {
    check(green)?;
    context_events::wait(green, event)
}

/// Creates a stream of a green context, whatever context is current. It never waits for the null stream.
fn create_stream(out: Out<u64>, green: u64, flags: u32, priority: i32) -> Outcome {
    out.check()?;
    check(green)?;
    match flags {
        NON_BLOCKING => out.put(stream::enter(green, flags, priority)),
        _ => Err(INVALID_VALUE),
    }
}

/// Null if the stream belongs to another kind of context.
fn of_stream(handle: u64, out: Out<u64>) -> Outcome {
    out.check()?;
    out.put(green_of(stream::known(handle)?.context()))
}

/// The green context of a context, or null.
pub(crate) fn green_of(context: u64) -> u64 {
    let is_green = tables().greens.contains_key(&context);
    if is_green { context } else { 0 }
}
