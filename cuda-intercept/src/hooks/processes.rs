//! NVML's process lists: a program with a limit sees only the processes of its own allocation.
//!
//! NVML reports pids in the caller's pid namespace, and leaves out processes that are invisible there (NVIDIA's
//! kernel modules translate each pid). So that number is looked up in the account; see
//! [`Account::has_process`](crate::account::MappedAccount::has_process).
//!
//! The driver writes its whole list into our buffer. The entries that remain are returned by NVML's own rules: if the
//! caller's buffer is too small, the number of entries and `NVML_ERROR_INSUFFICIENT_SIZE`; for an empty list, the
//! status that this function returns then. Errors of the driver are passed on.
//!
//! `nvidia-smi` gets its process table from a private interface and sees all processes.

use alloc::vec::Vec;
use core::mem::size_of;

use crate::foreign::{
    NVML_INSUFFICIENT_SIZE, NVML_MEMORY, NVML_NOT_FOUND, NvmlDevice, Opaque, ProcessDetailList,
    ProcessUtilization, SUCCESS, Status,
};
use crate::process::{self, ProcessState};

type List = unsafe extern "C" fn(NvmlDevice, *mut u32, Opaque) -> Status;
type Utilization = unsafe extern "C" fn(NvmlDevice, Opaque, *mut u32, u64) -> Status;
type Details = unsafe extern "C" fn(NvmlDevice, *mut ProcessDetailList) -> Status;
type Utilizations = unsafe extern "C" fn(NvmlDevice, *mut ProcessUtilization) -> Status;
type Stats = unsafe extern "C" fn(NvmlDevice, u32, Opaque) -> Status;
type StatsV2 = unsafe extern "C" fn(NvmlDevice, Opaque) -> Status;

/// The buffer's first number of entries, and how much it grows if the list grew meanwhile.
const MOST_PROCESSES: u32 = 64;
const MORE_ROOM: u32 = 16;
/// How often the driver is asked while the list keeps growing.
const TURNS: u32 = 8;
/// What a buffer holds where the driver wrote nothing.
const UNTOUCHED: u64 = 0xa5a5_a5a5_a5a5_a5a5;
/// An upper bound for the size of one process's statistics, in any version.
const STATISTICS: usize = 512;

/// The layout of a list's entries.
#[derive(Clone, Copy)]
struct EntryLayout {
    /// The length of an entry.
    bytes: usize,
    /// The length in drivers that write more.
    or_bytes: usize,
    /// The offset of the pid.
    pid_at: usize,
    /// The status for an empty list.
    when_none: Status,
}

impl EntryLayout {
    const fn of(bytes: usize) -> Self {
        Self {
            bytes,
            or_bytes: bytes,
            pid_at: 0,
            when_none: SUCCESS,
        }
    }
}

/// `nvmlProcessInfo_v1_t` and `_v2_t`. Drivers 535.43 to 535.86 write 8 bytes more in what they call the third.
const FIRST: EntryLayout = EntryLayout::of(16);
const SECOND: EntryLayout = EntryLayout::of(24);
const THIRD: EntryLayout = EntryLayout {
    or_bytes: 32,
    ..SECOND
};
/// `nvmlProcessDetail_v1_t`.
const DETAILS: EntryLayout = EntryLayout::of(32);
/// `nvmlProcessUtilizationSample_t` and `nvmlProcessUtilizationInfo_v1_t`.
const SAMPLES: EntryLayout = EntryLayout {
    when_none: NVML_NOT_FOUND,
    ..EntryLayout::of(32)
};
const UTILIZATIONS: EntryLayout = EntryLayout {
    pid_at: 8,
    when_none: NVML_NOT_FOUND,
    ..EntryLayout::of(40)
};
/// Pids and nothing else.
const PIDS: EntryLayout = EntryLayout::of(4);

/// The driver returned no list.
struct ProcessListError {
    status: Status,
    /// The number of entries, if the driver wrote one anyway.
    count: Option<u32>,
}

impl ProcessListError {
    const fn with(status: Status) -> Self {
        let count = None;
        Self { status, count }
    }
}

/// The driver's whole list.
struct ProcessList {
    words: Vec<u64>,
    count: usize,
    bytes: usize,
}

impl ProcessList {
    /// Asks the driver until the list fits.
    fn read(
        entries: EntryLayout,
        ask: &dyn Fn(&mut u32, Opaque) -> Status,
    ) -> Result<Self, ProcessListError> {
        let mut capacity = MOST_PROCESSES;
        for _ in 0..TURNS {
            let bytes = (capacity as usize).saturating_mul(entries.or_bytes);
            let mut words = Vec::new();
            let needed = bytes.div_ceil(size_of::<u64>());
            if words.try_reserve_exact(needed).is_err() {
                return Err(ProcessListError::with(NVML_MEMORY));
            }
            words.resize(needed, UNTOUCHED);
            let mut count = capacity;
            match ask(&mut count, words.as_mut_ptr().cast()) {
                SUCCESS => {
                    let count = count.min(capacity) as usize;
                    return Ok(Self::of(entries, words, count));
                }
                NVML_INSUFFICIENT_SIZE => capacity = count.max(capacity).saturating_add(MORE_ROOM),
                status => {
                    let count = (count != capacity).then_some(count);
                    return Err(ProcessListError { status, count });
                }
            }
        }
        Err(ProcessListError::with(NVML_INSUFFICIENT_SIZE))
    }

