//! The running scheduler with a real API server. Nodes are objects, their agents are real with simulated cards, and
//! pods are written as users write them.

mod adopting;
mod anything;
mod claims;
mod cluster;
mod crashes;
mod extended_claims;
mod gangs;
mod grouping;
mod guarded;
mod hami;
mod kubectl;
mod leader_election;
mod objects;
mod over_time;
mod own_fields;
mod placing;
mod programs;
mod queues;
mod remote;
mod requests;
mod resizing;
mod settings;
mod silence;
mod slow;
mod statuses;
mod volumes;
