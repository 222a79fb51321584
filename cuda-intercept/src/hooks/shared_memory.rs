//! Memory that several processes hold, by exported handles or IPC handles.
//!
//! It counts once in an account, for as long as any process of the account holds it (see the account's shares). Its
//! maker charged it, and offers it here before any other process can know it. A process that imports it joins before
//! the driver call. Memory from outside the account costs nothing here: the maker's account pays while the maker
//! lives.
//!
//! Both sides identify memory by a key: a mark on the descriptor, or a hash of the 64 bytes of a handle.

use apportion_gate::{Card, HeldMemory, Hold, PhysicalName, worst_case};

use crate::account::{JoinedMemory, MappedAccount};
use crate::foreign::{DevicePointer, Handle, IpcHandle, OUT_OF_MEMORY, Opaque, SUCCESS, Status};
use crate::process::{self, ProcessState};

use super::exported_descriptors;
use super::shared_holds::keep;

type Export = unsafe extern "C" fn(Opaque, Handle, u32, u64) -> Status;
type Import = unsafe extern "C" fn(*mut Handle, Opaque, u32) -> Status;
type GetHandle = unsafe extern "C" fn(*mut IpcHandle, DevicePointer) -> Status;
type OpenHandle = unsafe extern "C" fn(*mut DevicePointer, IpcHandle, u32) -> Status;
type CloseHandle = unsafe extern "C" fn(DevicePointer) -> Status;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, `CU_MEM_HANDLE_TYPE_FABRIC`.
const DESCRIPTOR: u32 = 1;
const FABRIC: u32 = 8;

fn counted() -> Option<(&'static ProcessState, &'static MappedAccount)> {
    process::current().and_then(|process| Some((process, process.account()?)))
}

/// The hash of 64 bytes (FNV-1a).
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Offers memory that is charged, unless it is already offered under this key.
fn offer(
    process: &ProcessState,
    account: &MappedAccount,
    memory: HeldMemory,
    key: u64,
    card: Card,
    bytes: u64,
) {
    let is_known = process.allocations.lock().shares.is_known(memory, key);
    if !is_known && let Some(hold) = account.offer(card, key, bytes) {
        keep(process, account, memory, key, hold);
    }
}

/// Imported memory is exported under the key that it has. Only its maker offers it.
pub(crate) unsafe fn export(
    real: Export,
    shared: Opaque,
    handle: Handle,
    kind: u32,
    flags: u64,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(shared, handle, kind, flags) };
    if status != SUCCESS {
        return status;
    }
    let Some((process, account)) = counted() else {
        return status;
    };
    let (found, known) = {
        let mut allocations = process.allocations.lock();
        let found = allocations.memory_of(PhysicalName::Handle(handle));
        if let Some((id, _)) = found {
            // From now on others may hold it, so its free must ask the account.
            allocations.share_memory(id);
        }
        let known = found.and_then(|(id, _)| allocations.shares.key_of(HeldMemory::Physical(id)));
        (found, known)
    };
    let Some((id, charged)) = found else {
        return status;
    };
    // SAFETY: the driver wrote what a handle of this kind is.
    let key = unsafe { key_for(shared, kind, known, charged.is_some()) };
    if let Some((key, (card, bytes))) = key.zip(charged) {
        if kind == DESCRIPTOR
            // SAFETY: the driver wrote a descriptor.
            && let Some(descriptor) = unsafe { shared.cast::<i32>().as_ref() }
        {
            exported_descriptors::enter(process, HeldMemory::Physical(id), *descriptor, key);
        }
        offer(process, account, HeldMemory::Physical(id), key, card, bytes);
    }
    status
}

/// The key of what was just exported. A descriptor gets one now.
///
/// # Safety
/// As for [`key_of`].
unsafe fn key_for(shared: Opaque, kind: u32, known: Option<u64>, is_ours: bool) -> Option<u64> {
    match kind {
        DESCRIPTOR if known.is_some() || is_ours => {
            // SAFETY: the caller guarantees it.
            let descriptor = unsafe { shared.cast::<i32>().as_ref() }?;
            MappedAccount::put_key_on(*descriptor, known)
        }
        // SAFETY: the caller guarantees it.
        _ => unsafe { key_of(shared, kind) },
    }
}

