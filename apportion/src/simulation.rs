//! A user's simulated driver: one daemon that all commands share, started when first needed.
//!
//! A command's requested shape applies only if that command starts the daemon. Cards that already run belong to other
//! commands too, so they stay, and the command says so.

use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use apportion_abi::{Bytes, paths, units::parse_memory};
use apportion_exit::CommandFailure;

use crate::background::BackgroundProcess;
use crate::instance::TargetInstance;

/// After how many seconds without clients the daemon exits.
const IDLE_EXIT_SECONDS: &str = "60";
/// How long the daemon may take until it serves.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// The shape of the simulated machine; `None` is the daemon's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SimulationSpec {
    pub(crate) gpus: Option<u32>,
    /// Memory of each card.
    pub(crate) memory: Option<Bytes>,
    /// The simulated driver version.
    pub(crate) driver: Option<String>,
}

impl SimulationSpec {
    /// Parses a shape. All mistakes are reported together.
    pub(crate) fn parse(
        gpus: Option<&str>,
        memory: Option<&str>,
        driver: Option<&str>,
    ) -> Result<Self, CommandFailure> {
        let mut mistakes = Vec::new();
        let mut count = None;
        if let Some(text) = gpus {
            count = text.parse().ok().filter(|count| (1..=64).contains(count));
            if count.is_none() {
                mistakes.push(format!("--gpus {text:?} is not a number from 1 to 64"));
            }
        }
        let bytes = memory.and_then(parse_memory);
        if let (Some(text), None) = (memory, bytes) {
            mistakes.push(format!(
                "--gpu-memory {text:?} is not a size (such as 24576, 24576Mi, 24Gi)"
            ));
        }
        if mistakes.is_empty() {
            let driver = driver.map(str::to_owned);
            return Ok(Self {
                gpus: count,
                memory: bytes,
                driver,
            });
        }
        Err(CommandFailure::usage(mistakes.join("; ")))
    }

    fn args(&self) -> Vec<OsString> {
        let gpus = self
            .gpus
            .map(|count| ["--gpus".to_owned(), count.to_string()]);
        let memory = self
            .memory
            .map(|size| ["--gpu-memory".to_owned(), size.as_mib().to_string()]);
        let driver = self
            .driver
            .clone()
            .map(|driver| ["--driver".to_owned(), driver]);
        [gpus, memory, driver]
            .into_iter()
            .flatten()
            .flatten()
            .map(OsString::from)
            .collect()
    }
}

/// Whether the daemon was found or started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DaemonOrigin {
    /// It was already running, with its own shape.
    Found,
    /// It was started with the requested shape.
    Started,
}

/// Makes sure that the simulated driver of `instance` serves, and keeps serving while this process (or the command
/// that replaces it) lives: the daemon serves every process that ever connected until that process ends.
pub(crate) fn ensure(
    instance: &TargetInstance,
    shape: &SimulationSpec,
) -> Result<DaemonOrigin, CommandFailure> {
    let socket = &instance.driver_socket;
    if serves(socket) {
        return Ok(DaemonOrigin::Found);
    }
    let mut args = vec!["--socket".into(), socket.clone().into_os_string()];
    args.extend(["--idle-exit".into(), IDLE_EXIT_SECONDS.into()]);
    args.extend(shape.args());
    let log = instance.dir.join("driver.log");
    let daemon =
        BackgroundProcess::start(&instance.library(paths::SIM_DAEMON)?, args, Vec::new(), log)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Checked before connecting: another daemon that serves by then is as good.
        let is_gone = !daemon.is_running();
        if serves(socket) {
            break;
        }
        if is_gone || Instant::now() > deadline {
            return Err(daemon.explain("the simulated driver did not start"));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(DaemonOrigin::Started)
}

fn serves(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_mistakes_of_a_shape_are_named_together() {
        let failure = SimulationSpec::parse(Some("0"), Some("2000Ti"), None)
            .unwrap_err()
            .to_string();
        assert!(
            failure.contains("--gpus \"0\"") && failure.contains("\"2000Ti\""),
            "{failure}"
        );
    }

    #[test]
    fn only_what_was_asked_for_is_passed_on() {
        assert_eq!(SimulationSpec::default().args(), Vec::<OsString>::new());
        let shape = SimulationSpec::parse(Some("2"), Some("8Gi"), Some("615")).unwrap();
        assert_eq!(
            shape.args(),
            ["--gpus", "2", "--gpu-memory", "8192", "--driver", "615"]
        );
    }
}
