//! Whether the calls of this process are published (see [`crate::calls`]).

use core::ops::ControlFlow;
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};

use crate::account::MappedAccount;
use crate::elf;
use crate::table::DriverLibrary;

/// The epoch of a process whose calls nobody asks about.
static NOBODY: AtomicU64 = AtomicU64::new(0);

/// The word of the epoch.
/// Written by: the call that creates the process's state. Read by: every call. Release/Acquire.
pub(crate) static EPOCH: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const NOBODY).cast_mut());

/// Whether somebody has looked for libraries that are linked with the driver.
/// Written by: the first look. Read by: the next process state, which may be that of a child. Relaxed.
static HAS_LOOKED: AtomicBool = AtomicBool::new(false);

/// Begins to publish calls, if the share sleeps when it is idle.
pub(crate) fn watch(account: &'static MappedAccount) {
    let Some(epoch) = account.call_epoch() else {
        return;
    };
    EPOCH.store(ptr::from_ref(epoch).cast_mut(), Release);
    if !HAS_LOOKED.swap(true, Relaxed) {
        report_linked(account);
    }
}

/// Tells the agent if a library is linked with the driver.
pub(crate) fn report_linked(account: &MappedAccount) {
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
