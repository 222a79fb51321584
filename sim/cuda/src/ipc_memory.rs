//! CUDA IPC memory: handles of 64 bytes that a program may pass to any process.
//!
//! A block is moved into a file when its handle is requested, so that both processes see the same bytes. The handle
//! names the file's descriptor. Once the memory is freed, nothing can be opened.

use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use apportion_sim_machine::{MachineReply, MachineRequest};

use crate::context::current;
use crate::driver::{ask, create as create_in_machine, tables};
use crate::error::{CudaError, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, Outcome, UNKNOWN};
use crate::export::exports;
use crate::mapping;
use crate::memory_file;
use crate::pointer::Out;
use crate::retained_memory::{descriptor_of, file_at};
use crate::tables::{MemoryKind, MemoryRange};

/// `CUipcMemHandle`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcMemHandle {
    name: u64,
    bytes: u64,
    block: u64,
    offset: u64,
    process: u32,
    descriptor: i32,
    rest: [u64; 3],
}

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const BUFFER: u32 = 1;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, the only flag. It must be set.
const LAZY: u32 = 1;

exports! {
    cuIpcGetMemHandle(out: Out<IpcMemHandle>, address: u64) = get => "cuIpcGetMemHandle" @ 4010;
    cuIpcOpenMemHandle(out: Out<u64>, handle: IpcMemHandle, flags: u32) = open => "cuIpcOpenMemHandle" @ 4010;
    cuIpcOpenMemHandle_v2(out: Out<u64>, handle: IpcMemHandle, flags: u32) = open => "cuIpcOpenMemHandle" @ 11000;
    cuIpcCloseMemHandle(address: u64) = close => "cuIpcCloseMemHandle" @ 4010;
    cuMemGetHandleForAddressRange(out: Out<i32>, address: u64, bytes: usize, kind: u32, flags: u64) = get_range => "cuMemGetHandleForAddressRange" @ 11070;
}

fn get(out: Out<IpcMemHandle>, address: u64) -> Outcome {
    out.check()?;
    let (start, range) = tables().range_of(address)?;
    let MemoryKind::Device { allocation } = range.kind else {
        return Err(INVALID_VALUE);
    };
    let name = create_in_machine(MachineRequest::BlockShare(allocation))?;
    let shared = tables().shared_block(start, |base, bytes| moved_to_file(name, base, bytes));
    let (base, block, descriptor) = shared?;
    out.put(IpcMemHandle {
        name,
        bytes: range.bytes,
        block,
        offset: start - base,
        process: std::process::id(),
        descriptor,
        rest: [0; 3],
    })
}

/// A DMA buffer for other devices. Here it is an ordinary file descriptor.
fn get_range(out: Out<i32>, address: u64, _bytes: usize, kind: u32, flags: u64) -> Outcome {
    out.check()?;
    if kind != BUFFER || flags != 0 {
        return Err(INVALID_VALUE);
    }
    let (start, range) = tables().range_of(address)?;
    let (name, file) = match range.kind {
        MemoryKind::Device { allocation } => {
            let name = create_in_machine(MachineRequest::BlockShare(allocation))?;
            let shared = tables().shared_block(start, |base, all| moved_to_file(name, base, all));
            (name, shared?.2)
        }
        _ => file_at(address)?,
    };
    out.put(descriptor_of(name, file)?)
}

/// Replaces a block's mapping by a file with the same bytes.
fn moved_to_file(name: u64, base: u64, bytes: u64) -> Result<OwnedFd, CudaError> {
    let file = memory_file::create(name, bytes)?;
    let copy = mapping::file(bytes, file.as_raw_fd())?;
    mapping::copy_written(copy, base, bytes);
    mapping::unmap(copy, bytes);
    mapping::place(base, bytes, file.as_raw_fd())?;
    mapping::protect(base, bytes, true, true)?;
    Ok(file)
}

/// Opens a handle. The process that created it cannot open it.
fn open(out: Out<u64>, handle: IpcMemHandle, flags: u32) -> Outcome {
    out.check()?;
    let (context, device) = current().map(|(handle, context)| (handle, context.device))?;
    if flags != LAZY {
        return Err(INVALID_VALUE);
    }
    if handle.process == std::process::id() {
        return Err(INVALID_CONTEXT);
    }
    let path = format!("/proc/{}/fd/{}", handle.process, handle.descriptor);
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|_| INVALID_HANDLE)?.into_raw_fd();
    let opened = open_file(handle, file);
    // SAFETY: the descriptor is that of the file that was just opened, and nothing else owns it.
    unsafe { libc::close(file) };
    let base = opened?;
    let mut tables = tables();
    let (serial, name) = (tables.fresh(), handle.name);
    let range = MemoryRange {
        bytes: handle.bytes,
        kind: MemoryKind::Opened {
            name,
            block: handle.block,
            base,
        },
        device,
        context,
        serial,
    };
    let address = base + handle.offset;
    tables.ranges.insert(address, range);
    out.put(address)
}

fn open_file(handle: IpcMemHandle, file: i32) -> Result<u64, CudaError> {
    if memory_file::open(file)?.0 != handle.name {
        return Err(INVALID_HANDLE);
    }
    let MachineReply::Imported { .. } = ask(MachineRequest::HandleImport(handle.name))? else {
        return Err(UNKNOWN);
    };
    mapping::file(handle.block, file).or_else(|error| {
        ask(MachineRequest::HandleRelease(handle.name))?;
        Err(error)
    })
}

fn close(address: u64) -> Outcome {
    let range = tables().ranges.get(&address).copied();
    let Some(MemoryKind::Opened { name, block, base }) = range.map(|range| range.kind) else {
        return Err(INVALID_VALUE);
    };
    ask(MachineRequest::HandleRelease(name))?;
    tables().ranges.remove(&address);
    mapping::unmap(base, block);
    Ok(())
}
