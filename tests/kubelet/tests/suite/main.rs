//! The agent as a device plugin: what the kubelet hands out, asks and learns, in its own order.

#![forbid(unsafe_code)]

mod claims;
mod delivery;
mod dice;
mod duplicate_slot;
mod elastic;
mod idle;
mod mounts;
mod pods;
mod quarantine;
mod reclaimed;
mod rival;
mod sleepers;
mod storm;
mod whole;
