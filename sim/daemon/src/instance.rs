//! One server per socket. The lock decides who serves. The kernel frees it when a server is killed, so another can take
//! over, and of two that start at once only one serves.

use std::fs::{self, DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Who serves the socket.
pub(crate) enum SocketClaim {
    Ours(SocketLease),
    ServedAlready,
}

/// The right to serve a socket.
pub(crate) struct SocketLease {
    pub(crate) listener: UnixListener,
    socket: PathBuf,
    _lock: Flock<File>,
}

/// How long to wait for a lock holder that is starting or stopping.
const PATIENCE: Duration = Duration::from_secs(5);

impl SocketLease {
    /// Becomes the server of a socket, or finds that there already is one.
    pub(crate) fn claim(socket: &Path) -> anyhow::Result<SocketClaim> {
        if let Some(parent) = socket.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(parent)
                .with_context(|| format!("failed to create {}", parent.display()))?;
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(lock) = lock(&socket.with_extension("lock"))? {
                return Self::listen(socket, lock).map(SocketClaim::Ours);
            }
            if UnixStream::connect(socket).is_ok() {
                return Ok(SocketClaim::ServedAlready);
            }
            if Instant::now() > deadline {
                bail!(
                    "{} is locked by a simulated driver that does not answer",
                    socket.display()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn listen(socket: &Path, lock: Flock<File>) -> anyhow::Result<Self> {
        match fs::remove_file(socket) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error)
                    .with_context(|| format!("failed to remove {}", socket.display()));
            }
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(socket)
            .with_context(|| format!("failed to listen on {}", socket.display()))?;
        // Like the device files of real cards: the folders and mounts above restrict access.
        fs::set_permissions(socket, Permissions::from_mode(0o666))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            socket: socket.to_owned(),
            _lock: lock,
        })
    }
}

impl Drop for SocketLease {
    /// Errors are ignored: the next server removes a stale socket.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

fn lock(path: &Path) -> anyhow::Result<Option<Flock<File>>> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("failed to open {}", path.display()))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, error)) => Err(error).with_context(|| format!("failed to lock {}", path.display())),
    }
}
