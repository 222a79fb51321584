//! A small CUDA program that the command line uses.
//!
//! `cards` prints what the driver's two libraries report, so that `apportion doctor` can query a driver that may hang
//! without hanging with it. `fill` takes memory until it is refused and holds it until its standard input ends, so
//! that `apportion demo` can show where a limit is. The program knows nothing of Apportion: it reaches the driver
//! through third-party libraries (cudarc, nvml-wrapper), as any program would.

use std::process::ExitCode;

mod cards;
mod fill;

fn main() -> ExitCode {
    let result = match std::env::args().nth(1).as_deref() {
        Some("cards") => cards::print(),
        Some("fill") => fill::fill(),
        _ => Err("give `cards` or `fill`".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("apportion-probe: {error}");
            ExitCode::FAILURE
        }
    }
}
