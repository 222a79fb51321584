//! How a function is exported: one row makes the exported symbol, its variant for per-thread default streams, and the
//! entries by which `cuGetProcAddress` finds them.
//!
//! ```text
//! symbol(arguments) = handler => "base name" @ version | per_thread_symbol @ its_version;
//! ```
//! A row that ends in `, anytime` works before `cuInit` and in a forked child.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::capture::rules;
use crate::error::{CudaError, NOT_INITIALIZED, Outcome, UNKNOWN};
use crate::{call_gate, driver};

/// An exported entry point.
#[derive(Debug)]
pub(crate) struct EntryPoint {
    /// The name that a program asks for.
    pub(crate) base: &'static str,
    /// The CUDA version, as 1000 * major + 10 * minor, that brought this entry point.
    pub(crate) version: i32,
    /// Whether its default stream is the calling thread's own.
    pub(crate) per_thread: bool,
    pub(crate) address: FunctionAddress,
}

/// The address of a function of any signature.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FunctionAddress(pub(crate) *const ());

// SAFETY: the address of a function is a constant; nothing is read or written through it here.
unsafe impl Sync for FunctionAddress {}

thread_local! {
    /// The function that this thread is in, as long as its name has not been sent to the machine.
    static CALL: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// The name of the function that this thread is in, only at the first call.
pub(crate) fn take_call() -> Option<&'static str> {
    CALL.take()
}

/// Runs a handler for an exported function: every call goes through here.
pub(crate) fn enter(
    function: &'static str,
    anytime: bool,
    handler: impl FnOnce() -> Outcome,
) -> i32 {
    let guarded = AssertUnwindSafe(|| {
        if !anytime && !driver::is_ready() {
            return Err(NOT_INITIALIZED);
        }
        let _pass = (!anytime && !call_gate::passes_closed_gate(function)).then(call_gate::pass);
        CALL.set(Some(function));
        driver::touch(function)?;
        rules::check(function)?;
        handler()
    });
    match catch_unwind(guarded) {
        Ok(Ok(())) => 0,
        Ok(Err(CudaError(code))) => code,
        Err(_) => UNKNOWN.0,
    }
}

macro_rules! export {
    ($symbol:ident ($($name:ident: $type:ty),*), $handler:path, $anytime:literal) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $symbol($($name: $type),*) -> i32 {
            $crate::export::enter(stringify!($symbol), $anytime, || $handler($($name),*))
        }
    };
}

macro_rules! exports {
    ($(
        $symbol:ident $arguments:tt = $handler:path => $base:literal @ $version:literal
            $(| $thread:ident @ $thread_version:literal)? $(, $anytime:ident)?;
    )*) => {
        $(
            $crate::export::export_one!($symbol $arguments $handler; $($anytime)?);
            $($crate::export::export_one!($thread $arguments $handler;);)?
        )*

        pub(crate) static ROWS: &[$crate::export::EntryPoint] = &[$(
            $crate::export::EntryPoint {
                base: $base,
                version: $version,
                per_thread: false,
                address: $crate::export::FunctionAddress($symbol as *const ()),
            },
            $($crate::export::EntryPoint {
                base: $base,
                version: $thread_version,
                per_thread: true,
                address: $crate::export::FunctionAddress($thread as *const ()),
            },)?
        )*];
    };
}

macro_rules! export_one {
    ($symbol:ident $arguments:tt $handler:path;) => {
        $crate::export::export!($symbol $arguments, $handler, false);
    };
    ($symbol:ident $arguments:tt $handler:path; anytime) => {
        $crate::export::export!($symbol $arguments, $handler, true);
    };
}

pub(crate) use {export, export_one, exports};
