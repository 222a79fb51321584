//! The folder of an instance, and the lock by which only one agent serves it.
//!
//! The agent holds the lock as long as it lives, and the kernel releases it. So a killed agent leaves nothing to
//! clean up before the next one starts. The socket file may stay behind. The agent that holds the lock may replace
//! it, and listens again if somebody removed it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use apportion_abi::paths;
use rustix::fs::{FlockOperation, flock};
use tokio::net::UnixListener;

use crate::instance::machine::MachineLock;

pub(crate) mod machine;

/// Why an instance cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstanceError {
    #[error("failed to create {path}")]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("another agent uses {0}")]
    Taken(PathBuf),
    #[error("failed to listen on {path}")]
    Listen {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// An instance that only this agent serves.
#[derive(Debug)]
pub(crate) struct ServedInstance {
    dir: PathBuf,
    /// Declared before `lock`, so that it is released first: the instance lock tells the next agent that the machine
    /// is free.
    machine: Option<MachineLock>,
    lock: File,
    is_for_all: bool,
    /// The device and inode of the socket that this agent made.
    socket: Option<(u64, u64)>,
}

impl ServedInstance {
    /// Creates the folder and takes the lock.
    pub(crate) fn take(dir: &Path) -> Result<Self, InstanceError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| InstanceError::Make { path, source }
        };
        // Under root's agent, programs of other users must reach their account. Nobody else can list the folder, and
        // the checkpoint stays the agent's alone.
        let mode = if rustix::process::geteuid().is_root() {
            0o711
        } else {
            0o700
        };
        let dir = std::path::absolute(dir).map_err(failed(dir))?;
        make_folder(&dir, mode).map_err(failed(&dir))?;
        let path = dir.join(paths::AGENT_LOCK);
        let mut options = OpenOptions::new();
        let lock = options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let lock = lock.map_err(failed(&path))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| InstanceError::Taken(dir.clone()))?;
        let accounts = dir.join(paths::ACCOUNTS);
        make_folder(&accounts, mode).map_err(failed(&accounts))?;
        Ok(Self {
            dir,
            machine: None,
            lock,
            is_for_all: false,
            socket: None,
        })
    }

    /// Keeps the machine lock as long as the folder.
    pub(crate) fn own(&mut self, machine: MachineLock) {
        self.machine = Some(machine);
    }

    /// From here on the socket is open to all users. Each request is authorized by its caller.
    pub(crate) fn open_to_all(&mut self) {
        self.is_for_all = true;
    }

    /// Whether the folder still belongs to this agent. If somebody deleted the lock file, it is created again,
    /// unless another agent did that first.
    pub(crate) fn keep_lock(&mut self) -> bool {
        self.machine.iter_mut().for_each(MachineLock::keep);
        let path = self.path(paths::AGENT_LOCK);
        if !path.exists() {
            let mut options = OpenOptions::new();
            let made = options.write(true).create_new(true).mode(0o600).open(&path);
            match made {
                Ok(lock) if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() => {
                    self.lock = lock;
                }
                // Another agent has locked the new file.
                Ok(_) => {}
                // The folder is gone or cannot be written, so no other agent has it either.
                Err(problem) if problem.kind() != io::ErrorKind::AlreadyExists => return true,
                Err(_) => {}
            }
        }
        !self.is_anothers()
    }

    /// Whether another agent created the lock file that is there now.
    pub(crate) fn is_anothers(&self) -> bool {
        let held = self
            .lock
            .metadata()
            .ok()
            .map(|found| (found.dev(), found.ino()));
        let present = identity(&self.path(paths::AGENT_LOCK));
        present.is_some() && present != held
    }

    /// The path of a file or folder of the instance.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Listens on the agent's socket, for this user and root, or for all users.
    pub(crate) fn listen(&mut self) -> Result<UnixListener, InstanceError> {
        let path = self.path(paths::AGENT_SOCKET);
        let failed = |source| InstanceError::Listen {
            path: path.clone(),
            source,
        };
        remove(&path).map_err(failed)?;
        let listener = UnixListener::bind(&path).map_err(failed)?;
        let mode = if self.is_for_all { 0o666 } else { 0o600 };
        fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(failed)?;
        self.socket = identity(&path);
        Ok(listener)
    }

    /// Whether a new client finds the socket.
    pub(crate) fn is_listed(&self) -> bool {
        self.socket.is_some() && identity(&self.path(paths::AGENT_SOCKET)) == self.socket
    }

    /// Removes the socket, so that a new client starts another agent.
    pub(crate) fn unlist(&self) {
        for name in [paths::AGENT_SOCKET, paths::METRICS_ADDRESS] {
            let _ = remove(&self.path(name));
        }
    }
}

fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_has_one_agent_and_is_free_when_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/b");
        let first = ServedInstance::take(&dir).unwrap();
        assert!(matches!(
            ServedInstance::take(&dir),
            Err(InstanceError::Taken(_))
        ));
        drop(first);
        assert!(ServedInstance::take(&dir).is_ok());
    }

    #[test]
    fn a_lock_that_was_deleted_is_made_anew_unless_another_agent_was_first() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = ServedInstance::take(folder.path()).unwrap();
        let lock = first.path(paths::AGENT_LOCK);
        fs::remove_file(&lock).unwrap();
        assert!(first.keep_lock() && first.keep_lock());
        let taken = ServedInstance::take(folder.path());
        assert!(matches!(taken, Err(InstanceError::Taken(_))));

        fs::remove_file(&lock).unwrap();
        let mut second = ServedInstance::take(folder.path()).unwrap();
        assert!(first.is_anothers() && !first.keep_lock());
        assert!(second.keep_lock() && !second.is_anothers());
    }

    #[tokio::test]
    async fn only_its_own_user_can_open_the_socket_of_an_agent_that_serves_one_user() {
        let folder = tempfile::tempdir().unwrap();
        let mut instance = ServedInstance::take(folder.path()).unwrap();
        let _listener = instance.listen().unwrap();
        let socket = fs::metadata(instance.path(paths::AGENT_SOCKET)).unwrap();
        assert_eq!(socket.permissions().mode() & 0o777, 0o600);
    }

    #[tokio::test]
    async fn the_name_of_a_killed_agents_socket_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let mut instance = ServedInstance::take(folder.path()).unwrap();
        drop(instance.listen().unwrap());
        assert!(instance.path(paths::AGENT_SOCKET).exists());
        assert!(instance.listen().is_ok());
        assert!(instance.is_listed());
        instance.unlist();
        assert!(!instance.path(paths::AGENT_SOCKET).exists());
        assert!(!instance.is_listed());
    }
}
