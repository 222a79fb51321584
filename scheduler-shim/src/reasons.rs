//! Why: what was decided, who is where after it, and what keeps the others waiting.
//!
//! Everything here is a value with numbers; its texts are for people, its JSON for programs.

pub(crate) mod books;
pub(crate) mod explain;
pub(crate) mod report;
pub(crate) mod waiting;
pub(crate) mod words;

mod room;
mod unblock;
