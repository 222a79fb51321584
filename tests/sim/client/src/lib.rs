//! How the simulated driver's libraries reach their machine: a Unix socket, frames of JSON with a
//! length in front, and a set of connections that survives threads and `fork`.
//!
//! It says nothing to a program's output and never waits for a daemon that is not there: a machine
//! that cannot be reached is a driver without cards.

mod connection;
mod frame;
mod socket;

pub use connection::{MachineClient, MachineUnreachable};
pub use frame::{receive, send};
pub use socket::{SOCKET_VARIABLE, default_socket, given_cards, socket};
