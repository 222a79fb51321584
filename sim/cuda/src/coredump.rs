//! Settings for GPU core dumps, for the current context or for all. No kernel fails here, so no dump is ever written.
//! Settings are kept and returned.

use std::collections::HashMap;

use crate::context::current;
use crate::driver::tables;
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::pointer::{In, Out};

/// The settings by context and attribute. Global settings have context zero.
pub(crate) type CoreDumps = HashMap<(u64, u32), Vec<u8>>;

const ALL: u64 = 0;
/// `CUcoredumpSettings`: four switches, of which one is on by default, two names, and flags.
const HOST: u32 = 2;
const LAST_SWITCH: u32 = 4;
const FILE: u32 = 5;
const PIPE: u32 = 6;
const FLAGS: u32 = 7;
/// The most bytes of a name, including its terminating zero.
const NAME: usize = 1024;

exports! {
    cuCoredumpGetAttribute(attribute: u32, value: Out<u8>, bytes: Out<usize>) = get => "cuCoredumpGetAttribute" @ 12010;
    cuCoredumpGetAttributeGlobal(attribute: u32, value: Out<u8>, bytes: Out<usize>) = get_for_all => "cuCoredumpGetAttributeGlobal" @ 12010;
    cuCoredumpSetAttribute(attribute: u32, value: In<u8>, bytes: Out<usize>) = set => "cuCoredumpSetAttribute" @ 12010;
    cuCoredumpSetAttributeGlobal(attribute: u32, value: In<u8>, bytes: Out<usize>) = set_for_all => "cuCoredumpSetAttributeGlobal" @ 12010;
}

/// The bytes that a value needs.
fn room(attribute: u32) -> Result<usize, CudaError> {
    match attribute {
        1..=LAST_SWITCH => Ok(1),
        FILE | PIPE => Ok(NAME),
        FLAGS => Ok(4),
        _ => Err(INVALID_VALUE),
    }
}

fn first_value(attribute: u32) -> Vec<u8> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let named = |kind| format!("{kind}.cuda.{}.{}\0", host.trim(), std::process::id());
    match attribute {
        HOST => vec![1],
        FILE => named("core").into_bytes(),
        PIPE => named("corepipe").into_bytes(),
        FLAGS => vec![0; 4],
        _ => vec![0],
    }
}

/// Without a buffer for the value, returns the size that it needs.
fn get_of(context: u64, attribute: u32, value: Out<u8>, bytes: Out<usize>) -> Outcome {
    bytes.check()?;
    let room = room(attribute)?;
    if value.check().is_err() {
        return bytes.put(room);
    }
    let known = {
        let tables = tables();
        let own = tables.core_dumps.get(&(context, attribute));
        own.or_else(|| tables.core_dumps.get(&(ALL, attribute)))
            .cloned()
    };
    let known = known.unwrap_or_else(|| first_value(attribute));
    if bytes.read()? < known.len() {
        return Err(INVALID_VALUE);
    }
    let mut each = known.iter().enumerate();
    each.try_for_each(|(at, byte)| value.put_at(at, *byte))
}

fn set_of(context: u64, attribute: u32, value: In<u8>, bytes: Out<usize>) -> Outcome {
    bytes.check()?;
    let room = room(attribute)?;
    if value.is_null() {
        return bytes.put(room);
    }
    let given = bytes.read()?;
    let is_name = [FILE, PIPE].contains(&attribute);
    if given > room || (!is_name && given != room) {
        return Err(INVALID_VALUE);
    }
    let all: Result<Vec<u8>, CudaError> = (0..given).map(|at| value.at(at)).collect();
    let mut all = all?;
    if is_name && all.last() != Some(&0) {
        all.push(0);
    }
    tables().core_dumps.insert((context, attribute), all);
    Ok(())
}

fn get(attribute: u32, value: Out<u8>, bytes: Out<usize>) -> Outcome {
    get_of(current()?.0, attribute, value, bytes)
}

fn get_for_all(attribute: u32, value: Out<u8>, bytes: Out<usize>) -> Outcome {
    get_of(ALL, attribute, value, bytes)
}

fn set(attribute: u32, value: In<u8>, bytes: Out<usize>) -> Outcome {
    set_of(current()?.0, attribute, value, bytes)
}

fn set_for_all(attribute: u32, value: In<u8>, bytes: Out<usize>) -> Outcome {
    set_of(ALL, attribute, value, bytes)
}
