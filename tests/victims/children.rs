//! The steps about processes: forked and spawned children, and the end of the process itself.
//!
//! A child performs its steps before its parent goes on, and then stays until it is killed, so that it keeps what it
//! holds. Some children escape the library: they lose the variable or the file that names it, or have no loader.

use std::env;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use apportion_sim_client::socket;

use crate::script::{ScriptWords, StepOutcome, VictimProgram};

/// Names the descriptor that a spawned child closes when it has performed its steps.
const READY: &str = "VICTIM_READY";
/// What even a cleared environment needs for finding the simulated driver.
const DRIVER: [&str; 2] = ["LD_LIBRARY_PATH", "APPORTION_SIM_SOCKET"];
/// A program without a loader.
const STATIC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bare"));

impl VictimProgram {
    /// A step about processes. `None` for other verbs.
    pub(crate) fn life_step(&mut self, verb: &str, words: &mut ScriptWords) -> Option<StepOutcome> {
        Some(match verb {
            "pid" => StepOutcome::with(0, [u64::from(std::process::id())]),
            "fork" => self.fork(words.rest()),
            "spawn" => self.spawn(itself(), words.rest()),
            "bare" => self.spawn(without_preload(), words.rest()),
            "stripped" => self.spawn(stripped(), words.rest()),
            "jailed" => self.spawn(jailed(), words.rest()),
            "static" => self.start_static(words.bytes()),
            "exec" => exec(words.rest()),
            "reap" => self.reap(),
            "churn" => self.churn(words.number(), words.number()),
            "kills" => self.kills(words.number(), words.number()),
            "storm" => self.storm(words.number()),
            "hold" => hold(),
            "kill9" => kill_self(),
            "exit" => std::process::exit(i32::try_from(words.number()).unwrap_or(64)),
            _ => return None,
        })
    }

    fn fork(&mut self, script: Vec<String>) -> StepOutcome {
        let (read, write) = pipe();
        // SAFETY: this process has one thread, so the child may do whatever the parent may.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            close(read);
            self.children.clear();
            self.perform(script);
            close(write);
            hold();
        }
        self.await_child(pid, read, write)
    }

    fn spawn(&mut self, mut command: Command, script: Vec<String>) -> StepOutcome {
        command.args(script).arg("hold");
        self.start_child(command)
    }

    /// Starts the program without a loader. It allocates `bytes` bytes.
    fn start_static(&mut self, bytes: usize) -> StepOutcome {
        let program = format!("/tmp/static-{}", std::process::id());
        let is_there = std::fs::write(&program, STATIC).is_ok()
            && std::fs::set_permissions(&program, Permissions::from_mode(0o755)).is_ok();
        if !is_there {
            return StepOutcome::of(-1);
        }
        let mut command = Command::new(program);
        command.arg(socket()).arg(bytes.to_string());
        self.start_child(command)
    }

    fn start_child(&mut self, mut command: Command) -> StepOutcome {
        let (read, write) = pipe();
        // SAFETY: the descriptor is open; only this child shall inherit it.
        unsafe { libc::fcntl(write, libc::F_SETFD, 0) };
        command.env(READY, write.to_string()).stdin(Stdio::null());
        match command.spawn() {
            Ok(child) => self.await_child(child.id().cast_signed(), read, write),
            Err(_) => StepOutcome::of(-1),
        }
    }

    /// Waits until the child has performed its steps or has ended.
    fn await_child(&mut self, pid: i32, read: i32, write: i32) -> StepOutcome {
        close(write);
        let mut byte = 0u8;
        // SAFETY: the buffer has room for the one byte that is read; the child writes none.
        unsafe { libc::read(read, (&raw mut byte).cast(), 1) };
        close(read);
        self.children.push(pid);
        StepOutcome::with(0, [u64::from(pid.unsigned_abs())])
    }

    /// Kills all children and waits for them.
    fn reap(&mut self) -> StepOutcome {
        let children = std::mem::take(&mut self.children);
        for child in &children {
            end(*child);
        }
        StepOutcome::with(0, [children.len() as u64])
    }
}

/// Kills a child and waits until it is gone.
pub(crate) fn end(child: i32) {
    // SAFETY: the pid is that of a child that was not waited for yet, so it names no other process.
    unsafe { libc::kill(child, libc::SIGKILL) };
    // SAFETY: a null status is allowed.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
}

fn itself() -> Command {
    Command::new("/proc/self/exe")
}

fn without_preload() -> Command {
    let mut command = itself();
    command.env_remove("LD_PRELOAD");
    command
}

fn stripped() -> Command {
    let mut command = itself();
    command.env_clear().envs(
        DRIVER
            .iter()
            .filter_map(|name| Some((name, env::var_os(name)?))),
    );
    command
}

/// This program inside the chroot `/jail`, where nothing names the library. Its working directory stays outside, so it
/// can still reach the driver.
fn jailed() -> Command {
    let mut command = Command::new("/usr/bin/victim");
    let socket = socket();
    let socket = socket.strip_prefix("/").unwrap_or(&socket).to_owned();
    let _ = env::set_current_dir("/");
    command.env_clear().env("APPORTION_SIM_SOCKET", socket);
    let enter = || {
        // SAFETY: the path is a C string.
        match unsafe { libc::chroot(c"/jail".as_ptr()) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec it makes only one system call.
    unsafe { command.pre_exec(enter) };
    command
}

/// Executes a new program with the same pid. Answers before it does.
fn exec(script: Vec<String>) -> StepOutcome {
    println!("exec 0\n.");
    drop(itself().args(script).exec());
    StepOutcome::of(-1)
}

/// Waits until it is killed.
fn hold() -> ! {
    if let Some(ready) = env::var(READY).ok().and_then(|text| text.parse().ok()) {
        close(ready);
    }
    loop {
        // SAFETY: the call has no arguments.
        unsafe { libc::pause() };
    }
}

fn kill_self() -> ! {
    // SAFETY: the signal goes to this process only.
    unsafe { libc::raise(libc::SIGKILL) };
    std::process::abort()
}

fn pipe() -> (i32, i32) {
    let mut ends = [-1; 2];
    // SAFETY: the array has room for both descriptors.
    unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    (ends[0], ends[1])
}

fn close(descriptor: i32) {
    // SAFETY: every caller closes a descriptor from `pipe` that it does not use any more.
    unsafe { libc::close(descriptor) };
}
