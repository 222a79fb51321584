//! The kinds as people write them, and the group that each becomes.

mod batch;
mod case;
mod serving;
mod terms;
mod training;
