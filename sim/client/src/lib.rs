//! How the simulated driver's libraries reach their machine: a Unix socket, JSON messages with a length prefix, and a
//! set of connections that works with threads and `fork`.
//!
//! The crate prints nothing and never waits for a missing daemon. If the machine cannot be reached, the driver has no
//! cards.

mod connection;
mod frame;
mod socket;

pub use connection::{MachineClient, MachineUnreachable};
pub use frame::{receive, send};
pub use socket::{SOCKET_VARIABLE, default_socket, given_cards, socket};
