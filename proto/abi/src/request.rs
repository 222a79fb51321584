//! What a pod, or a person at a command line, may ask of a card.
//!
//! The values are KAI's (`gpu-fraction`, `gpu-memory`, `gpu-fraction-num-devices`): a fraction is
//! above zero and below one, memory is whole MiB, the number of devices is at least one. A fraction is
//! kept in parts per billion, so that fractions whose decimal texts sum to one sum to one here, and
//! becomes bytes by rounding down, so that such shares always fit the card together.

use alloc::string::{String, ToString};
use core::fmt;

use crate::capacity::Capacity;
use crate::units::{Bytes, parse_memory};

/// A share of a card's allocatable memory, in parts per billion, above zero and below one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fraction(u32);

const BILLION: u32 = 1_000_000_000;

impl Fraction {
    /// The share of `whole`, rounded down to a byte.
    #[must_use]
    pub fn of(self, whole: Bytes) -> Bytes {
        let part = u128::from(whole.0) * u128::from(self.0) / u128::from(BILLION);
        Bytes(u64::try_from(part).unwrap_or(u64::MAX))
    }

    /// The fraction as KAI prints it in `GPU_PORTION` (two decimals, nearest, ties to even).
    #[must_use]
    pub fn portion(self) -> String {
        alloc::format!("{:.2}", f64::from(self.0) / f64::from(BILLION))
    }

    /// Parts per billion.
    #[must_use]
    pub const fn parts_per_billion(self) -> u32 {
        self.0
    }
}

impl core::str::FromStr for Fraction {
    type Err = RequestError;

    /// Reads a decimal (`0.5`, `.25`, `5e-1`). Digits beyond the ninth decimal are dropped, never
    /// rounded up. What is so small that nothing is left of it is refused.
    fn from_str(text: &str) -> Result<Self, RequestError> {
        let refused = || RequestError::Fraction(text.to_string());
        let value: f64 = text.parse().map_err(|_| refused())?;
        if !(value > 0.0 && value < 1.0) {
            return Err(refused());
        }
        let parts = match text.trim_start_matches('+').split_once('.') {
            Some((_, decimals)) if decimals.bytes().all(|b| b.is_ascii_digit()) => {
                let nine: String = decimals
                    .chars()
                    .chain("000000000".chars())
                    .take(9)
                    .collect();
                nine.parse::<u32>().map_err(|_| refused())?
            }
            _ => (value * f64::from(BILLION)) as u32,
        };
        if parts == 0 {
            Err(refused())
        } else {
            Ok(Self(parts))
        }
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = alloc::format!("{:09}", self.0);
        write!(f, "0.{}", decimals.trim_end_matches('0'))
    }
}

/// How much of each device is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The card alone, with all of its allocatable memory.
    Whole,
    /// A part of the card's allocatable memory.
    Fraction(Fraction),
    /// So many bytes, whatever the card.
    Memory(Bytes),
}

impl Share {
    /// The bytes that this share is of a card of that capacity.
    #[must_use]
    pub fn bytes_of(self, card: Capacity) -> Bytes {
        match self {
            Self::Whole => card.allocatable(),
            Self::Fraction(fraction) => fraction.of(card.allocatable()),
            Self::Memory(bytes) => bytes,
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("a whole card"),
            Self::Fraction(fraction) => write!(f, "{fraction} of a card"),
            Self::Memory(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// A request for `devices` distinct cards of one node, the same share of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuRequest {
    /// What is wanted of each card.
    pub share: Share,
    /// How many distinct cards.
    pub devices: u32,
}

impl GpuRequest {
    /// Builds a request from texts as they are typed or annotated; `None` stands for "not given".
    ///
    /// # Errors
    /// The first mistake found: both memory and a fraction, or a value that is not of its form.
    pub fn parse(
        memory: Option<&str>,
        fraction: Option<&str>,
        devices: Option<&str>,
    ) -> Result<Self, RequestError> {
        let share = match (memory, fraction) {
            (Some(_), Some(_)) => return Err(RequestError::Both),
            (Some(text), None) => Share::Memory(
                parse_memory(text).ok_or_else(|| RequestError::Memory(text.to_string()))?,
            ),
            (None, Some(text)) => Share::Fraction(text.parse()?),
            (None, None) => Share::Whole,
        };
        let devices = match devices {
            None => 1,
            Some(text) => (text.parse().ok().filter(|count| *count > 0))
                .ok_or_else(|| RequestError::Devices(text.to_string()))?,
        };
        Ok(Self { share, devices })
    }
}

/// A request that cannot be read. Each says what was given and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// Memory and a fraction were both given.
    Both,
    /// Not an amount of memory.
    Memory(String),
    /// Not a fraction between zero and one.
    Fraction(String),
    /// Not a number of devices.
    Devices(String),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Both => {
                f.write_str("GPU memory and a GPU fraction were both given; give one of them")
            }
            Self::Memory(text) => write!(
                f,
                "GPU memory {text:?} is not a positive whole number of MiB (such as 2000; 2000Mi and 8Gi are read too)"
            ),
            Self::Fraction(text) => write!(
                f,
                "GPU fraction {text:?} is not a number above 0 and below 1 (such as 0.5); a whole card needs no fraction"
            ),
            Self::Devices(text) => {
                write!(f, "number of GPUs {text:?} is not a positive whole number")
            }
        }
    }
}

