//! The webhook as the API server meets it: a process, TLS, reviews in JSON.

mod answers;
mod bounds;
mod certificates;
mod client;
