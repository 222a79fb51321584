//! What the commands of this package share: failures as one line, output, tables.
#![forbid(unsafe_code)]

pub mod failure;
pub mod output;
pub mod table;