impl core::error::Error for RequestError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fraction(text: &str) -> Fraction {
        text.parse().unwrap()
    }

    #[test]
    fn reads_the_fractions_that_kai_users_write() {
        for (text, parts) in [
            ("0.5", 500_000_000),
            (".5", 500_000_000),
            ("0.004", 4_000_000),
            ("0.333", 333_000_000),
            ("5e-1", 500_000_000),
            ("0.3333333339", 333_333_333),
            ("+0.25", 250_000_000),
        ] {
            assert_eq!(fraction(text).parts_per_billion(), parts, "{text}");
        }
    }

    #[test]
    fn refuses_fractions_outside_zero_and_one() {
        for text in [
            "0",
            "1",
            "1.5",
            "-0.5",
            "NaN",
            "inf",
            "",
            "half",
            "0.0000000001",
            "1e-12",
            "0x1p-1",
        ] {
            assert!(text.parse::<Fraction>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_share_is_of_the_allocatable_memory_to_the_byte() {
        let card = Capacity {
            total: Bytes::from_mib(46068),
            reserved: Bytes::from_mib(452),
        };
        let half = Share::Fraction(fraction("0.5")).bytes_of(card);
        assert_eq!(half.0 * 2, card.allocatable().0);
        assert_eq!(Share::Whole.bytes_of(card), card.allocatable());
        assert_eq!(Share::Memory(Bytes(7)).bytes_of(card), Bytes(7));
    }

    #[test]
    fn says_what_is_wrong_with_a_request() {
        assert_eq!(
            GpuRequest::parse(Some("1"), Some("0.5"), None),
            Err(RequestError::Both)
        );
        assert_eq!(
            GpuRequest::parse(Some("2000Ti"), None, None),
            Err(RequestError::Memory("2000Ti".into()))
        );
        assert_eq!(
            GpuRequest::parse(None, None, Some("0")),
            Err(RequestError::Devices("0".into()))
        );
        assert_eq!(
            GpuRequest::parse(None, None, None),
            Ok(GpuRequest {
                share: Share::Whole,
                devices: 1
            })
        );
    }

    #[test]
    fn the_portion_has_kais_two_decimals() {
        assert_eq!(fraction("0.125").portion(), "0.12");
        assert_eq!(fraction("0.333").portion(), "0.33");
    }

    proptest! {
        #[test]
        fn fractions_that_sum_to_one_fit_the_card(cuts in proptest::collection::vec(1u32..BILLION, 1..20), total in 1u64..1 << 44) {
            let mut cuts = cuts;
            cuts.push(0);
            cuts.push(BILLION);
            cuts.sort_unstable();
            let sum: u64 = cuts.iter().zip(cuts.iter().skip(1)).map(|(a, b)| Fraction(b - a).of(Bytes(total)).0).sum();
            prop_assert!(sum <= total);
        }

        #[test]
        fn printing_and_reading_a_fraction_agree(parts in 1u32..BILLION) {
            prop_assert_eq!(fraction(&Fraction(parts).to_string()), Fraction(parts));
        }
    }
}
