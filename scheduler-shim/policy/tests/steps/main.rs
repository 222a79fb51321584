//! Properties of every step of the policy, over random clusters that are carried on round after round.
#![expect(clippy::unwrap_used, reason = "a test may")]

mod burst_limits;
mod checks;
mod claims;
mod clusters;
mod commitments;
mod gangs;
mod metamorphic;
mod mixed;
mod rounds;
mod settling;
