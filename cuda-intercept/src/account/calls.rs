//! Calls of the driver, in the account of a share that sleeps when it is idle.

use core::sync::atomic::AtomicU64;

use apportion_abi::account::SlotOwner;

use super::MappedAccount;
use super::path::PathBuffer;
use super::wake::wake_agent;

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
