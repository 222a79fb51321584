//! The running scheduler on a real API server: nodes are objects, their agents and cards are real ones of
//! the simulated driver, pods are what people write.

mod adopting;
mod anything;
mod cluster;
mod crashes;
mod gangs;
mod grouping;
mod guarded;
mod hami;
mod kubectl;
mod objects;
mod over_time;
mod own_fields;
mod placing;
mod programs;
mod queues;
mod remote;
mod requests;
mod settings;
mod silence;
mod slow;
mod statuses;
mod volumes;
