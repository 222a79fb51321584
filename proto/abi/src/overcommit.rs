//! How far the limits on a card may exceed the card.

use core::fmt;
use core::str::FromStr;

use crate::Bytes;

/// How far the limits on a card may exceed what it has, in hundredths.
///
/// # Decision: four by default
/// Guarantees hold whatever the limits add up to, so this protects nobody's memory. It bounds how little of its limit a
/// program can expect when all burst at once: at 4 a quarter on average. Without a bound a user who writes the whole card
/// as the limit of every program would get refusals that only depend on who came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OvercommitFactor(u32);

impl Default for OvercommitFactor {
    fn default() -> Self {
        Self(400)
    }
}

impl OvercommitFactor {
    /// The factor in hundredths; `None` if it is no factor, as that of an agent that does not say.
    #[must_use]
    pub fn from_hundredths(hundredths: u32) -> Option<Self> {
        (100..=10_000)
            .contains(&hundredths)
            .then_some(Self(hundredths))
    }

    /// The factor in hundredths.
    #[must_use]
    pub fn hundredths(self) -> u32 {
        self.0
    }

    /// What the limits on a card may add up to.
    #[must_use]
    pub fn of(self, allocatable: Bytes) -> Bytes {
        let bound = u128::from(allocatable.0) * u128::from(self.0) / 100;
        Bytes(u64::try_from(bound).unwrap_or(u64::MAX))
    }
}

impl FromStr for OvercommitFactor {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (whole, hundredths) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
        let expected = "expected a number from 1 to 100 with at most two decimals";
        if !is_number(whole) || !is_number(hundredths) || !(1..=2).contains(&hundredths.len()) {
            return Err(expected);
        }
        let whole: u32 = whole.parse().map_err(|_| expected)?;
        let hundredths: u32 = alloc::format!("{hundredths:0<2}")
            .parse()
            .map_err(|_| expected)?;
        let factor = whole.saturating_mul(100).saturating_add(hundredths);
        Self::from_hundredths(factor).ok_or(expected)
    }
}

impl fmt::Display for OvercommitFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 100 {
            0 => write!(f, "{}", self.0 / 100),
            rest if rest % 10 == 0 => write!(f, "{}.{}", self.0 / 100, rest / 10),
            rest => write!(f, "{}.{rest:02}", self.0 / 100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_factor_is_read_and_printed_as_people_write_it() {
        for (text, printed) in [
            ("4", "4"),
            ("1.5", "1.5"),
            ("2.25", "2.25"),
            ("1.05", "1.05"),
        ] {
            assert_eq!(
                text.parse::<OvercommitFactor>().unwrap().to_string(),
                printed
            );
        }
        for text in ["0.9", "", "101", "-2", "1.", "1.234", "x", "1e2", "+2"] {
            assert!(text.parse::<OvercommitFactor>().is_err(), "{text}");
        }
        let half_more: OvercommitFactor = "1.5".parse().unwrap();
        assert_eq!(half_more.of(Bytes(10)), Bytes(15));
    }
}
