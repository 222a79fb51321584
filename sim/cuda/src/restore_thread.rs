//! The restore thread: it carries out the orders of the machine that concern a checkpoint of this process.

use std::thread;
use std::time::Duration;

use apportion_sim_machine::{GateOrder, GateReport, MachineReply, MachineRequest};

use crate::call_gate;
use crate::error::CudaError;

/// Sends a request to the machine.
pub(crate) type MachineAsker = fn(MachineRequest) -> Result<MachineReply, CudaError>;

/// Starts the thread that carries out the machine's orders. Without it, the process cannot be checkpointed.
pub(crate) fn start(ask: MachineAsker, has_managed_memory: fn() -> bool) {
    // SAFETY: a zeroed set is valid for `sigfillset`, which writes all of it.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = all;
    // SAFETY: the set lives for the call.
    unsafe { libc::sigfillset(&raw mut all) };
    // The program's signals must not be handled in a thread that it does not know.
    // SAFETY: both sets live for the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let _ = thread::Builder::new()
        .name("cuda-restore".to_owned())
        .spawn(move || carry_out_orders(ask, has_managed_memory));
    // SAFETY: the set was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
}

fn carry_out_orders(ask: MachineAsker, has_managed_memory: fn() -> bool) {
    // SAFETY: `gettid` has no preconditions and cannot fail.
    let thread = unsafe { libc::gettid() };
    while let Ok(MachineReply::Order(order)) = ask(MachineRequest::AwaitOrder { thread }) {
        let is_done = match order {
            GateOrder::Close { timeout_ms: 0 } => call_gate::close(None),
            GateOrder::Close { timeout_ms } => {
                call_gate::close(Some(Duration::from_millis(timeout_ms.into())))
            }
            GateOrder::Open => {
                call_gate::open();
                true
            }
        };
        let has_managed = is_done && has_managed_memory();
        let report = GateReport {
            is_done,
            has_managed,
        };
        if ask(MachineRequest::OrderDone(report)).is_err() {
            return;
        }
    }
}