    /// The driver writes entries of one of two lengths. The word after the last short entry shows which.
    fn of(entries: EntryLayout, words: Vec<u64>, count: usize) -> Self {
        let end = count.saturating_mul(entries.bytes) / size_of::<u64>();
        let wrote_more = words.get(end).is_some_and(|word| *word != UNTOUCHED);
        let bytes = if count > 0 && entries.or_bytes > entries.bytes && wrote_more {
            entries.or_bytes
        } else {
            entries.bytes
        };
        Self {
            words,
            count,
            bytes,
        }
    }

    /// Keeps the entries with a wanted pid, in order.
    fn keep(&mut self, pid_at: usize, is_wanted: impl Fn(u32) -> bool) {
        let start: *mut u8 = self.words.as_mut_ptr().cast();
        let mut own_processes = 0_usize;
        for place in 0..self.count {
            let entry = start.wrapping_add(place.saturating_mul(self.bytes));
            let pid: *const u32 = entry.wrapping_add(pid_at).cast();
            // SAFETY: the driver wrote `count` entries of this length into the buffer, each with a pid there.
            if is_wanted(unsafe { pid.read_unaligned() }) {
                let to = start.wrapping_add(own_processes.saturating_mul(self.bytes));
                // SAFETY: both lie in the buffer, and the target is not after the source.
                unsafe { core::ptr::copy(entry, to, self.bytes) };
                own_processes = own_processes.saturating_add(1);
            }
        }
        self.count = own_processes;
    }
}

/// Returns the entries of a list whose processes are in the account. `ask` calls the driver's function with the given
/// count and buffer.
///
/// # Safety
/// `count` and `list` must be what the caller passes as to the driver.
unsafe fn show(
    process: &ProcessState,
    entries: EntryLayout,
    count: *mut u32,
    list: Opaque,
    ask: &dyn Fn(&mut u32, Opaque) -> Status,
) -> Status {
    // SAFETY: the caller passes a number, as to the driver; the callers of this function have checked for null.
    let capacity = unsafe { count.read() };
    let mut asks_for_size = false;
    let all = if list.is_null() {
        let mut number = capacity;
        match ask(&mut number, list) {
            SUCCESS => ProcessList::read(entries, ask),
            NVML_INSUFFICIENT_SIZE => {
                asks_for_size = true;
                ProcessList::read(entries, ask)
            }
            status => Err(ProcessListError {
                status,
                count: Some(number),
            }),
        }
    } else {
        ProcessList::read(entries, ask)
    };
    let mut all = match all {
        Ok(all) => all,
        Err(ProcessListError {
            status,
            count: number,
        }) => {
            if let Some(number) = number {
                // SAFETY: as above.
                unsafe { count.write(number) };
            }
            return status;
        }
    };
    all.keep(entries.pid_at, |pid| has(process, pid));
    let number = u32::try_from(all.count).unwrap_or(u32::MAX);
    // SAFETY: as above.
    unsafe { count.write(number) };
    match number {
        0 => return entries.when_none,
        number if number > capacity || asks_for_size => return NVML_INSUFFICIENT_SIZE,
        _ if list.is_null() => return SUCCESS,
        _ => {}
    }
    let bytes = all.count.saturating_mul(all.bytes);
    // SAFETY: the caller has room for so many entries of the driver's length, and the buffer is our own.
    unsafe { core::ptr::copy_nonoverlapping(all.words.as_ptr().cast(), list.cast::<u8>(), bytes) };
    SUCCESS
}

/// Whether a process is in this process's account.
fn has(process: &ProcessState, pid: u32) -> bool {
    process
        .account()
        .is_some_and(|account| account.has_process(pid))
}

/// This process's state, if it has a limit. Dead processes, whose pids may be in use again, are first taken out of
/// the account. As for memory queries, that happens at most every 10 ms, so the cost does not depend on the other
/// processes.
fn limited() -> Option<&'static ProcessState> {
    let process = process::limited()?;
    process.account()?.retire_the_dead_in_time();
    Some(process)
}

/// A list as most functions return it.
///
/// # Safety
/// As for the driver's function.
unsafe fn list(
    real: List,
    entries: EntryLayout,
    device: NvmlDevice,
    count: *mut u32,
    list: Opaque,
) -> Status {
    // SAFETY: the device is the caller's, the number and the place the caller's or our own.
    let ask = |count: *mut u32, list| unsafe { real(device, count, list) };
    match limited().filter(|_| !count.is_null()) {
        // SAFETY: they are the caller's own.
        Some(process) => unsafe {
            show(process, entries, count, list, &|count, list| {
                ask(count, list)
            })
        },
        None => ask(count, list),
    }
}

