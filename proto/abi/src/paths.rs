//! The paths on a machine, and the environment variables that change them.
//!
//! An *instance* is one agent with its socket, checkpoint and accounts. A machine can have two: one that owns the
//! real cards, and one that owns the simulated ones, in the folder `sim` of the first. Every path is derived from the
//! instance's folder, so a test, an ordinary user and a node differ in that folder only.

/// The instance's folder. If unset, see [`DIR_ROOT`] and [`DIR_USER_PREFIX`].
pub const ENV_DIR: &str = "APPORTION_DIR";
/// The folder of this program's account, with the files `limits` and `usage`.
pub const ENV_ACCOUNT: &str = "APPORTION_ACCOUNT";
/// The folder with the preload library, the simulated driver and its daemon.
pub const ENV_LIB_DIR: &str = "APPORTION_LIB_DIR";
/// The socket of the simulated driver's daemon.
pub const ENV_SIM_SOCKET: &str = "APPORTION_SIM_SOCKET";

/// What a program whose limit is above its guarantee sees as the size of its GPU: [`INFO_GUARANTEED`] or
/// [`INFO_REACHABLE`].
pub const ENV_MEMORY_INFO: &str = "APPORTION_GPU_MEMORY_INFO";
/// Programs see what is guaranteed.
pub const INFO_GUARANTEED: &str = "guaranteed";
/// Programs see what they could have now.
pub const INFO_REACHABLE: &str = "reachable";

/// A variable that users may set, its meaning, and its default.
pub type Variable = (&'static str, &'static str, &'static str);

/// The variables, for the reference.
pub const VARIABLES: &[Variable] = &[
    (
        ENV_DIR,
        "folder of the socket, the ledger and the accounts; the simulated instance is its subfolder `sim`",
        "`/run/apportion` for root, else `$XDG_RUNTIME_DIR/apportion` or `/tmp/apportion-UID`",
    ),
    (
        ENV_LIB_DIR,
        "folder of the preloaded library and the simulated driver",
        "`../lib/apportion` beside the program",
    ),
    (
        ENV_SIM_SOCKET,
        "socket of the simulated driver; where it is set, commands use simulated GPUs",
        "`sim/driver.sock` in the folder above, and real GPUs",
    ),
    (
        ENV_ACCOUNT,
        "folder of the account of a limited program; `apportion run` sets it",
        "",
    ),
    (
        ENV_MEMORY_INFO,
        "what a program whose limit is above its guarantee sees as the size of its GPU: `guaranteed`, or `reachable`, \
         which is what it could have now; `apportion run --gpu-memory-info` sets it",
        "`reachable`",
    ),
];

/// The instance's folder for root.
pub const DIR_ROOT: &str = "/run/apportion";
/// The folder name below `$XDG_RUNTIME_DIR` for an ordinary user.
pub const DIR_NAME: &str = "apportion";
/// The instance's folder for an ordinary user without `$XDG_RUNTIME_DIR`: this and the user id.
pub const DIR_USER_PREFIX: &str = "/tmp/apportion-";
/// The folder of the simulated instance inside the instance's folder.
pub const DIR_SIM: &str = "sim";

/// Where a container finds its account. This path is checked before [`ENV_ACCOUNT`], so that a tenant cannot point
/// the library elsewhere.
pub const CONTAINER_ACCOUNT: &str = "/.apportion";

/// Where a container finds its simulated cards: the driver's socket, once under the UUID of each card.
pub const CONTAINER_SIM_CARDS: &str = "/.apportion/sim";

/// The agent's gRPC socket, in the instance's folder.
pub const AGENT_SOCKET: &str = "agent.sock";
/// Held (`flock`) by the running agent.
pub const AGENT_LOCK: &str = "agent.lock";
/// The log of an agent that was started in the background.
pub const AGENT_LOG: &str = "agent.log";
/// `host:port` at which the running agent serves metrics and health.
pub const METRICS_ADDRESS: &str = "metrics.addr";
/// The ledger's checkpoint.
pub const CHECKPOINT: &str = "checkpoint.json";
/// The context reserves that the agent has learned.
pub const RESERVES: &str = "reserves.json";
/// The file that containers get as `/etc/ld.so.preload`.
pub const PRELOAD_LIST: &str = "preload.list";
/// One folder per allocation.
pub const ACCOUNTS: &str = "accounts";
/// The simulated driver's socket, in the simulated instance's folder.
pub const SIM_SOCKET: &str = "driver.sock";

/// Limits, written by the agent, read by the program.
pub const LIMITS_FILE: &str = "limits";
/// Usage, written by the program, read by the agent.
pub const USAGE_FILE: &str = "usage";

/// Requests for more than the present allowance: in the account of an elastic share only, written by both.
pub const BURST_FILE: &str = "burst";
/// The FIFO through which a program wakes the agent after it has written such a request.
pub const WAKE_FIFO: &str = "wake";

/// The preload library, in the library folder.
pub const PRELOAD_LIBRARY: &str = "libapportion_cuda.so";
/// The simulated driver's libraries, a folder in the library folder.
pub const SIM_LIBRARIES: &str = "sim";
/// The simulated CUDA runtimes, in the folder of the simulated driver's libraries. They are preloaded, because a
/// wheel names the folder of its own runtime in its `RUNPATH`, and no search path takes precedence over that.
pub const SIM_RUNTIMES: [&str; 2] = ["runtime/libcudart.so.12", "runtime/libcudart.so.13"];
/// The simulated driver.
pub const SIM_CUDA: &str = "libcuda.so.1";
/// The simulated driver's management library.
pub const SIM_NVML: &str = "libnvidia-ml.so.1";
/// The simulated driver's daemon, in the library folder.
pub const SIM_DAEMON: &str = "apportion-simd";

#[cfg(feature = "std")]
mod found {
    use std::env;
    use std::path::PathBuf;

    /// The instance's folder for this user: `$APPORTION_DIR`, or the default for the user.
    #[must_use]
    pub fn instance_dir(uid: u32) -> PathBuf {
        if let Some(dir) = env::var_os(super::ENV_DIR).filter(|dir| !dir.is_empty()) {
            return PathBuf::from(dir);
        }
        if uid == 0 {
            return PathBuf::from(super::DIR_ROOT);
        }
        match env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
            Some(dir) => PathBuf::from(dir).join(super::DIR_NAME),
            None => PathBuf::from(format!("{}{uid}", super::DIR_USER_PREFIX)),
        }
    }

    /// The library folder: `$APPORTION_LIB_DIR`, or `../lib/apportion` beside the running program.
    #[must_use]
    pub fn lib_dir() -> Option<PathBuf> {
        if let Some(dir) = env::var_os(super::ENV_LIB_DIR).filter(|dir| !dir.is_empty()) {
            return Some(PathBuf::from(dir));
        }
        let program = env::current_exe().ok()?;
        Some(
            program
                .parent()?
                .parent()?
                .join("lib")
                .join(super::DIR_NAME),
        )
    }
}

#[cfg(feature = "std")]
pub use found::{instance_dir, lib_dir};
