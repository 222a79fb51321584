//! Memory that only descriptors keep. A descriptor for other processes, or a DMA buffer for other devices, holds its
//! memory until it is closed in every process. The charge stays as long.
//!
//! Each descriptor is marked with a key (see `account::descriptor_keys`), which goes with its last copy. Nothing
//! announces that. So it is checked when pools are settled, before a charge is refused, and when the program queries
//! free memory.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use apportion_gate::{Card, ExportedDescriptor, HeldMemory};

use crate::account::{MappedAccount, descriptor_keys};
use crate::foreign::{DevicePointer, Opaque, SUCCESS, Status};
use crate::process::{self, ProcessState};

use super::shared_holds;

type GetRange = unsafe extern "C" fn(Opaque, DevicePointer, usize, u32, u64) -> Status;

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const BUFFER: u32 = 1;

/// Whether this process ever made one.
/// Written by: calls that make one. Read by: every free. Relaxed: a thread that frees memory has seen its descriptor.
static ANY: AtomicBool = AtomicBool::new(false);

/// Records a descriptor that has a key.
pub(super) fn enter(process: &ProcessState, memory: HeldMemory, number: i32, key: u64) {
    let Some(inode) = descriptor_keys::inode_of(number) else {
        return;
    };
    let known = process.allocations.lock().descriptors.probe(inode);
    let probe = known.or_else(|| descriptor_keys::open_again(number));
    let descriptor = ExportedDescriptor {
        key,
        number,
        inode,
        probe,
    };
    ANY.store(true, Relaxed);
    let is_new = process
        .allocations
        .lock()
        .descriptors
        .enter(memory, descriptor);
    if !is_new && known.is_none() {
        descriptor_keys::close(descriptor);
    }
}

/// Keeps a charge if a descriptor keeps the memory. The memory gets a new name, and its shares move to that name.
pub(super) fn keep(process: &ProcessState, memory: HeldMemory, charge: (Card, u64)) -> bool {
    if !ANY.load(Relaxed) {
        return false;
    }
    let is_descriptor_only = {
        let mut allocations = process.allocations.lock();
        let name = allocations.descriptors.set_unmapped(memory, charge);
        if let Some(name) = name {
            allocations.shares.rename(memory, name);
        }
        name.is_some()
    };
    if is_descriptor_only {
        uncharge_closed(process);
    }
    is_descriptor_only
}

/// Uncharges what no descriptor keeps any more. True if there was anything.
pub(super) fn uncharge_closed(process: &ProcessState) -> bool {
    let (mut last, mut any) = (0, false);
    if !ANY.load(Relaxed) {
        return false;
    }
    loop {
        let next = process.allocations.lock().descriptors.unmapped_after(last);
        let Some((number, descriptor)) = next else {
            return any;
        };
        last = number;
        if descriptor_keys::is_open(descriptor) {
            continue;
        }
        let (useless, freed) = process.allocations.lock().descriptors.closed(number);
        useless.into_iter().for_each(descriptor_keys::close);
        if let Some((memory, card, bytes)) = freed {
            shared_holds::leave(process, memory);
            process.uncharge(card, bytes);
            any = true;
        }
    }
}

/// A DMA buffer for other devices, made from a range of memory.
pub(crate) unsafe fn get_range(
    real: GetRange,
    handle: Opaque,
    address: DevicePointer,
    bytes: usize,
    kind: u32,
    flags: u64,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(handle, address, bytes, kind, flags) };
    if status == SUCCESS
        && kind == BUFFER
        && let Some(process) = process::limited()
        // SAFETY: the driver accepted the pointer and wrote the descriptor.
        && let Some(number) = unsafe { handle.cast::<i32>().as_ref() }
        && let Some(key) = MappedAccount::put_key_on(*number, None)
    {
        let found = process.allocations.lock().memory_at(address);
        if let Some(memory) = found {
            enter(process, memory, *number, key);
        }
    }
    status
}
