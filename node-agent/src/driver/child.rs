//! Children of the agent that use CUDA. The agent itself makes no CUDA call: a context cannot be released completely, and
//! the driver may hang or crash.
//!
//! A child is the agent's own program with another command. Its standard input and output are pipes. It exits when its
//! input is closed, so it cannot outlive the agent.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;

use apportion_abi::paths;
use tokio::process::Command;

/// The command line of a child with this command, for the driver of this NVML.
pub(super) fn command(name: &str, nvml: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg(name)
        // A limit of the agent's own would distort what the child does.
        .env_remove("LD_PRELOAD")
        .env_remove(paths::ENV_ACCOUNT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    // The driver's two libraries belong together, so the folder of the NVML in use comes first.
    if let Some(folder) = nvml.parent().filter(|folder| folder.is_absolute()) {
        let mut path = folder.as_os_str().to_owned();
        if let Some(inherited) =
            std::env::var_os("LD_LIBRARY_PATH").filter(|inherited| !inherited.is_empty())
        {
            path.push(OsString::from(":"));
            path.push(inherited);
        }
        command.env("LD_LIBRARY_PATH", path);
    }
    command
}
