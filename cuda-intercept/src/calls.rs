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

use core::ops::ControlFlow;
use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};

use crate::account::MappedAccount;
use crate::arch::{STUBS, stub};
use crate::errno::ErrnoGuard;
use crate::process::{self, ProcessState};
use crate::table::DriverLibrary;
use crate::{driver, elf};

/// The epoch of a process whose calls nobody asks about.
static NOBODY: AtomicU64 = AtomicU64::new(0);

/// The word of the epoch.
/// Written by: the call that creates the process's state. Read by: every call. Release/Acquire.
pub(crate) static EPOCH: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const NOBODY).cast_mut());

/// The last epoch that this process has published. A child of `fork` goes on with its parent's, which is in their
/// account.
/// Written by: the first call in an epoch, after it is published. Read by: every call. Release/Acquire.
pub(crate) static SEEN: AtomicU64 = AtomicU64::new(0);

/// The function behind each stub; 0 while it is free.
/// Written by: lookups. Read by: stubs, which are handed out after that. AcqRel.
pub(crate) static SLOTS: [AtomicUsize; STUBS] = [const { AtomicUsize::new(0) }; STUBS];

/// Whether somebody has looked for libraries that are linked with the driver.
/// Written by: the first look. Read by: the next process state, which may be that of a child. Relaxed.
static HAS_LOOKED: AtomicBool = AtomicBool::new(false);

/// Begins to publish calls, if the share sleeps when it is idle. For a state that is never dropped.
pub(crate) fn watch(process: &'static ProcessState) {
    let Some(account) = process.account() else {
        return;
    };
    let Some(epoch) = account.call_epoch() else {
        return;
    };
    EPOCH.store(ptr::from_ref(epoch).cast_mut(), Release);
    if !HAS_LOOKED.swap(true, Relaxed) {
        report_linked(account);
    }
}

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

/// Tells the agent if a library is linked with the driver.
fn report_linked(account: &MappedAccount) {
    let driver = DriverLibrary::Cuda.soname();
    let linked = elf::for_each(|object| {
        if object.needs(driver) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    if linked.is_some() {
        account.set_unseen();
    }
}
