//! Who is served: each process from its first connection to its end.
//!
//! The end is read from a pid file descriptor and not from a closed socket: a child that inherited
//! the socket would keep it open, and a program may close descriptors that it does not know.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use apportion_sim_machine::{Machine, Peer, Pid};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// The machine and the processes that it serves.
pub(crate) struct Served {
    state: Mutex<State>,
}

struct State {
    machine: Machine,
    processes: HashMap<Pid, Arc<OwnedFd>>,
    idle_since: Instant,
}

impl Served {
    pub(crate) fn new(machine: Machine) -> Self {
        let state = State {
            machine,
            processes: HashMap::new(),
            idle_since: Instant::now(),
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// Does something with the machine.
    pub(crate) fn machine<T>(&self, step: impl FnOnce(&mut Machine) -> T) -> T {
        step(&mut self.state().machine)
    }

    /// How long no process has been served.
    pub(crate) fn idle(&self) -> Duration {
        let state = self.state();
        if state.processes.is_empty() {
            state.idle_since.elapsed()
        } else {
            Duration::ZERO
        }
    }

    /// Finds out who is at the other end of a connection and serves it from now on.
    pub(crate) fn welcome(self: &Arc<Self>, stream: &UnixStream) -> io::Result<Pid> {
        let credentials = getsockopt(stream, PeerCredentials)?;
        let pid = credentials.pid();
        if pid <= 0 {
            return Err(io::Error::other("the peer is not visible from here"));
        }
        let mut state = self.state();
        if let Some(known) = state.processes.get(&pid).cloned() {
            if !has_ended(&known, PollTimeout::ZERO) {
                return Ok(pid);
            }
            state.end(pid, &known);
        }
        let process = Arc::new(open_process(pid)?);
        state
            .machine
            .process_came(pid, peer(pid, credentials.uid()));
        state.processes.insert(pid, Arc::clone(&process));
        drop(state);
        let served = Arc::clone(self);
        thread::Builder::new()
            .name(format!("watch-{pid}"))
            .spawn(move || {
                while !has_ended(&process, PollTimeout::NONE) {}
                served.state().end(pid, &process);
            })?;
        Ok(pid)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Ends a process unless another one has its pid by now.
    fn end(&mut self, pid: Pid, process: &Arc<OwnedFd>) {
        if self
            .processes
            .get(&pid)
            .is_some_and(|known| Arc::ptr_eq(known, process))
        {
            self.processes.remove(&pid);
            self.machine.process_gone(pid);
            self.idle_since = Instant::now();
        }
    }
}

fn has_ended(process: &OwnedFd, timeout: PollTimeout) -> bool {
    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut fds, timeout), Ok(ready) if ready > 0)
}

fn open_process(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: `pidfd_open` takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
    let process = unsafe { OwnedFd::from_raw_fd(fd) };
    debug_assert!(process.as_raw_fd() >= 0);
    Ok(process)
}

fn peer(pid: Pid, uid: u32) -> Peer {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let cgroup = text
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .unwrap_or("/");
    Peer {
        cgroup: cgroup.to_owned(),
        uid,
    }
}
