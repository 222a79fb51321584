//! Device variables, identified by their host variables.

use std::ffi::c_void;

use crate::code::{variable, variable_bytes};
use crate::copy::{copy, copy_async};
use crate::default_stream::RuntimeStream;
use crate::entry::entry_points;
use crate::error::{CudartError, INVALID_VALUE, Outcome};

entry_points! {
    context cudaGetSymbolAddress(out: *mut *mut c_void, symbol: *const c_void) = address;
    nothing cudaGetSymbolSize(out: *mut usize, symbol: *const c_void) = size;
    context cudaMemcpyToSymbol(symbol: *const c_void, from: *const c_void, bytes: usize, offset: usize, kind: u32) = to_symbol;
    context cudaMemcpyFromSymbol(to: *mut c_void, symbol: *const c_void, bytes: usize, offset: usize, kind: u32) = from_symbol;
    context cudaMemcpyToSymbolAsync | cudaMemcpyToSymbolAsync_ptsz (symbol: *const c_void, from: *const c_void, bytes: usize, offset: usize, kind: u32, stream: RuntimeStream) = to_symbol_async;
    context cudaMemcpyFromSymbolAsync | cudaMemcpyFromSymbolAsync_ptsz (to: *mut c_void, symbol: *const c_void, bytes: usize, offset: usize, kind: u32, stream: RuntimeStream) = from_symbol_async;
}

fn address(out: *mut *mut c_void, symbol: *const c_void) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let (address, _) = variable(symbol)?;
    // SAFETY: the program gave a valid pointer for the address.
    unsafe { out.write(address) };
    Ok(())
}

fn size(out: *mut usize, symbol: *const c_void) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let bytes = variable_bytes(symbol)?;
    // SAFETY: the program gave a valid pointer for the size.
    unsafe { out.write(bytes) };
    Ok(())
}

/// The address of a part of a variable. The part must lie inside the variable.
fn part(symbol: *const c_void, bytes: usize, offset: usize) -> Result<*mut c_void, CudartError> {
    let (address, whole) = variable(symbol)?;
    let end = offset.checked_add(bytes).ok_or(INVALID_VALUE)?;
    if end > whole {
        return Err(INVALID_VALUE);
    }
    Ok(address.wrapping_byte_add(offset))
}

fn to_symbol(
    symbol: *const c_void,
    from: *const c_void,
    bytes: usize,
    offset: usize,
    kind: u32,
) -> Outcome {
    copy(part(symbol, bytes, offset)?, from, bytes, kind)
}

fn from_symbol(
    to: *mut c_void,
    symbol: *const c_void,
    bytes: usize,
    offset: usize,
    kind: u32,
) -> Outcome {
    copy(to, part(symbol, bytes, offset)?, bytes, kind)
}

fn to_symbol_async(
    symbol: *const c_void,
    from: *const c_void,
    bytes: usize,
    offset: usize,
    kind: u32,
    stream: RuntimeStream,
) -> Outcome {
    copy_async(part(symbol, bytes, offset)?, from, bytes, kind, stream)
}

fn from_symbol_async(
    to: *mut c_void,
    symbol: *const c_void,
    bytes: usize,
    offset: usize,
    kind: u32,
    stream: RuntimeStream,
) -> Outcome {
    copy_async(to, part(symbol, bytes, offset)?, bytes, kind, stream)
}
