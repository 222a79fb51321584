//! The base of the process suites: a machine for every test, with simulated cards, an agent and programs. They come
//! from the tree that `cargo xtask build` stages, and all of it is gone when the test ends.
//!
//! Nothing is built here and nothing is mocked. A test runs the commands that a person would run, and checks what the
//! person, the program and the driver would see.

#![forbid(unsafe_code)]

mod agent;
mod answer;
mod command_output;
pub mod control_plane;
pub mod cpu_time;
mod host;
mod leftover;
mod random;
mod staged;
mod victim;
mod wait;

pub use agent::AgentProcess;
pub use answer::VictimAnswer;
pub use apportion_sim_machine::MachineConfig;
pub use command_output::CommandOutput;
pub use host::{CARD, CONTEXT, MIB, TestHost, cards};
pub use leftover::LeftoverProcess;
pub use random::{RandomNumbers, number_from_env};
pub use staged::{built, staged};
pub use victim::VictimProcess;
pub use wait::{PATIENCE, eventually};
