//! What a program gets from a grant: edits of its environment.
//!
//! A process on a bare machine and a container get the same things in different ways, so one pure function computes
//! both. On a bare machine the edits are only variables, because the process already sees the files. In a container
//! the library and the account are mounted at fixed paths that the tenant cannot move, and the card's device files
//! are added.
//!
//! # What a bare machine does not hide
//! `CUDA_VISIBLE_DEVICES` hides cards from CUDA that a program was not granted, but NVML still lists every card:
//! NVML has no such variable. A container sees only its own cards in both.
#![forbid(unsafe_code)]

pub mod cdi;
mod container;
mod container_edits;
mod edits;
mod grant;
pub mod nvidia;
pub mod slot;

pub use container::{CONTROL_DEVICES, ContainerFiles, DriverFiles};
pub use container_edits::{ContainerEdits, ContainerMount, DeviceNode};
pub use edits::{EditTarget, edits};
pub use grant::{Grant, GrantedCard};
