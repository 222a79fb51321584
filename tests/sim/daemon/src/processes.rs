//! Who is served: each process from its first connection to its end.
//!
//! It ends when it is dead and nobody has its connections. A child that was forked and has not started
//! another program has inherited them, as it would inherit the real driver's descriptors, and keeps the
//! memory of its dead parent while it lives; what it can't do is use it. Both are looked for before every
//! request, so that nobody is ever given memory while a dead process still counts. A process that lives on
//! without its connections has become another program, and starts anew.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use apportion_sim_machine::{Machine, PeerIdentity, Pid};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::descriptors::OpenDescriptors;

/// The machine and the processes that it serves.
pub(crate) struct MachineServer {
    state: Mutex<ServerState>,
}

struct ServerState {
    machine: Machine,
    processes: HashMap<Pid, ClientProcess>,
    /// Processes that were served and live, connected or not: one that became another program may yet come
    /// back, so the machine stays for it.
    watched: usize,
    idle_since: Instant,
    connections: u64,
    descriptors: OpenDescriptors,
}

/// A process that is served, and its connections by number.
struct ClientProcess {
    process: Arc<OwnedFd>,
    has_ended: bool,
    connections: HashMap<u64, UnixStream>,
}

impl ClientProcess {
    /// Whether nobody has the other end of any of its connections.
    fn is_left(&self) -> bool {
        self.connections.values().all(is_hung_up)
    }
}

/// One connection of a process that is served.
#[derive(Clone)]
pub(crate) struct ProcessConnection {
    pid: Pid,
    process: Arc<OwnedFd>,
    connection: u64,
}

impl ProcessConnection {
    /// The process, as the host sees it.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }
}

