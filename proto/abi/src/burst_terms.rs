//! What a share is worth beside others that burst.
//!
//! The weight is KAI's `overQuotaWeight` for GPUs, which is a number like 1, 0.5 or 10. Here it is a whole number of
//! thousandths, so that all programs compute the same parts.

use core::fmt;
use core::str::FromStr;

use alloc::string::String;

const THOUSANDTHS: u32 = 1000;

/// What a share is worth beside others that burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BurstTerms {
    /// Its part of what nobody was guaranteed.
    pub weight: BurstWeight,
    /// The priority of its pod. The lowest is the first that sleeps for others.
    pub priority: i32,
}

/// The weight of a share that bursts, in thousandths.
///
/// # Decision: what a queue says is taken, what a person types is checked
/// KAI allows a weight of 0, for queues that get nothing beyond their quota while others want it. A share with weight 0
/// bursts only into what those with a weight leave. A queue's weight beyond the bounds counts as the bound: a pod must
/// not wait for ever because of it. On the command line 0 is a mistake: a share that shall not burst has no limit above
/// its guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstWeight(u32);

/// A text that is no weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotABurstWeight;

impl Default for BurstWeight {
    fn default() -> Self {
        Self(THOUSANDTHS)
    }
}

impl BurstWeight {
    /// It gets only what those with a weight leave.
    pub const NONE: Self = Self(0);
    /// The largest weight, a million.
    pub const LARGEST: Self = Self(1_000_000 * THOUSANDTHS);

    /// The weight in thousandths; `None` if it is too large.
    #[must_use]
    pub fn from_thousandths(thousandths: u32) -> Option<Self> {
        (thousandths <= Self::LARGEST.0).then_some(Self(thousandths))
    }

    /// The weight in thousandths.
    #[must_use]
    pub fn thousandths(self) -> u32 {
        self.0
    }

    /// The weight that a queue says, rounded. One above zero stays above zero.
    #[must_use]
    pub fn of_queue(weight: f64) -> Self {
        if weight.is_nan() || weight <= 0.0 {
            return Self::NONE;
        }
        let scaled = weight * f64::from(THOUSANDTHS) + 0.5;
        let bounded = scaled.clamp(1.0, f64::from(Self::LARGEST.0));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is between 1 and the largest weight, and the fraction is to go"
        )]
        Self(bounded as u32)
    }
}

impl FromStr for BurstWeight {
    type Err = NotABurstWeight;

    /// Reads a weight above zero.
    fn from_str(text: &str) -> Result<Self, NotABurstWeight> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
        let is_well_formed = is_number(whole) && is_number(part) && (1..=3).contains(&part.len());
        if !is_well_formed {
            return Err(NotABurstWeight);
        }
        let whole: u32 = whole.parse().map_err(|_| NotABurstWeight)?;
        let part = alloc::format!("{part:0<3}");
        let part: u32 = part.parse().map_err(|_| NotABurstWeight)?;
        let thousandths = whole
            .checked_mul(THOUSANDTHS)
            .and_then(|whole| whole.checked_add(part))
            .ok_or(NotABurstWeight)?;
        Self::from_thousandths(thousandths)
            .filter(|weight| *weight != Self::NONE)
            .ok_or(NotABurstWeight)
    }
}

impl fmt::Display for BurstWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0 / THOUSANDTHS)?;
        let part: String = alloc::format!("{:03}", self.0 % THOUSANDTHS);
        match part.trim_end_matches('0') {
            "" => Ok(()),
            part => write!(f, ".{part}"),
        }
    }
}

impl fmt::Display for NotABurstWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a weight is a number from 0.001 to 1000000 with at most three decimals")
    }
}

impl core::error::Error for NotABurstWeight {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_weight_is_read_and_printed_as_people_write_it() {
        for (text, thousandths) in [
            ("1", 1000),
            ("0.5", 500),
            ("2.25", 2250),
            ("0.001", 1),
            ("1.005", 1005),
            ("1000000", 1_000_000_000),
        ] {
            let weight: BurstWeight = text.parse().unwrap();
            assert_eq!(weight.thousandths(), thousandths);
            assert_eq!(weight.to_string(), text);
        }
        for text in [
            "",
            "0",
            "0.0",
            "-1",
            "+1",
            "1.",
            ".5",
            "1.2345",
            "1e3",
            "NaN",
            "1000001",
            "99999999999",
        ] {
            assert_eq!(text.parse::<BurstWeight>(), Err(NotABurstWeight), "{text}");
        }
    }

    #[test]
    fn whatever_a_queue_says_is_a_weight() {
        for (said, weight) in [
            (0.0, "0"),
            (-3.0, "0"),
            (f64::NAN, "0"),
            (1e-9, "0.001"),
            (0.3333, "0.333"),
            (1.0, "1"),
            (2.5, "2.5"),
            (1e12, "1000000"),
            (f64::INFINITY, "1000000"),
        ] {
            assert_eq!(BurstWeight::of_queue(said).to_string(), weight, "{said}");
        }
    }
}
