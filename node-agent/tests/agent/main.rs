//! The agent as a process over the simulated driver: its answers, its recovery and what it detects. Programs under
//! test hold real contexts of the simulated driver. The tests write their claims into the accounts, so they can
//! simulate honest and dishonest programs.

#![forbid(unsafe_code)]

mod chart;
mod checkpoint;
mod elastic;
mod health;
mod host;
mod ledger;
mod offenders;
mod pods;
mod reconcile;
mod recovery;
mod runtime;
mod start;
mod suspend;
mod tampering;
mod users;