impl MachineServer {
    pub(crate) fn new(machine: Machine) -> Self {
        let state = ServerState {
            machine,
            processes: HashMap::new(),
            watched: 0,
            idle_since: Instant::now(),
            connections: 0,
            descriptors: OpenDescriptors::default(),
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// Does something with the machine on behalf of a guest; nothing for one that is gone.
    pub(crate) fn machine<T>(
        &self,
        guest: &ProcessConnection,
        step: impl FnOnce(&mut Machine) -> T,
    ) -> Option<T> {
        let mut state = self.state();
        state.bury();
        let ServerState {
            machine,
            descriptors,
            ..
        } = &mut *state;
        descriptors.look(|handle| machine.descriptor_closed(handle));
        state.hears(guest).then(|| step(&mut state.machine))
    }

    /// Watches a descriptor that a guest made of a handle's memory.
    pub(crate) fn watch_descriptor(&self, guest: &ProcessConnection, handle: u64, descriptor: i32) {
        let mut state = self.state();
        if !state.descriptors.enter(guest.pid, handle, descriptor) {
            state.machine.descriptor_closed(handle);
        }
    }

    /// How long no process that was ever served has lived.
    pub(crate) fn idle(&self) -> Duration {
        let state = self.state();
        if state.watched == 0 {
            state.idle_since.elapsed()
        } else {
            Duration::ZERO
        }
    }

    /// Finds out who is at the other end of a connection and serves it from now on.
    pub(crate) fn welcome(self: &Arc<Self>, stream: &UnixStream) -> io::Result<ProcessConnection> {
        let credentials = getsockopt(stream, PeerCredentials)?;
        let pid = credentials.pid();
        if pid <= 0 {
            return Err(io::Error::other("the peer is not visible from here"));
        }
        let copy = stream.try_clone()?;
        let mut state = self.state();
        state.bury();
        state.connections += 1;
        let connection = state.connections;
        // A program that became another one left its connections when it did, and with them what it had;
        // whoever reads from them may not have been told yet.
        match state.processes.get_mut(&pid) {
            Some(client) if !client.has_ended && !client.is_left() => {
                client.connections.insert(connection, copy);
                let process = Arc::clone(&client.process);
                return Ok(ProcessConnection {
                    pid,
                    process,
                    connection,
                });
            }
            // The machine knows processes by their pids, so it can't keep what an earlier one left.
            Some(_) => state.end(pid),
            None => {}
        }
        let process = Arc::new(open_process(pid)?);
        state
            .machine
            .process_came(pid, peer(pid, credentials.uid()));
        let client = ClientProcess {
            process: Arc::clone(&process),
            has_ended: false,
            connections: HashMap::from([(connection, copy)]),
        };
        state.processes.insert(pid, client);
        drop(state);
        let guest = ProcessConnection {
            pid,
            process,
            connection,
        };
        self.watch(guest.clone())?;
        Ok(guest)
    }

    /// Waits in the background for the end of a process: nobody might ask for long.
    fn watch(self: &Arc<Self>, guest: ProcessConnection) -> io::Result<()> {
        let served = Arc::clone(self);
        let name = format!("watch-{}", guest.pid);
        let watch = move || {
            while !has_ended(&guest.process) {}
            let mut state = served.state();
            state.bury();
            state.watched -= 1;
            state.idle_since = Instant::now();
        };
        self.state().watched += 1;
        let watcher = thread::Builder::new().name(name).spawn(watch);
        if watcher.is_err() {
            self.state().watched -= 1;
        }
        watcher.map(drop)
    }

    /// Ends a connection.
    pub(crate) fn farewell(&self, guest: &ProcessConnection) {
        let mut state = self.state();
        if !state.serves(guest) {
            return;
        }
        let Some(client) = state.processes.get_mut(&guest.pid) else {
            return;
        };
        client.connections.remove(&guest.connection);
        if client.connections.is_empty() {
            state.end(guest.pid);
        }
    }

    fn state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerState {
    fn serves(&self, guest: &ProcessConnection) -> bool {
        let client = self.processes.get(&guest.pid);
        client.is_some_and(|client| Arc::ptr_eq(&client.process, &guest.process))
    }

    /// Whether a guest can ask for something: what a dead one asked for last may still be on the way.
    fn hears(&self, guest: &ProcessConnection) -> bool {
        let client = self.processes.get(&guest.pid);
        self.serves(guest) && client.is_some_and(|client| !client.has_ended)
    }

    fn end(&mut self, pid: Pid) {
        self.processes.remove(&pid);
        self.machine.process_gone(pid);
    }

    /// Ends all processes that are dead by now and left their connections to nobody.
    fn bury(&mut self) {
        let pids: Vec<Pid> = self.processes.keys().copied().collect();
        let ends = self.processes.values();
        let ends = ends.map(|client| PollFd::new(client.process.as_fd(), PollFlags::POLLIN));
        let mut ends: Vec<PollFd> = ends.collect();
        if !matches!(poll(&mut ends, PollTimeout::ZERO), Ok(ready) if ready > 0) {
            return;
        }
        let ended = ends.iter().map(|end| end.any() == Some(true));
        let dead: Vec<Pid> = pids
            .into_iter()
            .zip(ended)
            .filter_map(|(pid, ended)| ended.then_some(pid))
            .collect();
        for pid in dead {
            let client = self.processes.get_mut(&pid);
            let is_over = client.is_none_or(|client| {
                client.has_ended = true;
                client.is_left()
            });
            if is_over {
                self.end(pid);
            }
        }
    }
}

/// Whether nobody has the other end of a connection.
fn is_hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    let polled = poll(&mut fds, PollTimeout::ZERO);
    let told = fds[0].revents().unwrap_or(PollFlags::empty());
    polled.is_ok() && told.contains(PollFlags::POLLHUP)
}

/// Waits for the end of a process; false if the wait was interrupted.
fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut fds, PollTimeout::NONE), Ok(ready) if ready > 0)
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

fn peer(pid: Pid, uid: u32) -> PeerIdentity {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let cgroup = text
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .unwrap_or("/");
    PeerIdentity {
        cgroup: cgroup.to_owned(),
        uid,
    }
}
