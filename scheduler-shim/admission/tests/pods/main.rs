//! Pods on their way in: KAI's table of rules, what a bound pod keeps, and what must hold for any pod.

mod any_pod;
mod build;
mod counted;
mod limits;
mod rules;
mod updates;
