//! Standard output. A reader that has closed it (`apportion gpus | head`) is not reported as a failure.

use std::io::{ErrorKind, Write, stdout};

use apportion_exit::CommandFailure;
use serde::Serialize;

/// Prints one line.
///
/// # Errors
/// If standard output is full.
pub fn line(text: &str) -> Result<(), CommandFailure> {
    all(&format!("{text}\n"))
}

/// Prints `value` as indented JSON.
///
/// # Errors
/// If standard output is full.
pub fn json(value: &impl Serialize) -> Result<(), CommandFailure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| CommandFailure::new("failed to write JSON").because(e))?;
    line(&text)
}

/// Prints `text` as it is.
///
/// # Errors
/// If standard output is full.
pub fn all(text: &str) -> Result<(), CommandFailure> {
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}
