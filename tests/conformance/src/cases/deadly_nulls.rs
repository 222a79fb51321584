//! NULL arguments that crash real drivers. No document says what happens, so the results are only recorded.
//!
//! Drivers 470 to 555 die of SIGSEGV in most of these calls. Each call has a process of its own, so that a crash is
//! recorded and does not end the case. No card is needed.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::ptr::null_mut;

use crate::code::ResultCode;
use crate::library::Cuda;
use crate::record::{CaseError, CaseReport};
use crate::session::start_without_card;

/// The name of a call, and the call.
type Call = (&'static str, fn(&Cuda) -> ResultCode);

const CALLS: &[Call] = &[
    ("cuGetProcAddress without a name", |cuda| {
        cuda.lookup_v1(null_mut(), Some(&mut 0), 12000, 0)
    }),
    ("cuGetProcAddress without an output", |cuda| {
        cuda.lookup_v1(c"cuInit".as_ptr(), None, 12000, 0)
    }),
    ("cuGetProcAddress_v2 without a name", |cuda| {
        cuda.lookup(null_mut(), Some(&mut 0), 12000, 0, Some(&mut 0))
    }),
    ("cuGetProcAddress_v2 without an output", |cuda| {
        cuda.lookup(c"cuInit".as_ptr(), None, 12000, 0, Some(&mut 0))
    }),
    ("cuGetErrorName without an output", |cuda| {
        cuda.error_name(0, None)
    }),
    ("cuMemcpy3DPeer of nothing", |cuda| {
        cuda.copy_peer(null_mut())
    }),
    ("cuCtxCreate_v4 of nothing", |cuda| {
        cuda.context_create_v4(None, null_mut(), 0, 0)
    }),
    ("cuThreadExchangeStreamCaptureMode of nothing", |cuda| {
        cuda.exchange_capture_mode(None)
    }),
];

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    start_without_card(report, &Cuda::open()?)?;
    for (name, _) in CALLS {
        let mut child = Command::new(std::env::current_exe()?);
        let output = child
            .args(["--deadly", name])
            .stdin(Stdio::null())
            .output()?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let seen = match (output.status.signal(), output.status.success()) {
            (Some(signal), _) => format!("signal {signal}"),
            (None, true) => printed.trim_end().to_owned(),
            (None, false) => output.status.to_string(),
        };
        report.observed(name, seen);
    }
    Ok(())
}

/// Makes one of the calls in this process and prints its result.
pub(crate) fn perform(name: &str) -> Result<bool, String> {
    let call = CALLS.iter().find(|(known, _)| *known == name);
    let (_, call) = call.ok_or_else(|| format!("there is no call `{name}`"))?;
    let cuda = Cuda::open().map_err(|error| crate::suite::chain(&error))?;
    // Without a card this fails. The call is made anyway.
    let _ = cuda.init(0);
    println!("{}", call(&cuda));
    Ok(true)
}
