//! Physical memory that is kept by something other than its handle or a mapping to addresses: an object that it is
//! bound to, or a descriptor.

use std::os::fd::{AsRawFd, IntoRawFd, RawFd};

use apportion_sim_machine::MachineRequest;

use crate::driver::{ask, tables};
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::memory_file;
use crate::tables::MemoryKind;

/// Keeps physical memory for an object that it is bound to.
pub(crate) fn hold(handle: u64) -> Outcome {
    let name = tables().held(handle)?.name;
    ask(MachineRequest::Map(name))?;
    tables().physical(handle)?.mappings += 1;
    Ok(())
}

/// Releases what `hold` keeps.
pub(crate) fn let_go(handle: u64) -> Outcome {
    let name = tables().physical(handle)?.name;
    ask(MachineRequest::Unmap(name))?;
    let mut tables = tables();
    tables.physical(handle)?.mappings -= 1;
    tables.forget_if_unused(handle);
    Ok(())
}

/// The handle and the device of the memory at an address.
pub(crate) fn mapped_at(address: u64) -> Result<(u64, i32), CudaError> {
    let range = tables().range_of(address)?.1;
    match range.kind {
        MemoryKind::Mapped { handle, .. } => Ok((handle, range.device)),
        _ => Err(INVALID_VALUE),
    }
}

/// The device of a handle's memory.
pub(crate) fn device_of(handle: u64) -> Result<i32, CudaError> {
    Ok(tables().held(handle)?.properties.place.device())
}

/// A descriptor for the memory with this machine name. It keeps the memory while it is open.
pub(crate) fn descriptor_of(name: u64, file: RawFd) -> Result<RawFd, CudaError> {
    let made = memory_file::export(file)?;
    let descriptor = made.as_raw_fd();
    ask(MachineRequest::HandleExport {
        handle: name,
        descriptor,
    })?;
    Ok(made.into_raw_fd())
}

/// The machine name and the file of the memory at an address.
pub(crate) fn file_at(address: u64) -> Result<(u64, RawFd), CudaError> {
    let (handle, _) = mapped_at(address)?;
    let mut tables = tables();
    let physical = tables.physical(handle)?;
    Ok((physical.name, physical.file.as_raw_fd()))
}
