//! Listeners with bounds, for every program of ours that untrusted clients can reach.
//!
//! A connection needs a [`ConnectionPermit`]. Their number is limited, in all and for each source. A new connection
//! always gets one: if its source has too many, that source's oldest connection is closed; if none is free, the oldest
//! of the source with the most. So a client that opens thousands closes its own, and a client that rarely asks is
//! always served. A permit is held only while a connection costs resources without doing work: while it authenticates
//! and sends its request, or is slow to read the answer.
//!
//! [`serve`] does this for health and metrics over plain HTTP/1. It refuses a second request on a connection, and
//! large headers. Health checks need only the permit for their headers, so metrics never keep them waiting.
#![forbid(unsafe_code)]

mod http;
mod limiter;

pub use http::{HttpLimiter, PATIENCE, accept, connection, http1, serve};
pub use limiter::{ConnectionLimiter, ConnectionLimits, ConnectionPermit, ConnectionSource};

/// The body of an answer of [`serve`]: bytes that many connections may share.
pub type Text = http_body_util::Full<hyper::body::Bytes>;
