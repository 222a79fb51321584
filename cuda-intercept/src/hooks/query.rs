//! Memory queries: one view of the card answers all of them.
//!
//! The driver is always asked first, with the caller's own pointers, so that it can refuse as usual. Then the values
//! that it wrote are reduced. Cards that are not in the account are shown unchanged.

use core::ffi::CStr;
use core::str::FromStr;

use apportion_abi::CardUuid;
use apportion_gate::Card;

use crate::account::{CardMemoryView, MappedAccount};
use crate::driver;
use crate::foreign::{Device, NvmlDevice, NvmlMemory, NvmlMemoryV2, SUCCESS, Status};
use crate::process::{self, ChargeScope};

type MemoryInfo = unsafe extern "C" fn(*mut usize, *mut usize) -> Status;
type MemoryInfoV1 = unsafe extern "C" fn(*mut u32, *mut u32) -> Status;
type Total = unsafe extern "C" fn(*mut usize, Device) -> Status;
type TotalV1 = unsafe extern "C" fn(*mut u32, Device) -> Status;
type Nvml = unsafe extern "C" fn(NvmlDevice, *mut NvmlMemory) -> Status;
type NvmlV2 = unsafe extern "C" fn(NvmlDevice, *mut NvmlMemoryV2) -> Status;

/// An integer that the driver wrote, of any width.
trait DriverInteger: Copy {
    fn widen(self) -> u64;
    fn narrow(value: u64) -> Self;
}

impl DriverInteger for u32 {
    fn widen(self) -> u64 {
        u64::from(self)
    }

    fn narrow(value: u64) -> Self {
        Self::try_from(value).unwrap_or(Self::MAX)
    }
}

impl DriverInteger for usize {
    fn widen(self) -> u64 {
        self as u64
    }

    fn narrow(value: u64) -> Self {
        Self::try_from(value).unwrap_or(Self::MAX)
    }
}

/// Reads what the driver wrote. A null pointer counts as the maximum.
///
/// # Safety
/// `place` must be null or point to what the driver wrote.
unsafe fn read<N: DriverInteger>(place: *const N) -> u64 {
    if place.is_null() {
        return u64::MAX;
    }
    // SAFETY: the caller guarantees it.
    unsafe { place.read() }.widen()
}

/// # Safety
/// `place` must be null or point to what the driver wrote.
unsafe fn write<N: DriverInteger>(place: *mut N, value: u64) {
    if !place.is_null() {
        // SAFETY: the caller guarantees it.
        unsafe { place.write(N::narrow(value)) };
    }
}

/// The view of a card after pools are settled and dead processes are taken out. It does not wait for the agent: a
/// process that has waited for another's end sees its memory as free, as it would from the driver. All others see
/// that 10 ms after the end at the latest.
fn settled(account: &MappedAccount, card: Card, total: u64, free: u64) -> CardMemoryView {
    super::pool_settlement::settle_all();
    account.retire_the_dead_in_time();
    account.view(card, total, free)
}

/// # Safety
/// Both must be null or point to what the driver wrote.
unsafe fn shrink<N: DriverInteger>(free: *mut N, total: *mut N) {
    let ChargeScope::Charged(site) = process::charge_scope() else {
        return;
    };
    // SAFETY: passed on from the caller.
    let card_total = unsafe { read(total) };
    // SAFETY: passed on from the caller.
    let card_free = unsafe { read(free) };
    let view = settled(site.account, site.card, card_total, card_free);
    // SAFETY: passed on from the caller.
    unsafe { write(free, view.free) };
    // SAFETY: passed on from the caller.
    unsafe { write(total, view.total) };
}

pub(crate) unsafe fn memory_info(real: MemoryInfo, free: *mut usize, total: *mut usize) -> Status {
    // SAFETY: the pointers are the caller's own.
    let status = unsafe { real(free, total) };
    if status == SUCCESS {
        // SAFETY: the driver accepted the pointers.
        unsafe { shrink(free, total) };
    }
    status
}

pub(crate) unsafe fn memory_info_v1(real: MemoryInfoV1, free: *mut u32, total: *mut u32) -> Status {
    // SAFETY: the pointers are the caller's own.
    let status = unsafe { real(free, total) };
    if status == SUCCESS {
        // SAFETY: the driver accepted the pointers.
        unsafe { shrink(free, total) };
    }
    status
}

/// # Safety
/// `bytes` must be null or point to what the driver wrote.
unsafe fn shrink_total<N: DriverInteger>(bytes: *mut N, device: Device) {
    let Some(process) = process::current() else {
        return;
    };
    let Some(card) = process.card_of(device) else {
        return;
    };
    // SAFETY: passed on from the caller.
    let total = unsafe { read(bytes) };
    if let Some(view) = process.view(card, total, total) {
        // SAFETY: passed on from the caller.
        unsafe { write(bytes, view.total) };
    }
}

pub(crate) unsafe fn total(real: Total, bytes: *mut usize, device: Device) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(bytes, device) };
    if status == SUCCESS {
        // SAFETY: the driver accepted the pointer.
        unsafe { shrink_total(bytes, device) };
    }
    status
}

pub(crate) unsafe fn total_v1(real: TotalV1, bytes: *mut u32, device: Device) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(bytes, device) };
    if status == SUCCESS {
        // SAFETY: the driver accepted the pointer.
        unsafe { shrink_total(bytes, device) };
    }
    status
}

/// The view of the card that NVML was asked about.
fn nvml_view(device: NvmlDevice, total: u64, free: u64) -> Option<CardMemoryView> {
    let process = process::current()?;
    let account = process.account()?;
    let mut text = [0_u8; 96];
    // SAFETY: the device is one that NVML just accepted, and the buffer has that many bytes.
    let status = unsafe { driver::nvml_uuid(device, text.as_mut_ptr().cast(), 96) }?;
    if status != SUCCESS {
        return None;
    }
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
    let card = account.card(CardUuid::from_str(text).ok()?)?;
    Some(settled(account, card, total, free))
}

pub(crate) unsafe fn nvml_memory(
    real: Nvml,
    device: NvmlDevice,
    memory: *mut NvmlMemory,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(device, memory) };
    // SAFETY: NVML refuses a null pointer, so it has filled the structure.
    let filled = unsafe { memory.as_mut() }.filter(|_| status == SUCCESS);
    if let Some(memory) = filled
        && let Some(view) = nvml_view(device, memory.total, memory.free)
    {
        (memory.total, memory.free, memory.used) = (view.total, view.free, view.used);
    }
    status
}

/// The driver's reserve is not part of the card's memory as the program sees it.
pub(crate) unsafe fn nvml_memory_v2(
    real: NvmlV2,
    device: NvmlDevice,
    memory: *mut NvmlMemoryV2,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(device, memory) };
    // SAFETY: NVML refuses a null pointer, so it has filled the structure.
    let filled = unsafe { memory.as_mut() }.filter(|_| status == SUCCESS);
    if let Some(memory) = filled
        && let Some(view) = nvml_view(device, memory.total, memory.free)
    {
        (memory.total, memory.free, memory.used) = (view.total, view.free, view.used);
        memory.reserved = 0;
    }
    status
}
