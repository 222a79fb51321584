//! Checkpoints of client processes. The server gives orders to a process's restore thread, which waits for them on a
//! connection of its own, and lets the copies take the time that they would take.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use apportion_sim_machine::{
    CheckpointState, CudaRefusal, GateOrder, GateReport, MachineReply, MachineRequest, Pid,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::processes::{MachineServer, ProcessConnection};

/// How long the restore thread of a live process may take beyond the caller's timeout.
const GRACE: Duration = Duration::from_secs(10);
/// How often a waiting caller checks that the process still lives.
const TICK: Duration = Duration::from_millis(20);

/// Answers a request that takes time. None if the client is gone.
pub(crate) fn answer(
    served: &MachineServer,
    guest: &ProcessConnection,
    stream: &UnixStream,
    request: &MachineRequest,
) -> Option<MachineReply> {
    let outcome = match *request {
        MachineRequest::AwaitOrder { thread } => {
            return await_order(served, guest, stream, thread).map(MachineReply::Order);
        }
        MachineRequest::OrderDone(report) => {
            served.threads(|threads| threads.report(guest.pid(), report));
            Ok(())
        }
        MachineRequest::ProcessLock {
            process,
            timeout_ms,
        } => lock(served, guest, process, timeout_ms),
        MachineRequest::ProcessUnlock(process) => unlock(served, guest, process),
        MachineRequest::ProcessCheckpoint(process) => checkpoint(served, guest, process),
        MachineRequest::ProcessRestore(process) => restore(served, guest, process),
        _ => Err(CudaRefusal::NotSupported),
    };
    Some(match outcome {
        Ok(()) => MachineReply::Done,
        Err(refusal) => MachineReply::Refused(refusal),
    })
}

/// Waits until there is an order for the restore thread, or its process is gone.
fn await_order(
    served: &MachineServer,
    guest: &ProcessConnection,
    stream: &UnixStream,
    thread: i32,
) -> Option<GateOrder> {
    let pid = guest.pid();
    served.machine(guest, |machine| machine.set_restore_thread(pid, thread))?;
    let signal = served.threads(|threads| threads.signal(pid))?;
    loop {
        if let Some(order) = served.threads(|threads| threads.take_order(pid)) {
            return Some(order);
        }
        let mut fds = [
            PollFd::new(stream.as_fd(), PollFlags::empty()),
            PollFd::new(signal.as_fd(), PollFlags::POLLIN),
        ];
        poll(&mut fds, PollTimeout::NONE).ok()?;
        if fds[0].any() == Some(true) {
            return None;
        }
    }
}

/// Gives an order and waits for the report. A process that ends meanwhile has no report.
fn give(
    served: &MachineServer,
    target: &Arc<OwnedFd>,
    pid: Pid,
    order: GateOrder,
    longest: Option<Duration>,
) -> Result<GateReport, CudaRefusal> {
    served.threads(|threads| threads.post(pid, order))?;
    let begun = Instant::now();
    loop {
        let report = served.wait_for_report(TICK, |threads| threads.take_report(pid));
        if let Some(report) = report {
            return Ok(report);
        }
        if has_ended(target) {
            return Err(CudaRefusal::InvalidValue);
        }
        if longest.is_some_and(|longest| begun.elapsed() > longest) {
            return Err(CudaRefusal::NotReady);
        }
    }
}

fn lock(
    served: &MachineServer,
    guest: &ProcessConnection,
    pid: Pid,
    timeout_ms: u32,
) -> Result<(), CudaRefusal> {
    let target = begin(served, guest, pid, CheckpointState::Running)?;
    let longest = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms.into()) + GRACE);
    let report = give(
        served,
        &target,
        pid,
        GateOrder::Close { timeout_ms },
        longest,
    );
    let state = match report {
        Ok(report) if report.is_done => {
            served.apply(|machine| machine.note_gate_report(pid, report));
            Some(CheckpointState::Locked)
        }
        _ => None,
    };
    served.apply(|machine| machine.end_operation(pid, state))?;
    match report {
        Ok(report) if !report.is_done => Err(CudaRefusal::NotReady),
        Ok(_) => Ok(()),
        Err(refusal) => Err(refusal),
    }
}

fn unlock(served: &MachineServer, guest: &ProcessConnection, pid: Pid) -> Result<(), CudaRefusal> {
    let target = begin(served, guest, pid, CheckpointState::Locked)?;
    let report = give(served, &target, pid, GateOrder::Open, Some(GRACE));
    let state = report.is_ok().then_some(CheckpointState::Running);
    served.apply(|machine| machine.end_operation(pid, state))?;
    report.map(drop)
}

/// Copies first, and frees the cards' memory at the end.
fn checkpoint(
    served: &MachineServer,
    guest: &ProcessConnection,
    pid: Pid,
) -> Result<(), CudaRefusal> {
    begin(served, guest, pid, CheckpointState::Locked)?;
    let bytes = served.apply(|machine| machine.bytes_to_checkpoint(pid));
    if let Ok(bytes) = bytes {
        thread::sleep(served.apply(|machine| machine.checkpoint_time(bytes)));
    }
    served.apply(|machine| {
        if bytes.is_ok() {
            machine.move_to_host(pid);
        }
        machine.end_operation(pid, bytes.is_ok().then_some(CheckpointState::Checkpointed))
    })?;
    bytes.map(drop)
}

/// Takes the cards' memory first, and copies at the end.
fn restore(served: &MachineServer, guest: &ProcessConnection, pid: Pid) -> Result<(), CudaRefusal> {
    begin(served, guest, pid, CheckpointState::Checkpointed)?;
    let bytes = served.apply(|machine| machine.move_from_host(pid));
    if let Ok(bytes) = bytes {
        thread::sleep(served.apply(|machine| machine.checkpoint_time(bytes)));
    }
    let state = bytes.is_ok().then_some(CheckpointState::Locked);
    served.apply(|machine| machine.end_operation(pid, state))?;
    bytes.map(drop)
}

/// Begins an operation, and returns the process.
fn begin(
    served: &MachineServer,
    guest: &ProcessConnection,
    pid: Pid,
    from: CheckpointState,
) -> Result<Arc<OwnedFd>, CudaRefusal> {
    let caller = guest.pid();
    served.apply(|machine| machine.begin_operation(caller, pid, from))?;
    served.process(pid).ok_or(CudaRefusal::InvalidValue)
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut fds, PollTimeout::ZERO), Ok(ready) if ready > 0)
}
