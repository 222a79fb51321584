//! What a pod, or a user of the command line, may request of a card.
//!
//! The values are KAI's (`gpu-fraction`, `gpu-memory`, `gpu-fraction-num-devices`): a fraction is above zero and
//! below one, memory is whole MiB, the number of devices is at least one. A fraction is kept in parts per billion, so
//! that fractions whose decimal texts sum to one also sum to one here. It becomes bytes by rounding down, so that
//! such shares always fit the card together.
//!
//! # Decision: a share is a whole number of 2 MiB, rounded down
//! The driver hands out a card's memory in blocks of 2 MiB. `cuMemGetAllocationGranularity` reports that granularity
//! for device memory, and plain allocations are rounded up to it. If a program saw a card of another size and
//! requested all that is free, it would be refused, because its last block would not fit. So [`Share::bytes_of`] and
//! [`whole_units`] round every share, whether requested as a fraction or as memory: `gpu-memory: "2001"` is 2000 MiB.
//! They round down, because shares that fill a card leave no room for rounding up. Less than one block is not a
//! share, and is refused with a message.

use alloc::string::{String, ToString};
use core::fmt;

use crate::capacity::CardCapacity;
use crate::units::{Bytes, parse_memory};

/// Every share is a whole number of these bytes: the granularity of a card's memory.
pub const SHARE_UNIT: u64 = 2 * Bytes::MIB;

/// `bytes`, rounded down to a whole number of [`SHARE_UNIT`]: the share for so many bytes.
#[must_use]
pub const fn whole_units(bytes: Bytes) -> Bytes {
    bytes.rounded_down(SHARE_UNIT)
}

/// A share of a card's allocatable memory, in parts per billion, above zero and below one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuFraction(u32);

const BILLION: u32 = 1_000_000_000;

impl GpuFraction {
    /// The fraction of `whole`, rounded down to a byte.
    fn of(self, whole: Bytes) -> Bytes {
        let part = u128::from(whole.0) * u128::from(self.0) / u128::from(BILLION);
        Bytes(u64::try_from(part).unwrap_or(u64::MAX))
    }

    /// The fraction as KAI prints it in `GPU_PORTION` (two decimals, nearest, ties to even).
    #[must_use]
    pub fn portion(self) -> String {
        alloc::format!("{:.2}", f64::from(self.0) / f64::from(BILLION))
    }

    /// The fraction in parts per billion of a card.
    #[must_use]
    pub const fn parts_per_billion(self) -> u32 {
        self.0
    }
}

impl core::str::FromStr for GpuFraction {
    type Err = RequestError;

    /// Reads a decimal (`0.5`, `.25`, `5e-1`). Digits beyond the ninth decimal are dropped, never rounded up. A value
    /// that becomes zero that way is refused.
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

impl fmt::Display for GpuFraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = alloc::format!("{:09}", self.0);
        write!(f, "0.{}", decimals.trim_end_matches('0'))
    }
}

/// How much of each device is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The card alone, with all of its allocatable memory.
    Whole,
    /// A part of the card's allocatable memory.
    Fraction(GpuFraction),
    /// This many bytes, whatever the card. The share is rounded down to a whole number of [`SHARE_UNIT`].
    Memory(Bytes),
}

