//! Lets the agent see that the program calls the driver, in a share that sleeps when it is idle.
//!
//! The words and why no call is overlooked are in [`apportion_abi::account`]. Here is where calls are seen: at the entry
//! of each hook, and in a stub before each other function of the driver that the program looks up by `dlsym` or
//! `cuGetProcAddress`. In all other shares a hook runs the same instructions as without this module, and lookups return
//! the driver's own functions.
//!
//! # Decision: every call of the driver counts
//! A call that only asks for something counts as one that computes. For what matters is which calls the driver holds while
//! the process is locked, and NVIDIA does not say which it does not hold. So a share sleeps only if nobody calls at all, and
//! whatever is called wakes it.
//!
//! # Decision: a library that is linked with the driver keeps its share awake
//! The linker binds its calls to the driver's functions, and only those that have a hook are bound to this library. If one
//! of the others is the first call of a sleeping share, nobody would hear of it. So such a share is never put to sleep.
//! To export a stub for every function would make these calls slower in all shares. Calls through the private tables
//! of `cuGetExportTable` are not seen either. NVIDIA's runtime uses them to set up a context, beside calls that are seen.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};

use crate::arch::{STUBS, stub};
use crate::call_watch::{EPOCH, report_linked};
use crate::driver;
use crate::errno::ErrnoGuard;
use crate::process::{self, ProcessState};
use crate::table::{COUNT, DriverLibrary};

/// The last epoch that this process has published. A child of `fork` goes on with its parent's, which is in their
/// account.
/// Written by: the first call in an epoch, after it is published. Read by: every call. Release/Acquire.
pub(crate) static SEEN: AtomicU64 = AtomicU64::new(0);

/// The function behind each stub; 0 while it is free.
/// Written by: lookups. Read by: stubs, which are handed out after that. AcqRel.
pub(crate) static SLOTS: [AtomicUsize; STUBS] = [const { AtomicUsize::new(0) }; STUBS];

/// What the entry point of each row calls without further ado: its real function, or 0 where it is not known yet, or
/// where each call must first be published.
/// Written by: the first call of each row, always with the same value. Read by: every hook. Release/Acquire.
static CALLEES: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

/// Whether calls of this process are published, or may have to be once its account is open.
pub(crate) fn is_watched() -> bool {
    let Some(process) = process::current() else {
        return true;
    };
    let account = process.account();
    account.is_some_and(|account| account.call_epoch().is_some())
}

/// Publishes that the program calls the driver. After the first call in an epoch, this is a load and a comparison.
#[inline]
pub(crate) extern "C" fn note() {
    // SAFETY: the word is a static, or in a mapping that is never unmapped.
    let word = unsafe { &*EPOCH.load(Acquire) };
    let epoch = word.load(Acquire);
    if epoch != SEEN.load(Acquire) {
        publish(epoch);
    }
}

#[cold]
#[inline(never)]
fn publish(epoch: u64) {
    let _errno = ErrnoGuard::now();
    let Some(account) = process::current().and_then(ProcessState::account) else {
        return;
    };
    account.publish_call(epoch);
    SEEN.store(epoch, Release);
    if process::take_opened() {
        report_linked(account);
    }
}

/// The stub of a function that has no hook, if it is the driver's and calls are published; else the function.
pub(crate) fn seen(found: usize) -> usize {
    let is_the_driver_s = found != 0 && driver::is_in(DriverLibrary::Cuda, found);
    if !is_the_driver_s || !is_watched() {
        return found;
    }
    let own = SLOTS.iter().position(|slot| {
        let taken = slot.compare_exchange(0, found, AcqRel, Acquire);
        taken.is_ok() || taken == Err(found)
    });
    if let Some(stub) = own.and_then(stub) {
        return stub;
    }
    if let Some(account) = process::current().and_then(ProcessState::account) {
        account.set_unseen();
    }
    found
}

/// The real function of a row, for its entry point, which calls it. Publishes the call if it must be.
#[inline]
pub(crate) fn callee(place: usize, library: DriverLibrary) -> Option<usize> {
    let known = CALLEES.get(place)?.load(Acquire);
    if known != 0 {
        return Some(known);
    }
    published(place, library)
}

#[inline(never)]
fn published(place: usize, library: DriverLibrary) -> Option<usize> {
    let real = driver::real(place, library)?;
    if library == DriverLibrary::Cuda && is_watched() {
        note();
    } else {
        CALLEES.get(place)?.store(real, Release);
    }
    Some(real)
}
