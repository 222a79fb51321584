//! The conformance program itself as a client: on the simulated driver, bare and under a limit.
#![expect(
    clippy::unwrap_used,
    reason = "what surrounds a test may panic as the test itself may"
)]

mod gpu_tier;
mod limited;
mod machine;
mod simulated;
