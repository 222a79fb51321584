//! Listeners with bounds, for every program of ours that strangers can reach.
//!
//! A connection needs a [`ConnectionPermit`]. There are only so many, in all and for one source. A newcomer always gets one: the
//! oldest connection of whoever holds most of them is closed for it. So a client that opens thousands closes its
//! own, and who asks rarely is always heard. Seats are held only while a connection costs something for nothing: while
//! it says who it is and what it wants, or takes its time to read the answer.
//!
//! [`serve`] does this for health and metrics over plain HTTP/1. It refuses to serve a second request on a connection,
//! and large headers. Health needs no seat beside the one of its headers, so metrics never keep it waiting.
#![forbid(unsafe_code)]

mod http;
mod limiter;

pub use http::{HttpLimiter, PATIENCE, accept, connection, http1, serve};
pub use limiter::{ConnectionLimiter, ConnectionLimits, ConnectionPermit, ConnectionSource};

/// What [`serve`] answers with: bytes that many connections may share.
pub type Text = http_body_util::Full<hyper::body::Bytes>;
