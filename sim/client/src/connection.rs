//! The connections of one process to its machine.
//!
//! A request takes an idle connection or opens one, so threads never wait for each other, even in a slow request. After
//! a `fork` the child must not use its parent's connections. It notices that the set is not its own and starts a new
//! one. It does not touch the old set's lock, because a thread that no longer exists may hold it.

use std::borrow::Cow;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{io, ptr};

use apportion_sim_machine::{MachineAnswer, MachineCall, MachineRequest};

use crate::{receive, send};

/// The machine cannot be reached.
#[derive(Debug, thiserror::Error)]
#[error("the simulated driver at {socket} cannot be reached")]
pub struct MachineUnreachable {
    socket: PathBuf,
    #[source]
    source: io::Error,
}

/// A machine behind a socket.
#[derive(Debug)]
pub struct MachineClient {
    socket: PathBuf,
    /// Written by: the first request of a process. Read by: every request. Acquire/Release: a thread that sees the
    /// pointer sees the set behind it. A set is never freed: a child may have its parent's.
    idle: AtomicPtr<IdleConnections>,
}

#[derive(Debug)]
struct IdleConnections {
    process: u32,
    streams: Mutex<Vec<UnixStream>>,
}

impl MachineClient {
    /// A client for the machine at a socket. Does not connect yet.
    #[must_use]
    pub fn at(socket: PathBuf) -> Self {
        Self {
            socket,
            idle: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Sends a request to the machine, on behalf of the driver function `function` if one is given.
    ///
    /// # Errors
    /// If no machine answers.
    pub fn ask(
        &self,
        function: Option<&'static str>,
        request: MachineRequest,
    ) -> Result<MachineAnswer, MachineUnreachable> {
        let call = MachineCall {
            function: function.map(Cow::Borrowed),
            request,
        };
        self.exchange(&call).map_err(|source| MachineUnreachable {
            socket: self.socket.clone(),
            source,
        })
    }

    fn exchange(&self, call: &MachineCall) -> io::Result<MachineAnswer> {
        let idle = self.idle();
        let pooled = idle
            .streams
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut stream = match pooled {
            Some(stream) => stream,
            None => UnixStream::connect(&self.socket)?,
        };
        send(&mut stream, call)?;
        let answer = receive(&mut stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        idle.streams
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(stream);
        Ok(answer)
    }

    fn idle(&self) -> &IdleConnections {
        let process = process::id();
        let idle_before = self.idle.load(Ordering::Acquire);
        // SAFETY: the pointer is null or comes from `Box::into_raw` below, and is never freed.
        if let Some(idle) = unsafe { idle_before.as_ref() }
            && idle.process == process
        {
            return idle;
        }
        let own = Box::into_raw(Box::new(IdleConnections {
            process,
            streams: Mutex::default(),
        }));
        let swap =
            self.idle
                .compare_exchange(idle_before, own, Ordering::AcqRel, Ordering::Acquire);
        let current = match swap {
            Ok(_) => own,
            Err(other) => {
                // SAFETY: `own` is from `Box::into_raw` above and was never published.
                drop(unsafe { Box::from_raw(own) });
                other
            }
        };
        // SAFETY: both candidates come from `Box::into_raw` and are never freed once published.
        unsafe { &*current }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_not_there_is_an_error_at_once() {
        let machine = MachineClient::at("/nonexistent/driver.sock".into());
        let error = machine
            .ask(None, MachineRequest::Hello)
            .expect_err("nobody listens");
        assert!(error.to_string().contains("/nonexistent/driver.sock"));
    }
}
