//! The conformance program on the simulated driver, without and with a limit.
#![expect(
    clippy::unwrap_used,
    reason = "what surrounds a test may panic as the test itself may"
)]

mod gpu_tier;
mod limited;
mod machine;
mod simulated;
