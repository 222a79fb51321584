//! The kinds as people write them, and the group that each becomes.

mod batch;
mod case;
mod rows;
mod serving;
mod terms;
mod training;
