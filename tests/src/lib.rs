//! What the process suites stand on: a machine of its own for every test, with simulated cards, an agent
//! and programs, all found in the tree that `cargo xtask build` stages, all gone when the test ends.
//!
//! Nothing is built here and nothing is mocked: a test types what a person would type and sees what the
//! person, the program and the driver would see.

#![forbid(unsafe_code)]

mod agent;
mod answer;
mod command_output;
pub mod control_plane;
mod host;
mod leftover;
mod staged;
mod victim;
mod wait;

pub use agent::AgentProcess;
pub use answer::VictimAnswer;
pub use apportion_sim_machine::MachineConfig;
pub use command_output::CommandOutput;
pub use host::{CARD, CONTEXT, MIB, TestHost, cards};
pub use leftover::LeftoverProcess;
pub use staged::{built, staged};
pub use victim::VictimProcess;
pub use wait::{PATIENCE, eventually};