pub(crate) unsafe fn first(
    real: List,
    device: NvmlDevice,
    count: *mut u32,
    infos: Opaque,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    unsafe { list(real, FIRST, device, count, infos) }
}

pub(crate) unsafe fn second(
    real: List,
    device: NvmlDevice,
    count: *mut u32,
    infos: Opaque,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    unsafe { list(real, SECOND, device, count, infos) }
}

pub(crate) unsafe fn third(
    real: List,
    device: NvmlDevice,
    count: *mut u32,
    infos: Opaque,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    unsafe { list(real, THIRD, device, count, infos) }
}

pub(crate) unsafe fn accounted(
    real: List,
    device: NvmlDevice,
    count: *mut u32,
    pids: Opaque,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    unsafe { list(real, PIDS, device, count, pids) }
}

pub(crate) unsafe fn utilization(
    real: Utilization,
    device: NvmlDevice,
    samples: Opaque,
    count: *mut u32,
    since: u64,
) -> Status {
    // SAFETY: the device is the caller's, the number and the place the caller's or our own.
    let ask = |count: *mut u32, samples| unsafe { real(device, samples, count, since) };
    match limited().filter(|_| !count.is_null()) {
        Some(process) => {
            // SAFETY: they are the caller's own.
            unsafe {
                show(process, SAMPLES, count, samples, &|count, samples| {
                    ask(count, samples)
                })
            }
        }
        None => ask(count, samples),
    }
}

/// A list whose count and buffer are fields of the caller's structure; `parts` finds them.
///
/// # Safety
/// As for the driver's function.
unsafe fn in_structure<T: Copy>(
    real: unsafe extern "C" fn(NvmlDevice, *mut T) -> Status,
    device: NvmlDevice,
    list: *mut T,
    entries: EntryLayout,
    parts: fn(&mut T) -> (&mut u32, &mut Opaque),
) -> Status {
    // SAFETY: the caller passes null or a structure, as to the driver.
    let asked = unsafe { list.as_mut() };
    let Some((process, asked)) = limited().zip(asked) else {
        // SAFETY: the arguments are the caller's own.
        return unsafe { real(device, list) };
    };
    let whole = *asked;
    let ask = |count: &mut u32, place: Opaque| {
        let mut own = whole;
        let (own_count, own_place) = parts(&mut own);
        (*own_count, *own_place) = (*count, place);
        // SAFETY: the device is the caller's, the structure our own with the rest of the caller's.
        let status = unsafe { real(device, &raw mut own) };
        *count = *parts(&mut own).0;
        status
    };
    let (count, place) = parts(asked);
    // SAFETY: they are the caller's own.
    unsafe { show(process, entries, count, *place, &ask) }
}

pub(crate) unsafe fn details(
    real: Details,
    device: NvmlDevice,
    list: *mut ProcessDetailList,
) -> Status {
    // SAFETY: passed on from the caller.
    unsafe {
        in_structure(real, device, list, DETAILS, |own| {
            (&mut own.count, &mut own.entries)
        })
    }
}

pub(crate) unsafe fn utilizations(
    real: Utilizations,
    device: NvmlDevice,
    list: *mut ProcessUtilization,
) -> Status {
    // SAFETY: passed on from the caller.
    unsafe {
        in_structure(real, device, list, UTILIZATIONS, |own| {
            (&mut own.count, &mut own.entries)
        })
    }
}

/// A process outside the account is reported as not found. The driver still checks the other arguments.
pub(crate) unsafe fn stats(real: Stats, device: NvmlDevice, pid: u32, stats: Opaque) -> Status {
    let is_hidden = limited().is_some_and(|process| !has(process, pid));
    if !is_hidden || stats.is_null() {
        // SAFETY: the arguments are the caller's own.
        return unsafe { real(device, pid, stats) };
    }
    let mut scratch = [0_u64; STATISTICS / 8];
    // SAFETY: the device is the caller's; the place has more room than the driver writes.
    match unsafe { real(device, pid, scratch.as_mut_ptr().cast()) } {
        SUCCESS => NVML_NOT_FOUND,
        status => status,
    }
}

/// Like `stats`, for a structure that begins with the pid.
pub(crate) unsafe fn stats_v2(real: StatsV2, device: NvmlDevice, stats: Opaque) -> Status {
    // SAFETY: the caller passes null or a structure that begins with a pid, as to the driver.
    let pid = unsafe { stats.cast::<u32>().as_ref() }.copied();
    let Some(pid) = pid.filter(|pid| limited().is_some_and(|process| !has(process, *pid))) else {
        // SAFETY: the arguments are the caller's own.
        return unsafe { real(device, stats) };
    };
    let mut scratch = [0_u64; STATISTICS / 8];
    if let Some(first) = scratch.first_mut() {
        *first = u64::from(pid);
    }
    // SAFETY: the device is the caller's; the place has more room than the driver writes.
    match unsafe { real(device, scratch.as_mut_ptr().cast()) } {
        SUCCESS => NVML_NOT_FOUND,
        status => status,
    }
}