impl Share {
    /// The bytes of this share on a card of that capacity: everything allocatable for a whole card, else a whole
    /// number of [`SHARE_UNIT`]. That is zero for a share that is too small.
    #[must_use]
    pub fn bytes_of(self, card: CardCapacity) -> Bytes {
        match self {
            Self::Whole => card.allocatable(),
            Self::Fraction(fraction) => whole_units(fraction.of(card.allocatable())),
            Self::Memory(bytes) => whole_units(bytes),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("a whole GPU"),
            Self::Fraction(fraction) => write!(f, "{fraction} of a GPU"),
            Self::Memory(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// A request for `devices` distinct cards of one node, the same share of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuRequest {
    /// The share of each card.
    pub share: Share,
    /// The number of distinct cards.
    pub devices: u32,
}

impl GpuRequest {
    /// Builds a request from texts as they are typed or annotated; `None` means "not given".
    ///
    /// # Errors
    /// The first mistake found: both memory and a fraction, or a value of the wrong form.
    pub fn parse(
        memory: Option<&str>,
        fraction: Option<&str>,
        devices: Option<&str>,
    ) -> Result<Self, RequestError> {
        let share = match (memory, fraction) {
            (Some(_), Some(_)) => return Err(RequestError::Both),
            (Some(text), None) => match parse_memory(text) {
                None => return Err(RequestError::Memory(text.to_string())),
                Some(bytes) if bytes.0 < SHARE_UNIT => {
                    return Err(RequestError::TooLittle(text.to_string()));
                }
                Some(bytes) => Share::Memory(bytes),
            },
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

/// A request that cannot be read. The message says what was given and what is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// Memory and a fraction were both given.
    Both,
    /// Not an amount of memory.
    Memory(String),
    /// Less memory than the smallest share.
    TooLittle(String),
    /// Not a fraction between zero and one.
    Fraction(String),
    /// Not a number of devices.
    Devices(String),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Both => {
                f.write_str("GPU memory and a GPU fraction were both given; give only one")
            }
            Self::Memory(text) => write!(
                f,
                "GPU memory {text:?} is not a positive whole number of MiB (such as 2000, 2000Mi or 8Gi)"
            ),
            Self::TooLittle(text) => write!(
                f,
                "GPU memory {text:?} is less than 2 MiB, the smallest share; shares are rounded down to a multiple of 2 MiB"
            ),
            Self::Fraction(text) => write!(
                f,
                "GPU fraction {text:?} is not a number above 0 and below 1 (such as 0.5); leave it out for a whole GPU"
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

    fn fraction(text: &str) -> GpuFraction {
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
            assert!(text.parse::<GpuFraction>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_share_is_of_the_allocatable_memory() {
        let card = CardCapacity {
            total: Bytes::from_mib(46068),
            reserved: Bytes::from_mib(452),
        };
        let half = Share::Fraction(fraction("0.5")).bytes_of(card);
        assert_eq!(half.0 * 2, card.allocatable().0);
        assert_eq!(Share::Whole.bytes_of(card), card.allocatable());
    }

    #[test]
    fn a_share_is_a_whole_number_of_two_mib_rounded_down() {
        let card = CardCapacity {
            total: Bytes(16128 * Bytes::MIB + 4096),
            reserved: Bytes::ZERO,
        };
        let of = |share: Share| share.bytes_of(card);
        // 0.7 of this card is 11,289.6 MiB.
        assert_eq!(of(Share::Fraction(fraction("0.7"))), Bytes::from_mib(11288));
        assert_eq!(
            of(Share::Memory(Bytes::from_mib(2000))),
            Bytes::from_mib(2000)
        );
        assert_eq!(
            of(Share::Memory(Bytes::from_mib(2001))),
            Bytes::from_mib(2000)
        );
        assert_eq!(of(Share::Memory(Bytes(SHARE_UNIT - 1))), Bytes::ZERO);
        assert_eq!(of(Share::Fraction(fraction("0.0001"))), Bytes::ZERO);
    }

    #[test]
    fn less_than_the_smallest_share_is_refused_in_words() {
        let refused = GpuRequest::parse(Some("1"), None, None).unwrap_err();
        assert_eq!(refused, RequestError::TooLittle("1".into()));
        assert!(refused.to_string().contains("less than 2 MiB"), "{refused}");
        assert!(GpuRequest::parse(Some("2"), None, None).is_ok());
    }

    #[test]
    fn says_what_is_wrong_with_a_request() {
        assert_eq!(
            GpuRequest::parse(Some("2"), Some("0.5"), None),
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
            let card = CardCapacity { total: Bytes(total), reserved: Bytes::ZERO };
            let shares = cuts.iter().zip(cuts.iter().skip(1)).map(|(a, b)| Share::Fraction(GpuFraction(b - a)).bytes_of(card).0);
            prop_assert!(shares.sum::<u64>() <= total);
        }

        #[test]
        fn rounding_takes_less_than_a_unit(parts in 1u32..BILLION, total in 1u64..1 << 44, memory in 0u64..1 << 44) {
            let card = CardCapacity { total: Bytes(total), reserved: Bytes::ZERO };
            let exact = GpuFraction(parts).of(card.allocatable());
            for (asked, given) in [
                (exact, Share::Fraction(GpuFraction(parts)).bytes_of(card)),
                (Bytes(memory), Share::Memory(Bytes(memory)).bytes_of(card)),
            ] {
                prop_assert!(given.0.is_multiple_of(SHARE_UNIT) && given <= asked);
                prop_assert!(asked.0 - given.0 < SHARE_UNIT);
            }
        }

        #[test]
        fn printing_and_reading_a_fraction_agree(parts in 1u32..BILLION) {
            prop_assert_eq!(fraction(&GpuFraction(parts).to_string()), GpuFraction(parts));
        }
    }
}
