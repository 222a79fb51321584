//! Events that are shared between processes. A recorded event is complete at once, so an opened event has nothing to
//! wait for. Only its owner and its flags matter.

use crate::context::current;
use crate::driver::tables;
use crate::error::{INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, Outcome};
use crate::event::{BETWEEN_PROCESSES, CudaEvent, WITHOUT_TIME};
use crate::export::exports;
use crate::pointer::Out;

/// `CUipcEventHandle`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcEventHandle {
    event: u64,
    process: u32,
    mark: u32,
    rest: [u64; 6],
}

/// The first word of an event's handle. A memory handle never starts with it.
const MARK: u32 = 0x0e7e_7001;

exports! {
    cuIpcGetEventHandle(out: Out<IpcEventHandle>, event: u64) = get => "cuIpcGetEventHandle" @ 4010;
    cuIpcOpenEventHandle(out: Out<u64>, handle: IpcEventHandle) = open => "cuIpcOpenEventHandle" @ 4010;
}

fn get(out: Out<IpcEventHandle>, event: u64) -> Outcome {
    out.check()?;
    let tables = tables();
    let known = tables.events.get(&event).ok_or(INVALID_HANDLE)?;
    if known.flags & BETWEEN_PROCESSES == 0 {
        return Err(INVALID_VALUE);
    }
    out.put(IpcEventHandle {
        event,
        process: std::process::id(),
        mark: MARK,
        rest: [0; 6],
    })
}

/// A process cannot open its own event.
fn open(out: Out<u64>, handle: IpcEventHandle) -> Outcome {
    out.check()?;
    current()?;
    if handle.mark != MARK {
        return Err(INVALID_VALUE);
    }
    if handle.process == std::process::id() {
        return Err(INVALID_CONTEXT);
    }
    let mut tables = tables();
    let event = tables.fresh();
    let opened = CudaEvent {
        flags: BETWEEN_PROCESSES | WITHOUT_TIME,
        recorded: None,
        captured: None,
    };
    tables.events.insert(event, opened);
    out.put(event)
}
