//! The live view on a terminal: it redraws, exits on request, and restores the terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use apportion_tests::{PATIENCE, TestHost, eventually};
use nix::pty::{OpenptyResult, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::Pid;

/// The escape sequences that restore the cursor and the screen.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// A terminal that runs `apportion top`.
struct TopTerminal {
    keyboard: File,
    ours: OpenptyResult,
    shown: Arc<Mutex<String>>,
    top: Child,
}

impl TopTerminal {
    fn with_top(host: &TestHost) -> Self {
        let ours = openpty(None, None).expect("a terminal");
        let end = |end: &std::os::fd::OwnedFd| end.try_clone().expect("a descriptor");
        let mut command = host.simulated("top");
        command
            .stdin(end(&ours.slave))
            .stdout(end(&ours.slave))
            .stderr(end(&ours.slave));
        let top = command.spawn().expect("the program is there");
        let mut screen = File::from(end(&ours.master));
        let shown = Arc::new(Mutex::new(String::new()));
        let writer = Arc::clone(&shown);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]);
                writer
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push_str(&text);
            }
        });
        Self {
            keyboard: File::from(end(&ours.master)),
            ours,
            shown,
            top,
        }
    }

    fn settings(&self) -> Termios {
        tcgetattr(&self.ours.slave).expect("a terminal")
    }

    fn shows(&self, text: &str) -> bool {
        self.shown
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(text)
    }

    /// Waits for the end of the view, and checks the restored terminal.
    fn is_given_back(&mut self, before: &Termios) {
        let mut status = None;
        eventually(PATIENCE, "the view ends", || {
            status = self.top.try_wait().expect("it is our child");
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
        eventually(PATIENCE, "the screen is what it was", || self.shows(LEAVE));
        assert_eq!(&self.settings(), before);
    }
}

impl Drop for TopTerminal {
    fn drop(&mut self) {
        let _ = self.top.kill();
        let _ = self.top.wait();
    }
}

#[test]
fn the_live_view_follows_what_happens_and_gives_the_terminal_back() {
    let host = TestHost::new();
    let _agent = host.agent(&["--tick", "50"]);
    for key in [b"q", b"\x03"] {
        let probe = openpty(None, None).expect("a terminal");
        let before = tcgetattr(&probe.slave).expect("a terminal");
        let mut terminal = TopTerminal::with_top(&host);
        eventually(PATIENCE, "it is drawn", || {
            terminal.shows("press q to quit")
        });
        let mut victim = host.victim(&["--gpu-memory", "2000", "--name", "appears"]);
        victim.step("start").ok();
        eventually(PATIENCE, "the allocation appears", || {
            terminal.shows("appears")
        });
        assert_ne!(terminal.settings(), before, "keys come one by one");
        terminal.keyboard.write_all(key).expect("a terminal");
        terminal.is_given_back(&before);
    }
}

#[test]
fn a_signal_ends_the_live_view_as_well() {
    let host = TestHost::new();
    let _agent = host.agent(&[]);
    let probe = openpty(None, None).expect("a terminal");
    let before = tcgetattr(&probe.slave).expect("a terminal");
    let mut terminal = TopTerminal::with_top(&host);
    eventually(PATIENCE, "it is drawn", || {
        terminal.shows("press q to quit")
    });
    kill(
        Pid::from_raw(terminal.top.id().cast_signed()),
        Signal::SIGTERM,
    )
    .expect("it runs");
    terminal.is_given_back(&before);
}
