//! What the commands of this package share: output and tables.
#![forbid(unsafe_code)]

pub mod output;
pub mod table;
