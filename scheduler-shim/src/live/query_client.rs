//! The HTTP client for a running scheduler: one question, one answer.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use apportion_exit::CommandFailure;

use crate::options::SchedulerExplainOptions;

/// Timeout of the scheduler's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks why a pod is where it is.
pub(crate) fn explain(asked: &SchedulerExplainOptions) -> Result<String, CommandFailure> {
    let json = if asked.json { "?json" } else { "" };
    let path = format!("/explain/{}{json}", asked.pod);
    let address = asked.address;
    let reply = get(asked, &path).map_err(|error| {
        CommandFailure::new(format!(
            "failed to reach the scheduler at {address}: {error}"
        ))
        .hint("start it with `apportion-scheduler run`, or name its address with --address")
    })?;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(CommandFailure::new(body.trim())),
    }
}

fn get(asked: &SchedulerExplainOptions, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&asked.address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let host = asked.address;
    // An HTTP/1.0 answer is not chunked.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}
