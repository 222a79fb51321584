//! Random numbers of a seed, for tests that print their seed.

use std::env;

/// Numbers that look random (xorshift).
#[derive(Debug)]
pub struct RandomNumbers(u64);

impl RandomNumbers {
    /// The numbers of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    /// True with this probability.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// The number in an environment variable, or `default`.
#[must_use]
pub fn number_from_env(name: &str, default: u64) -> u64 {
    let text = env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}
