//! What the agent keeps in the folder of its instance: the lock, the socket and the checkpoint.

use apportion_abi::paths;
use apportion_exit::error_chain;
use apportion_ledger::Ledger;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tracing::{debug, error, warn};

use super::checkpoint;
use crate::instance::ServedInstance;

/// The instance while it is served.
pub(super) struct InstanceFiles {
    instance: ServedInstance,
    /// Where a new listener goes if the socket was removed.
    listeners: mpsc::Sender<UnixListener>,
    boot_id: String,
    /// True while an earlier agent's allocations are restored: the checkpoint is written once, after all of them.
    is_restoring: bool,
}

impl InstanceFiles {
    pub(super) fn new(
        instance: ServedInstance,
        listeners: mpsc::Sender<UnixListener>,
        boot_id: String,
    ) -> Self {
        Self {
            instance,
            listeners,
            boot_id,
            is_restoring: true,
        }
    }

    pub(super) fn is_restoring(&self) -> bool {
        self.is_restoring
    }

    /// From here on each change is written.
    pub(super) fn end_restoring(&mut self) {
        self.is_restoring = false;
    }

    /// Whether the folder is still this agent's.
    pub(super) fn keep_lock(&mut self) -> bool {
        self.instance.keep_lock()
    }

    /// Listens again if somebody removed the socket. Otherwise clients would wait for an agent that holds the lock
    /// and that nobody can reach.
    pub(super) fn keep_socket(&mut self) {
        if self.instance.is_listed() {
            return;
        }
        match self.instance.listen() {
            Ok(listener) => {
                warn!("Socket was removed, listening again");
                let _ = self.listeners.try_send(listener);
            }
            Err(problem) => debug!(
                problem = error_chain(&problem),
                "Failed to listen again after the socket was removed"
            ),
        }
    }

    /// Removes the socket: a new client then starts another agent.
    pub(super) fn unlist(&self) {
        self.instance.unlist();
    }

    /// Writes the checkpoint. A failure is logged.
    pub(super) fn save(&self, ledger: &Ledger) {
        if let Err(problem) = self.try_save(ledger) {
            error!(problem, "Failed to write the checkpoint");
        }
    }

    /// Writes the checkpoint, unless allocations are being restored.
    pub(super) fn try_save(&self, ledger: &Ledger) -> Result<(), String> {
        if self.is_restoring {
            return Ok(());
        }
        let path = self.instance.path(paths::CHECKPOINT);
        if self.instance.is_anothers() {
            return Err(format!("another agent writes {}", path.display()));
        }
        let saved = checkpoint::save(&path, ledger, &self.boot_id);
        saved.map_err(|problem| format!("failed to write {}: {problem}", path.display()))
    }
}
