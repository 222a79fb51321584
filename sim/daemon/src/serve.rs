//! The server loop: accept connections until a signal or until idle for too long. Each connection has a thread, since a
//! rule may delay one request without delaying the others.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use anyhow::Context;
use apportion_sim_client::{receive, send};
use apportion_sim_machine::{
    CallAdmission, CudaRefusal, Machine, MachineAnswer, MachineCall, MachineReply, MachineRequest,
    Pid,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::checkpoints;
use crate::instance::SocketLease;
use crate::processes::{MachineServer, ProcessConnection};

/// How often an idle server checks the time, in milliseconds.
const TICK: u16 = 200;

/// Serves until a signal, or until no client has been alive for `idle_exit`.
pub(crate) fn serve(
    instance: &SocketLease,
    machine: Machine,
    idle_exit: Option<Duration>,
) -> anyhow::Result<()> {
    let signals = signals().context("failed to take over signals")?;
    let served = Arc::new(MachineServer::new(machine));
    loop {
        let mut fds = [
            PollFd::new(instance.listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        poll(&mut fds, PollTimeout::from(TICK)).context("failed to wait for clients")?;
        if fds[1].any() == Some(true) {
            return Ok(());
        }
        match instance.listener.accept() {
            Ok((stream, _)) => attend(&served, stream),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                return Err(error).context("failed to accept a client");
            }
            Err(_) if idle_exit.is_some_and(|limit| served.idle() >= limit) => return Ok(()),
            Err(_) => {}
        }
    }
}

fn signals() -> nix::Result<SignalFd> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)
}

/// Serves a connection. A peer that leaves before it is accepted gets no answer.
fn attend(served: &Arc<MachineServer>, stream: UnixStream) {
    let Ok(()) = stream.set_nonblocking(false) else {
        return;
    };
    let Ok(guest) = served.welcome(&stream) else {
        return;
    };
    let served = Arc::clone(served);
    let spawned = thread::Builder::new()
        .name(format!("serve-{}", guest.pid()))
        .spawn(move || {
            let _ = converse(&served, &guest, stream);
            served.farewell(&guest);
        });
    if let Err(error) = spawned {
        eprintln!("apportion-simd: failed to start a thread: {error}");
    }
}

fn converse(
    served: &MachineServer,
    guest: &ProcessConnection,
    mut stream: UnixStream,
) -> io::Result<()> {
    while let Some(call) = receive(&mut stream)? {
        let Some(answer) = answer(served, guest, &stream, call) else {
            return Ok(());
        };
        send(&mut stream, &answer)?;
    }
    Ok(())
}

/// The answer to a call. None for a process that is gone, whose last request may still be on its way.
fn answer(
    served: &MachineServer,
    guest: &ProcessConnection,
    stream: &UnixStream,
    mut call: MachineCall,
) -> Option<MachineAnswer> {
    let admission = match &call.function {
        Some(function) => served.machine(guest, |machine| machine.admit(function))?,
        None => CallAdmission::default(),
    };
    if !admission.delay.is_zero() {
        thread::sleep(admission.delay);
    }
    match admission.error {
        Some(code) => Some(MachineAnswer {
            reply: MachineReply::Refused(CudaRefusal::Code(code)),
            gone: Vec::new(),
        }),
        None => {
            let named = named_process(&mut call.request);
            if let Some(named) = named {
                // An unknown pid stays as it is: the machine refuses it.
                *named = served.named(guest.pid(), *named).unwrap_or(NO_PROCESS);
            }
            if takes_time(&call.request) {
                let reply = checkpoints::answer(served, guest, stream, &call.request)?;
                return Some(MachineAnswer {
                    reply,
                    gone: Vec::new(),
                });
            }
            let made = match call.request {
                MachineRequest::HandleExport { handle, descriptor } => Some((handle, descriptor)),
                _ => None,
            };
            let answer =
                served.machine(guest, |machine| machine.apply(guest.pid(), call.request))?;
            if let Some((handle, descriptor)) = made
                && answer.reply == MachineReply::Done
            {
                served.watch_descriptor(guest, handle, descriptor);
            }
            Some(answer)
        }
    }
}

/// No process has this pid.
const NO_PROCESS: Pid = 0;

/// The process that a request is about, unless it is about the caller.
fn named_process(request: &mut MachineRequest) -> Option<&mut Pid> {
    match request {
        MachineRequest::ProcessState(process)
        | MachineRequest::RestoreThread(process)
        | MachineRequest::HostCopies(process)
        | MachineRequest::ProcessLock { process, .. }
        | MachineRequest::ProcessCheckpoint(process)
        | MachineRequest::ProcessRestore(process)
        | MachineRequest::ProcessUnlock(process) => Some(process),
        _ => None,
    }
}

/// Whether a request must not hold the machine while it is carried out.
fn takes_time(request: &MachineRequest) -> bool {
    matches!(
        request,
        MachineRequest::AwaitOrder { .. }
            | MachineRequest::OrderDone(_)
            | MachineRequest::ProcessLock { .. }
            | MachineRequest::ProcessCheckpoint(_)
            | MachineRequest::ProcessRestore(_)
            | MachineRequest::ProcessUnlock(_)
    )
}
