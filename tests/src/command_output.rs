//! The output of a command that has ended.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use serde_json::Value;

use crate::wait::{PATIENCE, eventually};

/// The result of a command.
#[derive(Debug)]
pub struct CommandOutput {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub out: String,
    /// What it wrote to standard error.
    pub err: String,
}

impl CommandOutput {
    /// Runs a command without input.
    ///
    /// # Panics
    /// If it cannot be started or does not end in time.
    #[track_caller]
    pub fn by(command: &mut Command) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program is there");
        let out = gather(child.stdout.take());
        let err = gather(child.stderr.take());
        let mut status = None;
        let pid = child.id();
        eventually(PATIENCE, &format!("{command:?} ends (pid {pid})"), || {
            status = child.try_wait().expect("it is our child");
            status.is_some()
        });
        let text = |thread: thread::JoinHandle<String>| {
            let what = format!("nothing else holds the output of {command:?}");
            eventually(PATIENCE, &what, || thread.is_finished());
            thread.join().unwrap_or_default()
        };
        Self {
            status: status.expect("it was seen to end"),
            out: text(out),
            err: text(err),
        }
    }

    /// The exit code. None after a signal.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Asserts that it succeeded.
    ///
    /// # Panics
    /// If it failed.
    #[track_caller]
    #[must_use]
    pub fn well(self) -> Self {
        assert!(self.status.success(), "{self:?}");
        self
    }

    /// Its output as JSON.
    ///
    /// # Panics
    /// If it is not JSON.
    #[track_caller]
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts that it printed only one line, its own, to standard error, and exited with `code`.
    ///
    /// # Panics
    /// Otherwise.
    #[track_caller]
    pub fn fails_in_one_line(&self, code: i32) -> &str {
        assert_eq!(self.code(), Some(code), "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        let line = self.err.trim_end_matches('\n');
        let is_one = !line.is_empty() && !line.contains('\n') && line.starts_with("apportion: ");
        assert!(is_one, "not one line of apportion's: {self:?}");
        line
    }
}

fn gather(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
