//! The orders for the restore threads of client processes, and their reports.

use std::collections::HashMap;
use std::sync::Arc;

use apportion_sim_machine::{CudaRefusal, GateOrder, GateReport, Pid};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// The order of one process, and the report on it.
#[derive(Debug, Default)]
pub(crate) struct RestoreThreads {
    slots: HashMap<Pid, OrderSlot>,
}

#[derive(Debug)]
struct OrderSlot {
    order: Option<GateOrder>,
    report: Option<GateReport>,
    /// Readable when there is an order.
    signal: Arc<EventFd>,
}

impl RestoreThreads {
    /// Forgets a process that is gone.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.slots.remove(&pid);
    }

    /// Is readable when there is an order for the process.
    pub(crate) fn signal(&mut self, pid: Pid) -> Option<Arc<EventFd>> {
        if let Some(slot) = self.slots.get(&pid) {
            return Some(Arc::clone(&slot.signal));
        }
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let signal = Arc::new(EventFd::from_flags(flags).ok()?);
        let slot = OrderSlot {
            order: None,
            report: None,
            signal: Arc::clone(&signal),
        };
        self.slots.insert(pid, slot);
        Some(signal)
    }

    pub(crate) fn post(&mut self, pid: Pid, order: GateOrder) -> Result<(), CudaRefusal> {
        let slot = self.slots.get_mut(&pid).ok_or(CudaRefusal::NotSupported)?;
        (slot.order, slot.report) = (Some(order), None);
        slot.signal.write(1).map_err(|_| CudaRefusal::NotReady)?;
        Ok(())
    }

    pub(crate) fn take_order(&mut self, pid: Pid) -> Option<GateOrder> {
        let slot = self.slots.get_mut(&pid)?;
        let _ = slot.signal.read();
        slot.order.take()
    }

    pub(crate) fn report(&mut self, pid: Pid, report: GateReport) {
        if let Some(slot) = self.slots.get_mut(&pid) {
            slot.report = Some(report);
        }
    }

    pub(crate) fn take_report(&mut self, pid: Pid) -> Option<GateReport> {
        self.slots.get_mut(&pid)?.report.take()
    }
}