/// The key of what a caller wants to import.
///
/// # Safety
/// `shared` must be what the driver takes, or gives, for a handle of this kind.
unsafe fn key_of(shared: Opaque, kind: u32) -> Option<u64> {
    match kind {
        DESCRIPTOR => MappedAccount::key_on(i32::try_from(shared as usize).ok()?),
        FABRIC => {
            // SAFETY: the caller guarantees it.
            let bytes = unsafe { shared.cast::<[u8; 64]>().as_ref() }?;
            Some(digest(bytes))
        }
        _ => None,
    }
}

/// Joins the holders of the memory with this key and calls `ask`. `Err` is the status for the program.
fn join(
    account: &MappedAccount,
    key: Option<u64>,
    ask: impl FnOnce() -> Status,
) -> Result<Option<(u64, Hold)>, Status> {
    // This comes before the driver call. If the last other holder left during the call, nobody would be charged.
    let held = match key.map(|key| (key, account.join(key))) {
        Some((_, JoinedMemory::Refused)) => return Err(OUT_OF_MEMORY),
        Some((key, JoinedMemory::Held(hold))) => Some((key, hold)),
        Some((_, JoinedMemory::Foreign)) | None => None,
    };
    match (ask(), held) {
        (SUCCESS, held) => Ok(held),
        (status, Some((_, hold))) => {
            account.leave(hold);
            Err(status)
        }
        (status, None) => Err(status),
    }
}

pub(crate) unsafe fn import(
    real: Import,
    handle: *mut Handle,
    shared: Opaque,
    kind: u32,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let ask = || unsafe { real(handle, shared, kind) };
    let Some((process, account)) = counted() else {
        return ask();
    };
    // SAFETY: the caller passes what the driver takes.
    let key = unsafe { key_of(shared, kind) };
    let held = match join(account, key, ask) {
        Ok(held) => held,
        Err(status) => return status,
    };
    // SAFETY: the driver accepted the pointer and wrote the handle.
    let Some(handle) = (unsafe { handle.as_ref() }) else {
        return SUCCESS;
    };
    let memory = process.allocations.lock().import_handle(*handle);
    match (memory, held) {
        (Some(id), Some((key, hold))) => {
            keep(process, account, HeldMemory::Physical(id), key, hold);
        }
        // This process held it already, under an earlier hold.
        (None, Some((_, hold))) => account.leave(hold),
        (_, None) => {}
    }
    SUCCESS
}

/// Plain memory is shared in whole blocks.
pub(crate) unsafe fn get_handle(
    real: GetHandle,
    handle: *mut IpcHandle,
    address: DevicePointer,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(handle, address) };
    if status == SUCCESS
        && let Some((process, account)) = counted()
        // SAFETY: the driver accepted the pointer and wrote the handle.
        && let Some(IpcHandle(bytes)) = unsafe { handle.as_ref() }
    {
        let found = process.allocations.lock().allocation_at(address);
        if let Some((start, size, card, _)) = found {
            let memory = HeldMemory::Linear(start);
            let charged = worst_case(size);
            offer(process, account, memory, digest(bytes), card, charged);
        }
    }
    status
}

pub(crate) unsafe fn open_handle(
    real: OpenHandle,
    address: *mut DevicePointer,
    handle: IpcHandle,
    flags: u32,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let ask = || unsafe { real(address, handle, flags) };
    let Some((process, account)) = counted() else {
        return ask();
    };
    let held = match join(account, Some(digest(&handle.0)), ask) {
        Ok(held) => held,
        Err(status) => return status,
    };
    // SAFETY: the driver accepted the pointer and wrote the address.
    let opened = unsafe { address.as_ref() };
    if let Some((address, (key, hold))) = opened.zip(held) {
        keep(process, account, HeldMemory::Opened(*address), key, hold);
    }
    SUCCESS
}

/// Memory that was opened twice at one address must be closed twice.
pub(crate) unsafe fn close_handle(real: CloseHandle, address: DevicePointer) -> Status {
    // SAFETY: the address is the caller's own.
    let status = unsafe { real(address) };
    if status == SUCCESS
        && let Some((process, account)) = counted()
    {
        let taken = process
            .allocations
            .lock()
            .shares
            .take(HeldMemory::Opened(address));
        if let Some(hold) = taken {
            account.leave(hold);
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_that_differ_have_other_keys() {
        assert_ne!(digest(&[0; 64]), digest(&[1; 64]));
        assert_ne!(digest(&[0; 63]), digest(&[0; 64]));
    }
}
