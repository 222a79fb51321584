//! What the process suites stand on: a machine of its own for every test, with simulated cards, an agent
//! and programs, all found in the tree that `cargo xtask build` stages, all gone when the test ends.
//!
//! Nothing is built here and nothing is mocked: a test types what a person would type and sees what the
//! person, the program and the driver would see.

#![forbid(unsafe_code)]

mod agent;
mod answer;
pub mod control_plane;
mod host;
mod leftover;
mod said;
mod staged;
mod victim;
mod wait;

pub use agent::Agent;
pub use answer::Answer;
pub use apportion_sim_machine::Config;
pub use host::{CARD, CONTEXT, Host, MIB, cards};
pub use leftover::Leftover;
pub use said::Said;
pub use staged::{built, staged};
pub use victim::Victim;
pub use wait::{PATIENCE, eventually};
