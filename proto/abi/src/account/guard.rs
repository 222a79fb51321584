//! Pages that their other owner may take away.
//!
//! Whoever can write a mapped file can also truncate it, and the next touch of a page beyond its new end is a
//! bus error: a program under a limit could end the agent that way. No check before the touch can help, as
//! the file may be cut right after. So the agent maps accounts *guarded*: the signal's handler puts empty
//! memory of the agent's own in the place of the mapping, and the touch goes on with zeroes. The mapping is
//! then [`MappingGuard::is_damaged`], and its owner does not look at it again. A bus error anywhere else is what it
//! was before.
//!
//! # Decision: a guard, not copies
//! The agent also takes the slots of the dead out, by compare-exchange against programs that do the same;
//! copies made with `pread` could be read but not exchanged, and `pwrite` would overwrite a slot that has
//! just gone to another process. Sealed memory files cannot be truncated, but cannot be mounted into a
//! container either. The guard keeps one code for both sides of the page, the one that `loom` has seen.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

/// The most mappings that are guarded at the same time: two for each account of a node.
const MOST: usize = 8192;
/// An entry that is taken and not yet filled in. No mapping starts here.
const TAKEN: usize = 1;

/// One guarded mapping.
struct GuardEntry {
    /// Where it starts; 0 for a free entry.
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

/// What the signal did before. Written once, before our handler is in place.
struct PreviousHandler(core::cell::UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: it is written under `STATE` by the one thread that installs the handler, and only read after.
unsafe impl Sync for PreviousHandler {}

static BEFORE: PreviousHandler =
    PreviousHandler(core::cell::UnsafeCell::new(MaybeUninit::uninit()));

/// 0, then [`TAKEN`] while a thread installs the handler, then [`INSTALLED`].
/// Written by: who guards first. Read by: everyone who guards. AcqRel.
static STATE: AtomicUsize = AtomicUsize::new(0);
const INSTALLED: usize = 2;

/// The guard of one mapping, for as long as it lives. It must end before the mapping does.
#[derive(Debug)]
pub(super) struct MappingGuard(usize);

impl MappingGuard {
    /// Guards a mapping. `None` if too many are guarded already.
    pub(super) fn new(start: *const u8, size: usize) -> Option<Self> {
        install();
        let is_ours = |entry: &GuardEntry| {
            let taken = entry.start.compare_exchange(0, TAKEN, AcqRel, Relaxed);
            taken.is_ok()
        };
        let at = ENTRIES.iter().position(is_ours)?;
        let entry = ENTRIES.get(at)?;
        entry.size.store(size, Relaxed);
        entry.is_damaged.store(false, Relaxed);
        entry.start.store(start as usize, Release);
        Some(Self(at))
    }

    /// Whether the mapping is no longer the file.
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

    /// Puts empty memory in place of the mapping.
    fn replace(&self) -> bool {
        // SAFETY: the range is a live mapping: its owner touches it right now, and ends the guard before it.
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
        // SAFETY: only asks; the place is ours alone until the handler is in place.
        unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), BEFORE.0.get().cast()) };
        // SAFETY: the handler calls nothing that is not allowed in one.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut()) };
        STATE.store(INSTALLED, Release);
    }
}

extern "C" fn handle(signal: c_int, told: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the C library always has an errno location for the calling thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the location is valid for the calling thread.
    let kept = unsafe { *errno };
    // SAFETY: the kernel passes what it has to say, as was asked for.
    let told = unsafe { &*told };
    // SAFETY: a bus error has an address; one that somebody sent has another word there, which is not used.
    let address = unsafe { told.si_addr() } as usize;
    let is_error = told.si_code > 0;
    let guarded = ENTRIES
        .iter()
        .find(|entry| is_error && entry.contains(address));
    if !guarded.is_some_and(GuardEntry::replace) {
        // SAFETY: what the signal did before was asked for before this handler was in place.
        unsafe { libc::sigaction(signal, BEFORE.0.get().cast(), ptr::null_mut()) };
        if !is_error {
            // A touch happens again by itself; what was sent does not.
            // SAFETY: raising has no preconditions.
            unsafe { libc::raise(signal) };
        }
    }
    // SAFETY: as above.
    unsafe { *errno = kept };
}
