//! Owners as people write them, and the group that each gets.

mod batch;
mod case;
mod rows;
mod serving;
mod terms;
mod training;
