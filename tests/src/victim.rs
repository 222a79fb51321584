//! A program that a test controls, one line at a time.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::answer::VictimAnswer;
use crate::wait::{PATIENCE, eventually};

/// A running victim. Dropping this kills it.
#[derive(Debug)]
pub struct VictimProcess {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: PathBuf,
}

impl VictimProcess {
    /// Starts `command`, which becomes a victim, in a process group of its own.
    pub(crate) fn start(command: &mut Command, errors: &Path) -> Self {
        let file = File::create(errors).expect("the machine's folder is writable");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .process_group(0);
        let mut child = command.spawn().expect("the program is there");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let (send, lines) = channel();
        thread::spawn(move || {
            output
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| send.send(line))
        });
        Self {
            child,
            input,
            lines,
            errors: errors.to_owned(),
        }
    }

    /// Sends one line of steps and returns all answers.
    ///
    /// # Panics
    /// If the program does not answer.
    #[track_caller]
    pub fn say(&mut self, line: &str) -> Vec<VictimAnswer> {
        let sent = self.input.as_mut().map(|input| writeln!(input, "{line}"));
        assert!(
            matches!(sent, Some(Ok(()))),
            "{line}: the program is gone: {}",
            self.errors()
        );
        let mut answers = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(dot) if dot == "." => return answers,
                Ok(answer) => answers.push(answer.parse().expect("only victims speak here")),
                Err(error) => panic!("{line}: no answer ({error}): {}", self.errors()),
            }
        }
    }

    /// Sends one line of steps to a program that may end because of it. Returns the answers so far.
    ///
    /// A program whose main thread is killed alone has ended too: its other threads belong to the driver.
    ///
    /// # Panics
    /// If the program neither answers nor ends.
    #[track_caller]
    pub fn try_say(&mut self, line: &str) -> Vec<VictimAnswer> {
        let mut answers = Vec::new();
        let sent = self.input.as_mut().map(|input| writeln!(input, "{line}"));
        if !matches!(sent, Some(Ok(()))) {
            return answers;
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok(dot) if dot == "." => return answers,
                Ok(answer) => answers.extend(answer.parse()),
                Err(RecvTimeoutError::Disconnected) => return answers,
                Err(RecvTimeoutError::Timeout) if self.has_lost_its_main_thread() => {
                    let _ = self.child.kill();
                }
                Err(RecvTimeoutError::Timeout) => assert!(
                    Instant::now() < deadline,
                    "{line}: no answer and no end: {}",
                    self.errors()
                ),
            }
        }
    }

    /// Sends one line of steps and returns the answer to the last one.
    ///
    /// # Panics
    /// If the program does not answer.
    #[track_caller]
    pub fn step(&mut self, line: &str) -> VictimAnswer {
        self.say(line).pop().expect("every step has an answer")
    }

    /// Makes the program's first allocation, of this size, and writes a pattern into it.
    ///
    /// # Panics
    /// If the allocation is refused.
    #[track_caller]
    pub fn fill(&mut self, size: &str) {
        self.step(&format!("alloc {size}")).ok();
        self.step(&format!("mark 0 {size}")).ok();
    }

    /// Checks each byte of what [`fill`](Self::fill) wrote.
    ///
    /// # Panics
    /// If a byte has changed.
    #[track_caller]
    pub fn assert_intact(&mut self, size: &str) {
        let changed = self.step(&format!("check 0 {size}")).value();
        assert_eq!(changed, 0, "bytes have changed");
    }

    /// Sends one line without waiting for an answer.
    ///
    /// # Panics
    /// If the program is gone.
    #[track_caller]
    pub fn begin(&mut self, line: &str) {
        let sent = self.input.as_mut().map(|input| writeln!(input, "{line}"));
        assert!(
            matches!(sent, Some(Ok(()))),
            "{line}: the program is gone: {}",
            self.errors()
        );
    }

    /// The answer to the last step of a line sent by `begin`.
    ///
    /// # Panics
    /// If the program does not answer.
    #[track_caller]
    pub fn finish(&mut self) -> VictimAnswer {
        self.finish_all().pop().expect("every step has an answer")
    }

    /// The answers to all steps of a line sent by `begin`.
    ///
    /// # Panics
    /// If the program does not answer.
    #[track_caller]
    pub fn finish_all(&mut self) -> Vec<VictimAnswer> {
        self.begin("");
        let mut answers = Vec::new();
        let mut dots = 0;
        while dots < 2 {
            match self.lines.recv_timeout(PATIENCE * 10) {
                Ok(dot) if dot == "." => dots += 1,
                Ok(answer) => answers.push(answer.parse().expect("only victims speak here")),
                Err(error) => panic!("no answer ({error}): {}", self.errors()),
            }
        }
        answers
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote to standard error.
    #[must_use]
    pub fn errors(&self) -> String {
        fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Sends a signal to the process.
    ///
    /// # Panics
    /// If the process is gone.
    pub fn signal(&self, signal: Signal) {
        kill(self.os_pid(), signal).expect("the process is there");
    }

    /// Sends a signal to the whole process group, as a terminal does.
    ///
    /// # Panics
    /// If the process is gone.
    pub fn signal_group(&self, signal: Signal) {
        killpg(self.os_pid(), signal).expect("the process is there");
    }

    /// Waits for the program's end.
    ///
    /// # Panics
    /// If it does not end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually(PATIENCE, "the program ends", || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        status.expect("it was seen to end")
    }

    /// Closes the program's input, so that it ends by itself.
    ///
    /// # Panics
    /// If it does not end.
    #[track_caller]
    pub fn end(&mut self) -> ExitStatus {
        self.input = None;
        self.wait()
    }

    fn has_lost_its_main_thread(&self) -> bool {
        let pid = self.child.id();
        let stat = fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses.
        let state = stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        state == Some('Z')
    }

    fn os_pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for VictimProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
