//! Calls of the driver, in the account of a share that sleeps when it is idle.

use core::ffi::CStr;
use core::sync::atomic::AtomicU64;

use apportion_abi::account::{LimitsMap, SlotOwner};
use apportion_abi::paths;

use super::MappedAccount;
use super::liveness::DescriptorGuard;
use super::path::PathBuffer;

impl MappedAccount {
    /// The word of the epoch, if the agent asks about calls.
    pub(crate) fn call_epoch(&self) -> Option<&AtomicU64> {
        let calls = self.limits.calls();
        (calls.epoch() != 0).then(|| calls.epoch_word())
    }

    /// Publishes that this process calls the driver, and wakes the agent if the share sleeps until then.
    pub(crate) fn publish_call(&self, epoch: u64) {
        let slot = self.slot.try_lock().and_then(|record| record.owner);
        self.usage.calls().publish(slot.map(SlotOwner::slot), epoch);
        if self.limits.calls().wakes()
            && let Some(fifo) = self.fifo.as_ref().and_then(PathBuffer::get)
        {
            wake_agent(fifo);
        }
    }

    /// Says that this process may call the driver unseen.
    pub(crate) fn set_unseen(&self) {
        self.usage.calls().set_unseen();
    }
}

/// The path of the FIFO, if the agent asks about calls.
pub(super) fn fifo(folder: &[u8], limits: &LimitsMap) -> Option<PathBuffer> {
    let mut path = PathBuffer::default();
    (limits.calls().epoch() != 0).then_some(())?;
    path.join(folder, paths::WAKE_FIFO)?;
    Some(path)
}

/// Wakes the agent. The FIFO is opened for both directions: then opening waits for nobody, and writing raises no signal
/// when no agent has it open. If it is full, the agent has been woken already.
pub(super) fn wake_agent(path: &CStr) {
    let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_NOFOLLOW;
    if let Some(fifo) = DescriptorGuard::open_with(path, flags) {
        fifo.write_byte();
    }
}
