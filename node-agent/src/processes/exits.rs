//! Reports process exits at once, through pidfds.
//!
//! A pidfd stands for one process and never for a later one with the same pid, so kills go through it, too. On a
//! kernel without pidfds (before 5.3) the agent finds ended processes at its tick, and kills nothing.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use apportion_ledger::ProcessId;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::processes::procfs;

/// The processes that are watched.
#[derive(Debug)]
pub(crate) struct ExitWatcher {
    watched: HashMap<ProcessId, WatchedProcess>,
    ended_here: mpsc::UnboundedSender<ProcessId>,
    ended: mpsc::UnboundedReceiver<ProcessId>,
}

#[derive(Debug)]
struct WatchedProcess {
    fd: Option<Arc<AsyncFd<OwnedFd>>>,
    waiting: Option<AbortHandle>,
}

impl ExitWatcher {
    pub(crate) fn new() -> Self {
        let (ended_here, ended) = mpsc::unbounded_channel();
        Self {
            watched: HashMap::new(),
            ended_here,
            ended,
        }
    }

    /// Starts to watch a process.
    pub(crate) fn watch(&mut self, process: ProcessId) {
        if self.watched.contains_key(&process) {
            return;
        }
        let fd = open(process).map(Arc::new);
        let waiting = fd.clone().map(|fd| self.wait(process, fd));
        self.watched.insert(process, WatchedProcess { fd, waiting });
        // It may have ended before its pidfd was opened. Then no event would report it.
        if !procfs::is_live(process) {
            let _ = self.ended_here.send(process);
        }
    }

    /// Stops watching a process.
    pub(crate) fn forget(&mut self, process: ProcessId) {
        if let Some(waiting) = self
            .watched
            .remove(&process)
            .and_then(|watched| watched.waiting)
        {
            waiting.abort();
        }
    }

    /// The next watched process that ended. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> ProcessId {
        match self.ended.recv().await {
            Some(process) => process,
            None => std::future::pending().await,
        }
    }

    /// Kills exactly this process. Returns whether that worked.
    pub(crate) fn kill(&self, process: ProcessId) -> bool {
        let fd = self
            .watched
            .get(&process)
            .and_then(|watched| watched.fd.as_ref());
        fd.is_some_and(|fd| pidfd_send_signal(fd.get_ref(), Signal::KILL).is_ok())
    }

    /// The watched processes without a pidfd that have ended.
    pub(crate) fn silently_ended(&self) -> Vec<ProcessId> {
        let silent = self
            .watched
            .iter()
            .filter(|(_, watched)| watched.fd.is_none());
        silent
            .map(|(process, _)| *process)
            .filter(|process| !procfs::is_live(*process))
            .collect()
    }

    fn wait(&self, process: ProcessId, fd: Arc<AsyncFd<OwnedFd>>) -> AbortHandle {
        let ended = self.ended_here.clone();
        let waiting = tokio::spawn(async move {
            if fd.readable().await.is_ok() {
                let _ = ended.send(process);
            }
        });
        waiting.abort_handle()
    }
}

#[expect(
    deprecated,
    reason = "the successor is unsafe for types that lie about their descriptor; `OwnedFd` does not"
)]
fn open(process: ProcessId) -> Option<AsyncFd<OwnedFd>> {
    let pid = Pid::from_raw(i32::try_from(process.pid).ok()?)?;
    let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // The pid may have been reused before the pidfd was opened.
    procfs::is_live(process).then_some(())?;
    AsyncFd::with_interest(fd, Interest::READABLE).ok()
}
