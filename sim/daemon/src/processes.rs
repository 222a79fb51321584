//! The client processes, from the first connection of each to its end.
//!
//! A client ends when its process is dead and nobody holds its connections. A forked child that has not called `exec`
//! inherits the connections, as it would inherit the real driver's descriptors. While it lives, it keeps its dead
//! parent's memory but cannot use it. Both conditions are checked before every request, so that no memory is given out
//! while a dead process still counts. A live process without its old connections has called `exec` and starts anew.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use apportion_sim_machine::{Machine, PeerIdentity, Pid};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::descriptors::OpenDescriptors;
use crate::restore_threads::RestoreThreads;

/// The machine and the processes that it serves.
pub(crate) struct MachineServer {
    state: Mutex<ServerState>,
    /// A restore thread has reported.
    reported: Condvar,
}

struct ServerState {
    machine: Machine,
    processes: HashMap<Pid, ClientProcess>,
    /// Live processes that have connected, still connected or not. One that called `exec` may connect again, so the
    /// machine keeps running for it.
    watched: usize,
    idle_since: Instant,
    connections: u64,
    descriptors: OpenDescriptors,
    threads: RestoreThreads,
}

/// A client process, and its connections by number.
struct ClientProcess {
    process: Arc<OwnedFd>,
    has_ended: bool,
    connections: HashMap<u64, UnixStream>,
}

impl ClientProcess {
    /// Whether all its connections are closed at the other end.
    fn is_left(&self) -> bool {
        self.connections.values().all(is_hung_up)
    }
}

/// One connection of a client process.
#[derive(Clone)]
pub(crate) struct ProcessConnection {
    pid: Pid,
    process: Arc<OwnedFd>,
    connection: u64,
}

impl ProcessConnection {
    /// The process id on the host.
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
            threads: RestoreThreads::default(),
        };
        Self {
            state: Mutex::new(state),
            reported: Condvar::new(),
        }
    }

    /// Runs `step` on the machine for a client. None if the client is gone.
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
        descriptors.scan(|handle| machine.descriptor_closed(handle));
        state.is_connected(guest).then(|| step(&mut state.machine))
    }

    /// Runs `step` on the machine after everything that dead clients held has come back.
    pub(crate) fn apply<T>(&self, step: impl FnOnce(&mut Machine) -> T) -> T {
        let mut state = self.state();
        state.bury();
        step(&mut state.machine)
    }

    /// Runs `step` on the orders for restore threads. A step that reports wakes who waits for it.
    pub(crate) fn threads<T>(&self, step: impl FnOnce(&mut RestoreThreads) -> T) -> T {
        let result = step(&mut self.state().threads);
        self.reported.notify_all();
        result
    }

    /// Waits at most `longest` for a report.
    pub(crate) fn wait_for_report<T>(
        &self,
        longest: Duration,
        mut take: impl FnMut(&mut RestoreThreads) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.state();
        if let Some(report) = take(&mut state.threads) {
            return Some(report);
        }
        let waited = self.reported.wait_timeout(state, longest);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        take(&mut state.threads)
    }

    /// A client process.
    pub(crate) fn process(&self, pid: Pid) -> Option<Arc<OwnedFd>> {
        let state = self.state();
        let client = state.processes.get(&pid)?;
        Some(Arc::clone(&client.process))
    }

    /// The client that a caller names by a pid of its own PID namespace.
    pub(crate) fn named(&self, caller: Pid, pid: Pid) -> Option<Pid> {
        // Without CAP_SYS_PTRACE, as in a container, the namespaces of others cannot be read.
        if pids_by_namespace(caller)?.len() == 1 {
            return Some(pid);
        }
        let namespace = pid_namespace(caller)?;
        let state = self.state();
        let mut clients = state.processes.keys().copied();
        clients.find(|client| {
            pid_namespace(*client).as_ref() == Some(&namespace)
                && innermost_pid(*client) == Some(pid)
        })
    }

    /// Watches a descriptor that a client made of a handle's memory.
    pub(crate) fn watch_descriptor(&self, guest: &ProcessConnection, handle: u64, descriptor: i32) {
        let mut state = self.state();
        if !state.descriptors.enter(guest.pid, handle, descriptor) {
            state.machine.descriptor_closed(handle);
        }
    }

    /// How long no client has been alive.
    pub(crate) fn idle(&self) -> Duration {
        let state = self.state();
        if state.watched == 0 {
            state.idle_since.elapsed()
        } else {
            Duration::ZERO
        }
    }

    /// Identifies the process at the other end of a connection and accepts it as a client.
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
        // A process that called `exec` has closed its old connections and lost what it had. The threads that read
        // from them may not have noticed yet.
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
            // The machine identifies processes by pid, so an earlier process with this pid must end first.
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

    /// Waits in the background for the end of a process, since no request may come for a long time.
    fn watch(self: &Arc<Self>, guest: ProcessConnection) -> io::Result<()> {
        let served = Arc::clone(self);
        let name = format!("watch-{}", guest.pid);
        self.state().watched += 1;
        let watcher = thread::Builder::new().name(name).spawn(move || {
            while !has_ended(&guest.process) {}
            let mut state = served.state();
            state.bury();
            state.watched -= 1;
            state.idle_since = Instant::now();
        });
        if watcher.is_err() {
            self.state().watched -= 1;
        }
        watcher.map(drop)
    }

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

    /// Whether a client can still make requests. A dead client's last request may still be on its way.
    fn is_connected(&self, guest: &ProcessConnection) -> bool {
        let client = self.processes.get(&guest.pid);
        self.serves(guest) && client.is_some_and(|client| !client.has_ended)
    }

    fn end(&mut self, pid: Pid) {
        self.processes.remove(&pid);
        self.threads.forget(pid);
        self.machine.process_gone(pid);
    }

    /// Ends all clients that are dead and whose connections nobody holds.
    fn bury(&mut self) {
        let pids: Vec<Pid> = self.processes.keys().copied().collect();
        let ends = self
            .processes
            .values()
            .map(|client| PollFd::new(client.process.as_fd(), PollFlags::POLLIN));
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

/// Whether the other end of a connection is closed.
fn is_hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    let polled = poll(&mut fds, PollTimeout::ZERO);
    let events = fds[0].revents().unwrap_or(PollFlags::empty());
    polled.is_ok() && events.contains(PollFlags::POLLHUP)
}

/// Waits for the end of a process. False if the wait was interrupted.
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
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
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

/// The PID namespace of a process, as the kernel names it.
fn pid_namespace(pid: Pid) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// A process's pid in its own PID namespace.
fn innermost_pid(pid: Pid) -> Option<Pid> {
    pids_by_namespace(pid)?.pop()
}

/// A process's pids in the PID namespaces from this one to its own.
fn pids_by_namespace(pid: Pid) -> Option<Vec<Pid>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let pids = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    let pids = pids.split_whitespace().map(str::parse);
    pids.collect::<Result<_, _>>().ok()
}
