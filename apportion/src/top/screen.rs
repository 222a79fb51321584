//! The terminal during the live view. It is restored however the view ends.

use std::io::{Write, stdin, stdout};

use apportion_exit::CommandFailure;
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use terminal_size::{Height, Width, terminal_size};

/// Switches to the alternate screen and hides the cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// The upper left corner; clear the rest of a line; clear the rest of the screen.
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K";
const REST_OF_SCREEN: &str = "\x1b[J";

/// The terminal while the live view uses it.
pub(super) struct TerminalScreen {
    before: Termios,
}

impl TerminalScreen {
    /// Sets up the terminal: keys arrive one by one without echo, and Ctrl-C arrives as a key.
    pub(super) fn open() -> Result<Self, CommandFailure> {
        let failed =
            |e: nix::Error| CommandFailure::new("failed to set up the terminal").because(e);
        let before = tcgetattr(stdin()).map_err(failed)?;
        let mut now = before.clone();
        now.local_flags
            .remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG);
        tcsetattr(stdin(), SetArg::TCSANOW, &now).map_err(failed)?;
        let screen = Self { before };
        write(ENTER)?;
        Ok(screen)
    }

    /// Shows as much of `text` as fits.
    pub(super) fn draw(&self, text: &str) -> Result<(), CommandFailure> {
        let (width, height) = match terminal_size() {
            Some((Width(width), Height(height))) => (width.into(), height.into()),
            None => (80, 24),
        };
        write(&frame(text, width, height))
    }
}

impl Drop for TerminalScreen {
    fn drop(&mut self) {
        let _ = write(LEAVE);
        let _ = tcsetattr(stdin(), SetArg::TCSANOW, &self.before);
    }
}

fn frame(text: &str, width: usize, height: usize) -> String {
    let mut frame = HOME.to_owned();
    for line in text.lines().take(height.saturating_sub(1)) {
        frame.extend(line.chars().take(width));
        frame.push_str(REST_OF_LINE);
        frame.push_str("\r\n");
    }
    frame.push_str("press q to quit");
    frame.push_str(REST_OF_LINE);
    frame.push_str(REST_OF_SCREEN);
    frame
}

fn write(text: &str) -> Result<(), CommandFailure> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_never_scrolls_the_screen() {
        let text = "a long line that does not fit\n".repeat(50);
        let frame = frame(&text, 10, 5);
        assert_eq!(frame.matches("\r\n").count(), 4);
        assert!(!frame.contains("a long line"));
    }
}
