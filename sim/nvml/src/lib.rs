//! `libnvidia-ml.so.1` of the simulated driver. Monitoring programs, and the node agent among them, run unmodified on a
//! machine without a card. The library stores no state of the machine. It asks the simulated driver's daemon for a
//! snapshot and reports it in NVML's terms.
//!
//! `exports` is the table of all exported functions. A function that is not in it does not exist, as on an older
//! driver.

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
