//! The instance that a command uses: its folder, and the libraries of this installation.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apportion_abi::paths;
use apportion_exit::CommandFailure;
use nix::unistd::{AccessFlags, Uid, access};

use crate::options::ConnectionOptions;

/// An instance, either the machine's or the simulated one.
#[derive(Debug)]
pub(crate) struct TargetInstance {
    /// The folder with the sockets, the accounts and the log.
    pub(crate) dir: PathBuf,
    /// Whether its cards are simulated.
    pub(crate) is_simulated: bool,
    /// The socket of the simulated driver.
    pub(crate) driver_socket: PathBuf,
    /// Whether its agent belongs to root and serves all users. Then nothing is created in its folder, and no agent is
    /// started.
    pub(crate) is_shared: bool,
    /// How long each call to the agent may take.
    pub(crate) patience: Duration,
    /// The folder with the libraries of this installation.
    lib: PathBuf,
}

impl TargetInstance {
    /// The instance that the options and the environment name. Nothing is accessed yet.
    ///
    /// A program on simulated cards (`apportion sim -- bash`) continues to use them.
    pub(crate) fn new(address: ConnectionOptions) -> Result<Self, CommandFailure> {
        let driver_socket = std::env::var_os(paths::ENV_SIM_SOCKET).filter(|path| !path.is_empty());
        let is_simulated = address.sim || driver_socket.is_some();
        let mut dir = paths::instance_dir(Uid::effective().as_raw());
        if is_simulated {
            dir.push(paths::DIR_SIM);
        }
        let is_named = std::env::var_os(paths::ENV_DIR).is_some_and(|dir| !dir.is_empty());
        let roots = PathBuf::from(paths::DIR_ROOT);
        if !is_named && !is_simulated && is_shared(&roots) {
            dir = roots;
        }
        let dir = std::path::absolute(&dir).map_err(|e| {
            CommandFailure::usage(format!("{} is not a folder", paths::ENV_DIR)).because(e)
        })?;
        let is_shared = is_shared(&dir);
        let lib = paths::lib_dir().ok_or_else(|| {
            let hint = format!("set {} to the folder of its libraries", paths::ENV_LIB_DIR);
            CommandFailure::new("cannot tell where Apportion is installed").hint(hint)
        })?;
        let driver_socket =
            driver_socket.map_or_else(|| dir.join(paths::SIM_SOCKET), PathBuf::from);
        Ok(Self {
            dir,
            is_simulated,
            driver_socket,
            is_shared,
            patience: Duration::from_secs(address.timeout),
            lib,
        })
    }

    /// Whether a program started here can open the device files of this many cards. CUDA does not count cards that it
    /// cannot open.
    pub(crate) fn sees_cards(&self, count: usize) -> bool {
        if self.is_simulated {
            return true;
        }
        let Ok(devices) = fs::read_dir("/dev") else {
            return false;
        };
        let cards = devices.flatten().filter(|entry| {
            entry.file_name().to_str().is_some_and(|name| {
                let number = name.strip_prefix("nvidia");
                number.is_some_and(|number| number.parse::<u32>().is_ok())
            })
        });
        let usable = AccessFlags::R_OK | AccessFlags::W_OK;
        cards
            .filter(|entry| access(&entry.path(), usable).is_ok())
            .count()
            == count
    }

    /// Creates the folder if necessary, and checks that only this user can access it.
    pub(crate) fn prepare(&self) -> Result<(), CommandFailure> {
        if self.is_shared {
            return Ok(());
        }
        let failed = |what: &str| CommandFailure::new(format!("{what} {}", self.dir.display()));
        let hint = || format!("set {} to a folder that you own", paths::ENV_DIR);
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder
            .create(&self.dir)
            .map_err(|e| failed("failed to create").because(e).hint(hint()))?;
        let found = fs::metadata(&self.dir).map_err(|e| failed("failed to read").because(e))?;
        if found.uid() != Uid::effective().as_raw() {
            return Err(failed("another user owns").hint(hint()));
        }
        Ok(())
    }

    pub(crate) fn agent_socket(&self) -> PathBuf {
        self.dir.join(paths::AGENT_SOCKET)
    }

    /// The log of an agent that was started in the background.
    pub(crate) fn agent_log(&self) -> PathBuf {
        self.dir.join(paths::AGENT_LOG)
    }

    /// A file of the library folder, if it is there.
    pub(crate) fn library(&self, name: &str) -> Result<PathBuf, CommandFailure> {
        let file = self.lib.join(name);
        if file.exists() {
            return Ok(file);
        }
        let hint = format!(
            "reinstall Apportion, or set {} to the folder of its libraries",
            paths::ENV_LIB_DIR
        );
        Err(CommandFailure::new(format!("{} is missing", file.display())).hint(hint))
    }

    /// The agent's program, beside this one.
    pub(crate) fn agent_program(&self) -> Result<PathBuf, CommandFailure> {
        let own = std::env::current_exe().map_err(|e| {
            CommandFailure::new("cannot tell where Apportion is installed").because(e)
        })?;
        let program = own.with_file_name("apportion-agent");
        if program.exists() {
            return Ok(program);
        }
        Err(
            CommandFailure::new(format!("{} is missing", program.display()))
                .hint("reinstall Apportion"),
        )
    }

    /// The environment that programs of this instance need to find its driver.
    pub(crate) fn driver_env(&self) -> Result<Vec<(&'static str, OsString)>, CommandFailure> {
        if !self.is_simulated {
            return Ok(Vec::new());
        }
        let libraries = self.library(paths::SIM_LIBRARIES)?;
        let runtimes = paths::SIM_RUNTIMES.map(|name| libraries.join(name));
        Ok(vec![
            (
                "LD_LIBRARY_PATH",
                in_front(&[libraries], std::env::var_os("LD_LIBRARY_PATH")),
            ),
            (
                "LD_PRELOAD",
                in_front(&runtimes, std::env::var_os("LD_PRELOAD")),
            ),
            (paths::ENV_SIM_SOCKET, self.driver_socket.clone().into()),
        ])
    }
}

/// Whether root's agent listens in the folder for all users, and this user is not root.
fn is_shared(dir: &Path) -> bool {
    let socket = dir.join(paths::AGENT_SOCKET);
    let is_roots = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.uid() == 0);
    !Uid::effective().is_root()
        && is_roots(dir)
        && is_roots(&socket)
        && UnixStream::connect(socket).is_ok()
}

/// `paths`, followed by the entries of `list` that are not among them.
fn in_front(paths: &[PathBuf], list: Option<OsString>) -> OsString {
    let rest = list.unwrap_or_default();
    let rest =
        std::env::split_paths(&rest).filter(|path| !paths.contains(path) && path != Path::new(""));
    let all: Vec<PathBuf> = paths.iter().cloned().chain(rest).collect();
    std::env::join_paths(all).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulated_libraries_come_first_and_once() {
        let folder = [PathBuf::from("/lib/sim")];
        assert_eq!(
            in_front(&folder, Some("/a:/lib/sim:/b".into())),
            "/lib/sim:/a:/b"
        );
        assert_eq!(in_front(&folder, None), "/lib/sim");
    }
}
