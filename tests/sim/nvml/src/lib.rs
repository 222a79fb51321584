//! `libnvidia-ml.so.1` of the simulated driver: monitoring programs, the node agent among them, run
//! unmodified on a machine that has no card. The library holds no truth of its own; it asks the
//! simulated driver's daemon for a picture of the machine and shows it in NVML's words.
//!
//! `exports` is the table of what is exported. A function that is not in it does not exist, which
//! is what a program also finds on an older driver.

mod events;
mod exports;
mod fields;
mod foreign;
mod handles;
mod health;
mod identity;
mod limits;
mod links;
mod memory;
mod model;
mod modes;
mod processes;
mod rows;
mod session;
mod status;
mod system;
mod topology;
mod unsupported;
