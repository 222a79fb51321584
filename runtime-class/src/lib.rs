//! What a program of ours gets: one grant, rendered as edits of its environment.
//!
//! A process on a bare machine and a container get the same things by different ways, so one pure
//! function says what they are. On the machine the edits are variables only, because the process already
//! sees the files; in a container the library and the account are mounted at fixed places that the
//! tenant can't move, and the card's device files come along.
//!
//! # What a bare machine does not hide
//! `CUDA_VISIBLE_DEVICES` keeps a program from the cards that it was not granted, but NVML lists every
//! card of the machine to it: NVML has no such variable. A container sees only its cards in both.
#![forbid(unsafe_code)]

pub mod cdi;
mod container;
mod edits;
mod grant;
pub mod nvidia;
pub mod slot;

pub use container::{ContainerFiles, DriverFiles};
pub use edits::{ContainerEdits, ContainerMount, DeviceNode, EditTarget, edits};
pub use grant::{Grant, GrantedCard};
