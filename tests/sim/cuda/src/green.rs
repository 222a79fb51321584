//! Green contexts: a part of a device under a handle of its own, over the primary context, which each
//! retains. Which part is not simulated, so any description of it is taken.

use std::collections::HashMap;

use apportion_sim_machine::Request;

use crate::driver::{ask, create as create_in_machine, driver, tables};
use crate::error::{INVALID_CONTEXT, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::pointer::Out;
use crate::primary;
use crate::tables::Context;

/// The green contexts of a process: the device of each.
pub(crate) type Greens = HashMap<u64, i32>;

exports! {
    cuGreenCtxCreate(out: Out<u64>, description: u64, device: i32, flags: u32) = create => "cuGreenCtxCreate" @ 12040;
    cuGreenCtxDestroy(green: u64) = destroy => "cuGreenCtxDestroy" @ 12040;
    cuCtxFromGreenCtx(out: Out<u64>, green: u64) = context_of => "cuCtxFromGreenCtx" @ 12040;
}

/// The context of a green one has the same handle here.
fn create(out: Out<u64>, description: u64, device: i32, flags: u32) -> Outcome {
    out.check()?;
    if description == 0 || flags > 1 {
        return Err(INVALID_VALUE);
    }
    let card = driver()?.card(device)?;
    let mut primary = 0;
    primary::retain(Out::to(&mut primary), device)?;
    let name = match create_in_machine(Request::ContextCreate(card)) {
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
    tables.greens.insert(handle, device);
    out.put(handle)
}

fn destroy(green: u64) -> Outcome {
    let device = tables().greens.remove(&green).ok_or(INVALID_CONTEXT)?;
    let name = tables().context(green)?.name;
    ask(Request::ContextDestroy(name))?;
    tables().end_context(green);
    crate::tiles::end_in(green)?;
    primary::release(device)
}

fn context_of(out: Out<u64>, green: u64) -> Outcome {
    let is_there = tables().greens.contains_key(&green);
    if is_there {
        out.put(green)
    } else {
        Err(INVALID_CONTEXT)
    }
}
