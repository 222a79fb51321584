//! A program in the background: whether it still runs, and its last log line.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use apportion_abi::paths;
use apportion_exit::CommandFailure;

/// Variables that describe *our* command's limit. The background program must not inherit them.
const NOT_INHERITED: &[&str] = &[
    "LD_PRELOAD",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    paths::ENV_ACCOUNT,
];
/// A larger log is started anew with the next program.
const LOG_BYTES: u64 = 1 << 20;

/// A program that outlives this process.
#[derive(Debug)]
pub(crate) struct BackgroundProcess {
    pid: u32,
    name: String,
    log: PathBuf,
    /// Where in the log its output begins.
    read_from: u64,
}

impl BackgroundProcess {
    /// Starts `program` with its output at the end of `log`.
    pub(crate) fn start(
        program: &Path,
        args: impl IntoIterator<Item = OsString>,
        env: Vec<(&'static str, OsString)>,
        log: PathBuf,
    ) -> Result<Self, CommandFailure> {
        let failed = || CommandFailure::new(format!("failed to start {}", program.display()));
        let own = std::env::current_exe().map_err(|e| failed().because(e))?;
        let read_from = begin(&log);
        let mut command = Command::new(own);
        command
            .arg("detach")
            .arg("--log")
            .arg(&log)
            .arg("--")
            .arg(program)
            .args(args)
            .envs(env);
        for name in NOT_INHERITED {
            command.env_remove(name);
        }
        let output = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .output()
            .map_err(|e| failed().because(e))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match text(&output.stdout).parse() {
            Ok(pid) if output.status.success() => {
                let name = program
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                Ok(Self {
                    pid,
                    name,
                    log,
                    read_from,
                })
            }
            _ => {
                let text = text(&output.stderr);
                Err(failed().because(text.trim_start_matches("apportion: ").to_owned()))
            }
        }
    }

    /// Whether the program runs. A zombie does not.
    pub(crate) fn is_running(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        !matches!(state, None | Some('Z' | 'X'))
    }

    /// Whether it reported why it exited. A killed program did not.
    pub(crate) fn has_cause(&self) -> bool {
        self.last_line()
            .is_some_and(|line| line.starts_with(&format!("{}: ", self.name)))
    }

    /// A failure with the program's last log line as its cause.
    pub(crate) fn explain(&self, what: &str) -> CommandFailure {
        let last = self.last_line().unwrap_or_default();
        let last = last
            .strip_prefix(&format!("{}: ", self.name))
            .unwrap_or(&last);
        let (text, hint) = match last.split_once("; hint: ") {
            Some((text, hint)) => (text, hint.to_owned()),
            None => (last, format!("see {}", self.log.display())),
        };
        let failure = CommandFailure::new(what).hint(hint);
        if text.is_empty() {
            failure
        } else {
            failure.because(text.to_owned())
        }
    }

    fn last_line(&self) -> Option<String> {
        let mut file = File::open(&self.log).ok()?;
        file.seek(SeekFrom::Start(self.read_from)).ok()?;
        let mut text = Vec::new();
        file.take(LOG_BYTES).read_to_end(&mut text).ok()?;
        let text = String::from_utf8_lossy(&text);
        text.lines()
            .rev()
            .map(str::trim)
            .find(|line| !line.is_empty())
            .map(str::to_owned)
    }
}

/// Starts a long log anew. Returns where the next line begins.
fn begin(log: &Path) -> u64 {
    let length = fs::metadata(log).map_or(0, |found| found.len());
    if length > LOG_BYTES && fs::remove_file(log).is_ok() {
        0
    } else {
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::write;

    fn with_log(text: &str, read_from: u64) -> String {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        write(&log, text).unwrap();
        let name = "apportion-agent".to_owned();
        BackgroundProcess {
            pid: 1,
            name,
            log,
            read_from,
        }
        .explain("the agent ended")
        .to_string()
    }

    #[test]
    fn the_last_words_of_a_program_are_the_cause() {
        let log = "older\ninfo\napportion-agent: no driver; hint: use --sim\n\n";
        assert_eq!(
            with_log(log, 6),
            "the agent ended: no driver; hint: use --sim"
        );
    }

    #[test]
    fn what_an_older_program_said_is_not_the_cause() {
        let text = with_log("older\n", 6);
        assert!(text.starts_with("the agent ended; hint: see "), "{text}");
    }
}
