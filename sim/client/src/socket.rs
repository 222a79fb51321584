//! The machine's socket, and which of its cards this process may use.
//!
//! A container gets the socket mounted once for each of its cards, under the card's UUID, like the device files of real
//! cards. These mounts decide, whatever the environment says.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Overrides the default socket.
pub const SOCKET_VARIABLE: &str = "APPORTION_SIM_SOCKET";

/// The folder of a container's cards.
const CONTAINER_CARDS: &str = "/.apportion/sim";

/// The UUIDs of the cards that this container was given. None outside of containers.
#[must_use]
pub fn given_cards() -> Option<Vec<String>> {
    let folder = fs::read_dir(CONTAINER_CARDS).ok()?;
    let names = folder.flatten().map(|entry| entry.file_name());
    Some(names.filter_map(|name| name.into_string().ok()).collect())
}

/// The socket to use: the container's own, else that of the environment, else the default one.
#[must_use]
pub fn socket() -> PathBuf {
    if let Some(card) = given_cards().and_then(|cards| cards.into_iter().next()) {
        return Path::new(CONTAINER_CARDS).join(card);
    }
    match env::var_os(SOCKET_VARIABLE) {
        Some(path) if !path.is_empty() => path.into(),
        _ => default_socket(),
    }
}

/// The socket of the user's default simulated instance.
#[must_use]
pub fn default_socket() -> PathBuf {
    instance().join("sim/driver.sock")
}

fn instance() -> PathBuf {
    let set = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(instance) = set("APPORTION_DIR") {
        return instance;
    }
    // SAFETY: `geteuid` has no preconditions and cannot fail.
    let user = unsafe { libc::geteuid() };
    if user == 0 {
        return PathBuf::from("/run/apportion");
    }
    match set("XDG_RUNTIME_DIR") {
        Some(runtime) => runtime.join("apportion"),
        None => PathBuf::from(format!("/tmp/apportion-{user}")),
    }
}
