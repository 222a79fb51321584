//! Protects against pages that the other side may take away.
//!
//! A process that can write a mapped file can also truncate it. The next access beyond the new end is a bus error, so
//! a program with a limit could kill the agent. A check before the access does not help, because the file may be
//! truncated right after it. So the agent maps accounts *guarded*: the signal handler replaces the mapping with empty
//! memory of the agent, and the access continues with zeroes. The mapping is then [`MappingGuard::is_damaged`], and
//! its owner stops using it. All other bus errors behave as before.
//!
//! # Decision: a guard, not copies
//! The agent also retires the slots of dead processes, by compare-exchange against programs that do the same. Copies
//! made with `pread` could be read but not exchanged, and `pwrite` would overwrite a slot that has just gone to
//! another process. Sealed memory files cannot be truncated, but cannot be mounted into a container either. The guard
//! keeps the same code for both sides of the page, which is the code that `loom` has checked.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

/// The most mappings that can be guarded at once: two for each account of a node.
const MOST: usize = 8192;
/// Marks an entry that is taken but not filled in. No mapping starts at this address.
const TAKEN: usize = 1;

struct GuardEntry {
    /// The start of the mapping; 0 for a free entry.
    /// Written by: its owner. Read by: the handler. AcqRel.
    start: AtomicUsize,
    /// Written by: its owner, before `start`. Read by: the handler. Relaxed, ordered by `start`.
    size: AtomicUsize,
    /// Written by: the handler. Read by: its owner. Release/Acquire.
    is_damaged: AtomicBool,
}

static ENTRIES: [GuardEntry; MOST] = [const {
    GuardEntry {
        start: AtomicUsize::new(0),
        size: AtomicUsize::new(0),
        is_damaged: AtomicBool::new(false),
    }
}; MOST];

/// The previous signal action. Written once, before our handler is installed.
struct PreviousHandler(core::cell::UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: only the thread that installs the handler writes it, under `STATE`; afterwards it is only read.
unsafe impl Sync for PreviousHandler {}

static BEFORE: PreviousHandler =
    PreviousHandler(core::cell::UnsafeCell::new(MaybeUninit::uninit()));

/// 0, then [`TAKEN`] while a thread installs the handler, then [`INSTALLED`].
/// Written by: the first thread that guards. Read by: all that guard. AcqRel.
static STATE: AtomicUsize = AtomicUsize::new(0);
const INSTALLED: usize = 2;

/// The guard of one mapping while it lives. It must end before the mapping does.
#[derive(Debug)]
pub(super) struct MappingGuard(usize);

impl MappingGuard {
    /// Guards a mapping. `None` if too many are guarded already.
    pub(super) fn new(start: *const u8, size: usize) -> Option<Self> {
        install();
        let at = ENTRIES.iter().position(|entry| {
            let taken = entry.start.compare_exchange(0, TAKEN, AcqRel, Relaxed);
            taken.is_ok()
        })?;
        let entry = ENTRIES.get(at)?;
        entry.size.store(size, Relaxed);
        entry.is_damaged.store(false, Relaxed);
        entry.start.store(start as usize, Release);
        Some(Self(at))
    }

    /// Whether the mapping no longer shows the file.
    pub(super) fn is_damaged(&self) -> bool {
        let entry = ENTRIES.get(self.0);
        entry.is_none_or(|entry| entry.is_damaged.load(Acquire))
    }
}

impl Drop for MappingGuard {
    fn drop(&mut self) {
        if let Some(entry) = ENTRIES.get(self.0) {
            entry.start.store(0, Release);
        }
    }
}

impl GuardEntry {
    fn contains(&self, address: usize) -> bool {
        let start = self.start.load(Acquire);
        let inside = address.wrapping_sub(start);
        start > TAKEN && inside < self.size.load(Relaxed)
    }

    /// Replaces the mapping with empty memory.
    fn replace(&self) -> bool {
        // SAFETY: the range is a live mapping: its owner accesses it right now, and ends the guard before the
        // mapping.
        let replaced = unsafe {
            libc::mmap(
                self.start.load(Acquire) as *mut c_void,
                self.size.load(Relaxed),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        self.is_damaged.store(true, Release);
        replaced != libc::MAP_FAILED
    }
}

fn install() {
    while STATE.load(Acquire) != INSTALLED {
        if STATE.compare_exchange(0, TAKEN, AcqRel, Acquire).is_err() {
            core::hint::spin_loop();
            continue;
        }
        // SAFETY: all zeroes are a valid `sigaction`.
        let mut ours: libc::sigaction = unsafe { core::mem::zeroed() };
        ours.sa_sigaction = handle as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: only reads the action; no other thread uses the place until the handler is installed.
        unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), BEFORE.0.get().cast()) };
        // SAFETY: the handler calls nothing that is not allowed in one.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut()) };
        STATE.store(INSTALLED, Release);
    }
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the C library always has an errno location for the calling thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the location is valid for the calling thread.
    let saved_errno = unsafe { *errno };
    // SAFETY: the kernel passes a `siginfo_t`, as `SA_SIGINFO` requests.
    let info = unsafe { &*info };
    // SAFETY: a bus error has an address. A signal sent by a process has another value there, which is not used.
    let address = unsafe { info.si_addr() } as usize;
    let is_error = info.si_code > 0;
    let guarded = ENTRIES
        .iter()
        .find(|entry| is_error && entry.contains(address));
    if !guarded.is_some_and(GuardEntry::replace) {
        // SAFETY: the previous action was read before this handler was installed.
        unsafe { libc::sigaction(signal, BEFORE.0.get().cast(), ptr::null_mut()) };
        if !is_error {
            // A faulting access repeats by itself; a sent signal does not.
            // SAFETY: raising has no preconditions.
            unsafe { libc::raise(signal) };
        }
    }
    // SAFETY: as above.
    unsafe { *errno = saved_errno };
}
