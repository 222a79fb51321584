//! Admission of pods: KAI's table of rules, what a bound pod keeps, and properties of every pod.

mod any_pod;
mod build;
mod counted;
mod idle;
mod limits;
mod rules;
mod updates;
