//! The driver's error log for programs. The simulated driver writes nothing into it: a registered callback is never
//! called, and the log is empty.

use std::sync::{Mutex, PoisonError};

use crate::driver::tables;
use crate::error::{INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::pointer::{Out, Text};

/// The callbacks that are registered, by handle.
static REGISTERED: Mutex<Vec<u64>> = Mutex::new(Vec::new());

exports! {
    cuLogsRegisterCallback(function: u64, data: u64, out: Out<u64>) = register => "cuLogsRegisterCallback" @ 12090, anytime;
    cuLogsUnregisterCallback(callback: u64) = unregister => "cuLogsUnregisterCallback" @ 12090, anytime;
    cuLogsCurrent(iterator: Out<u32>, flags: u32) = current => "cuLogsCurrent" @ 12090, anytime;
    cuLogsDumpToFile(iterator: Out<u32>, path: Text, flags: u32) = dump_to_file => "cuLogsDumpToFile" @ 12090, anytime;
    cuLogsDumpToMemory(iterator: Out<u32>, text: Out<u8>, bytes: Out<usize>, flags: u32) = dump => "cuLogsDumpToMemory" @ 12090, anytime;
}

/// The data would be passed to the callback. The pointer for its handle may be null.
fn register(function: u64, _data: u64, out: Out<u64>) -> Outcome {
    if function == 0 {
        return Err(INVALID_VALUE);
    }
    let handle = tables().fresh();
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    registered.push(handle);
    out.offer(handle);
    Ok(())
}

fn unregister(callback: u64) -> Outcome {
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let at = registered.iter().position(|known| *known == callback);
    registered.swap_remove(at.ok_or(INVALID_VALUE)?);
    Ok(())
}

fn current(iterator: Out<u32>, flags: u32) -> Outcome {
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    iterator.put(0)
}

/// Writes an empty file.
fn dump_to_file(_iterator: Out<u32>, path: Text, flags: u32) -> Outcome {
    let path = path.get()?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    std::fs::write(path, "").map_err(|_| INVALID_VALUE)
}

/// Writes an empty text: only the terminating zero.
fn dump(_iterator: Out<u32>, text: Out<u8>, bytes: Out<usize>, flags: u32) -> Outcome {
    text.check()?;
    if flags != 0 || bytes.read()? == 0 {
        return Err(INVALID_VALUE);
    }
    text.put(0)?;
    bytes.put(0)
}
