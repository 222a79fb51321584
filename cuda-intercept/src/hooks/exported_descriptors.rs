//! Memory that only descriptors keep: one for other processes, or a buffer for other devices, holds what it was
//! made of until it is closed, in whichever process. The charge stays as long.
//!
//! A key lies on each descriptor (see the account's marks), and goes with its last copy. Nobody tells when, so it is
//! looked for where pools are settled, before a charge is refused, and when somebody asks how much is free.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use apportion_gate::{Card, ExportedDescriptor, HeldMemory};

use crate::account::{MappedAccount, descriptor_keys};
use crate::foreign::{DevicePointer, Opaque, SUCCESS, Status};
use crate::process::ProcessState;

use super::vmm::counted;

type GetRange = unsafe extern "C" fn(Opaque, DevicePointer, usize, u32, u64) -> Status;

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const BUFFER: u32 = 1;

/// Whether this process ever made one.
/// Written by: who makes one. Read by: every free. Relaxed: who frees memory has seen the descriptor of it.
static ANY: AtomicBool = AtomicBool::new(false);

/// Enters a descriptor that has a key.
pub(super) fn enter(process: &ProcessState, memory: HeldMemory, number: i32, key: u64) {
    let Some(inode) = descriptor_keys::inode_of(number) else {
        return;
    };
    let known = process.books.lock().descriptors.probe(inode);
    let probe = known.or_else(|| descriptor_keys::open_again(number));
    let descriptor = ExportedDescriptor {
        key,
        number,
        inode,
        probe,
    };
    ANY.store(true, Relaxed);
    let is_new = process.books.lock().descriptors.enter(memory, descriptor);
    if !is_new && known.is_none() {
        descriptor_keys::close(descriptor);
    }
}

/// Keeps a charge if a descriptor keeps the memory. Shares under the name that this process knew it by go on under
/// the new one.
pub(super) fn keep(process: &ProcessState, memory: HeldMemory, charge: (Card, u64)) -> bool {
    if !ANY.load(Relaxed) {
        return false;
    }
    let is_adrift = {
        let mut books = process.books.lock();
        let name = books.descriptors.set_adrift(memory, charge);
        if let Some(name) = name {
            books.shares.rename(memory, name);
        }
        name.is_some()
    };
    if is_adrift {
        look(process);
    }
    is_adrift
}

/// Gives back what no descriptor keeps any more. True if there was anything.
pub(crate) fn look(process: &ProcessState) -> bool {
    let (mut last, mut any) = (0, false);
    if !ANY.load(Relaxed) {
        return false;
    }
    loop {
        let next = process.books.lock().descriptors.adrift_after(last);
        let Some((number, descriptor)) = next else {
            return any;
        };
        last = number;
        if descriptor_keys::is_open(descriptor) {
            continue;
        }
        let (useless, freed) = process.books.lock().descriptors.closed(number);
        useless.into_iter().for_each(descriptor_keys::close);
        if let Some((memory, card, bytes)) = freed {
            super::shared_memory::leave(process, memory);
            process.uncharge(card, bytes);
            any = true;
        }
    }
}

/// A buffer for other devices, made of a range of memory.
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
        && let Some(process) = counted()
        // SAFETY: the driver accepted the pointer and wrote the descriptor.
        && let Some(number) = unsafe { handle.cast::<i32>().as_ref() }
        && let Some(key) = MappedAccount::put_key_on(*number, None)
    {
        let found = process.books.lock().memory_at(address);
        if let Some(memory) = found {
            enter(process, memory, *number, key);
        }
    }
    status
}
