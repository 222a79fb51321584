//! Where the machine listens.

use std::env;
use std::path::PathBuf;

/// Names the socket for everyone who shall use another than the default one.
pub const SOCKET_VARIABLE: &str = "APPORTION_SIM_SOCKET";

/// The socket to use: the one that the environment names, else the default one.
#[must_use]
pub fn socket() -> PathBuf {
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
