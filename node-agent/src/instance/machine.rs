//! One agent per machine: two agents would give out the same memory twice.
//!
//! The agent binds a socket in the kernel's abstract namespace, whose name stands for the driver. It needs no file,
//! has no permissions, and is gone with the process. All users of a machine share that namespace, and each simulated
//! driver has its own name. An agent that finds the name taken learns the owner's process from the kernel.
//!
//! An agent in a pod has its own network namespace, and so other abstract names. Its folder is on the host, where
//! its lock is visible.

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::time::{Duration, Instant};

use apportion_abi::paths;
use tokio::net::UnixStream;

/// The name for the machine's own driver.
const NAME: &str = "apportion-agent";
/// How long an agent of the same user may take to exit.
const LEAVES_IN: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

/// Why this agent cannot manage the machine.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MachineLockError {
    #[error("the agent of user {user} manages these GPUs (process {pid})")]
    Taken { user: u32, pid: i32 },
    #[error("root's agent manages these GPUs (folder {})", paths::DIR_ROOT)]
    Root,
    #[error("another agent manages these GPUs")]
    Busy,
    #[error("failed to reserve the GPUs for this agent")]
    Failed(#[source] io::Error),
}

impl MachineLockError {
    /// Whether this agent is root's and the other one belongs to a user.
    pub(crate) fn is_of_a_user(&self) -> bool {
        let is_users = matches!(self, Self::Taken { user, .. } if *user != 0);
        is_users && rustix::process::geteuid().is_root()
    }

    /// The hint for the person who started the agent.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::Taken { user: 0, .. } | Self::Root => {
                "ask root to start its agent with --users all, then `apportion run` uses it"
            }
            _ => {
                "wait until that agent ends, or ask root to start one for all users: `apportion-agent --users all`"
            }
        }
    }
}

/// Ensures that no other agent manages the driver, as long as this lives.
#[derive(Debug)]
pub(crate) struct MachineLock {
    /// The names for the driver and for the agent's folder.
    names: [String; 2],
    held: Vec<UnixListener>,
}

impl MachineLock {
    /// Takes the name of the simulated driver at the socket, or of the machine's own driver, for the agent of this
    /// folder.
    ///
    /// An agent that lost the folder exits as soon as it notices. This agent has taken over its ledger, so it waits
    /// only a moment for the other's exit. If that takes longer, it starts and takes the name later.
    pub(crate) async fn take(
        simulated: Option<&Path>,
        folder: &Path,
    ) -> Result<Self, MachineLockError> {
        let driver = match simulated {
            None => NAME.to_owned(),
            Some(socket) => format!("{NAME}/sim/{}", identity(socket)?),
        };
        if simulated.is_none() && is_roots() {
            return Err(MachineLockError::Root);
        }
        let folder = format!("{NAME}/folder/{}", identity(folder)?);
        let mut machine = Self {
            names: [driver, folder],
            held: Vec::new(),
        };
        let own = rustix::process::geteuid().as_raw();
        let deadline = Instant::now() + LEAVES_IN;
        while !machine.enter()? {
            let [driver, folder] = &machine.names;
            let holder_found = holder(driver).await;
            // An agent that is not visible has just exited, and one of this user may be about to.
            let may_leave = !matches!(holder_found, Some((user, _)) if user != own);
            if !may_leave || Instant::now() > deadline {
                return match holder_found {
                    // The holder is the agent that lost this folder and is about to exit.
                    Some((user, _)) if user == own && holder_found == holder(folder).await => {
                        Ok(machine)
                    }
                    Some((user, pid)) => Err(MachineLockError::Taken { user, pid }),
                    None => Err(MachineLockError::Busy),
                };
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(machine)
    }

    /// Binds the names if they are free, and closes connections that only asked who the owner is.
    pub(crate) fn keep(&mut self) {
        for listener in &self.held {
            while listener.accept().is_ok() {}
        }
        let _ = self.enter();
    }

    /// Binds both names, or none.
    fn enter(&mut self) -> Result<bool, MachineLockError> {
        if !self.held.is_empty() {
            return Ok(true);
        }
        let held: io::Result<Vec<_>> = self.names.iter().map(|name| bind(name)).collect();
        match held {
            Ok(held) => self.held = held,
            Err(problem) if problem.kind() == io::ErrorKind::AddrInUse => return Ok(false),
            Err(problem) => return Err(MachineLockError::Failed(problem)),
        }
        Ok(true)
    }
}

fn identity(path: &Path) -> Result<String, MachineLockError> {
    let found = fs::metadata(path).map_err(MachineLockError::Failed)?;
    Ok(format!("{}-{}", found.dev(), found.ino()))
}

fn bind(name: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The user and the process that own the name.
async fn holder(name: &str) -> Option<(u32, i32)> {
    let stream = UnixStream::connect(format!("\0{name}")).await.ok()?;
    let peer = stream.peer_cred().ok()?;
    Some((peer.uid(), peer.pid().unwrap_or_default()))
}

/// Whether root's agent is running while this one is not root's. Every user can read the kernel's list of locks.
fn is_roots() -> bool {
    let lock = Path::new(paths::DIR_ROOT).join(paths::AGENT_LOCK);
    let Some(found) = fs::metadata(lock).ok() else {
        return false;
    };
    let inode = format!(":{}", found.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    !rustix::process::geteuid().is_root()
        && found.uid() == 0
        && locks.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.nth(1) == Some("FLOCK") && words.any(|word| word.ends_with(&inode))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_driver_has_one_agent_and_another_driver_has_another() {
        let first = tempfile::NamedTempFile::new().unwrap();
        let second = tempfile::NamedTempFile::new().unwrap();
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let folder = |at: usize| folders[at].path();
        let mut held = MachineLock::take(Some(first.path()), folder(0))
            .await
            .unwrap();
        let other = MachineLock::take(Some(second.path()), folder(1)).await;
        assert!(other.is_ok());
        drop(other);
        for _ in 0..300 {
            held.keep();
            let own = rustix::process::geteuid().as_raw();
            let pid = i32::try_from(std::process::id()).unwrap();
            assert_eq!(holder(&held.names[0]).await, Some((own, pid)));
        }
        let refused = MachineLock::take(Some(first.path()), folder(1)).await;
        assert!(matches!(refused, Err(MachineLockError::Taken { .. })));
        // The current owner of the folder waits for the name, and gets it.
        let mut next = MachineLock::take(Some(first.path()), folder(0))
            .await
            .unwrap();
        assert!(next.held.is_empty());
        drop(held);
        next.keep();
        assert_eq!(next.held.len(), 2);
    }
}
