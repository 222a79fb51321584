//! The agent as a process, over the simulated driver: what it answers, what it survives, what it sees.
//! Programs under test hold real contexts of the simulated driver; what they claim in their accounts is
//! written by the tests, so that both honest and dishonest programs can be played.

#![forbid(unsafe_code)]

mod chart;
mod checkpoint;
mod health;
mod host;
mod ledger;
mod offenders;
mod pods;
mod reconcile;
mod recovery;
mod runtime;
mod start;
mod tampering;
mod users;
