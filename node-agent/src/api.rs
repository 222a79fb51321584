//! What others ask of the agent: the gRPC service on its socket and over TCP, who calls, and the HTTP paths.
//!
//! Nothing here changes the ledger. A request that does goes to the agent's loop.

pub(crate) mod caller;
pub(crate) mod fencing;
pub(crate) mod http;
pub(crate) mod request;
pub(crate) mod request_tracker;
pub(crate) mod service;
pub(crate) mod tcp;
pub(crate) mod tenant;
pub(crate) mod wire;
