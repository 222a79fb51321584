//! What this process holds of memory that several processes share, as the account counts it.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use apportion_gate::{HeldMemory, Hold};

use crate::account::MappedAccount;
use crate::driver;
use crate::process::ProcessState;

/// Whether this process shares anything.
/// Written by: offers and joins. Read by: every free. Relaxed: a thread that frees memory has seen that it is shared.
static ANY: AtomicBool = AtomicBool::new(false);

/// Records in the account that this process has released memory. This comes before its charge is taken off.
pub(super) fn leave(process: &ProcessState, memory: HeldMemory) {
    let Some(account) = process.account().filter(|_| ANY.load(Relaxed)) else {
        return;
    };
    loop {
        let taken = process.allocations.lock().shares.take(memory);
        let Some(hold) = taken else { return };
        account.leave(hold);
    }
}

/// Records a hold, or drops it if the memory is gone.
pub(super) fn keep(
    process: &ProcessState,
    account: &MappedAccount,
    memory: HeldMemory,
    key: u64,
    hold: Hold,
) {
    ANY.store(true, Relaxed);
    let current = driver::current_context().map(|context| context as u64);
    if !process.allocations.lock().share(memory, current, key, hold) {
        account.leave(hold);
    }
}
