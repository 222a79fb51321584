//! Bytes, and the ways people write them.
//!
//! Inside Apportion all amounts are bytes. MiB, fractions and Kubernetes quantities are converted to bytes once, at
//! the edge. Arithmetic saturates: a sum of memory that overflows 64 bits is a bug elsewhere, and must not become a
//! small number.

use core::fmt;
use core::time::Duration;

/// A number of bytes of device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No memory at all.
    pub const ZERO: Self = Self(0);
    /// One KiB (1024 bytes).
    pub const KIB: u64 = 1 << 10;
    /// One MiB (1024 KiB), the unit of KAI's `gpu-memory` annotation.
    pub const MIB: u64 = 1 << 20;
    /// One GiB (1024 MiB).
    pub const GIB: u64 = 1 << 30;

    /// `count` MiB.
    #[must_use]
    pub const fn from_mib(count: u64) -> Self {
        Self(count.saturating_mul(Self::MIB))
    }

    /// Whole MiB in this amount, rounded down.
    #[must_use]
    pub const fn as_mib(self) -> u64 {
        self.0 / Self::MIB
    }

    /// `self + other`, at most `u64::MAX`.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// `self - other`, at least zero.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The largest multiple of `granule` that is not above this (unchanged if `granule` is zero).
    #[must_use]
    pub const fn rounded_down(self, granule: u64) -> Self {
        match self.0.checked_rem(granule) {
            Some(rest) => Self(self.0.saturating_sub(rest)),
            None => self,
        }
    }

    /// The next multiple of `granule` (unchanged if `granule` is zero).
    #[must_use]
    pub const fn rounded_up(self, granule: u64) -> Self {
        match self.0.checked_next_multiple_of(granule) {
            Some(rounded) => Self(rounded),
            None => self,
        }
    }
}

impl core::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Self::plus)
    }
}

/// Prints whole MiB below 10 GiB and GiB with one decimal above, as `nvidia-smi` users read them.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= 10 * Self::GIB {
            let tenths = (u128::from(self.0) * 10) / u128::from(Self::GIB);
            write!(f, "{}.{} GiB", tenths / 10, tenths % 10)
        } else if self.0 >= Self::MIB || self.0 == 0 {
            write!(f, "{} MiB", self.as_mib())
        } else {
            write!(f, "{} bytes", self.0)
        }
    }
}

/// Reads an amount as people type it on a command line: a plain number is MiB, as in KAI's
/// `gpu-memory`; `Mi` and `Gi` (and `MiB`, `GiB`) are accepted as a convenience.
///
/// Returns `None` for anything else, for zero, and for amounts that do not fit 64 bits.
#[must_use]
pub fn parse_memory(text: &str) -> Option<Bytes> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "" | "Mi" | "MiB" => Bytes::MIB,
        "Gi" | "GiB" => Bytes::GIB,
        _ => return None,
    };
    let amount = number.parse::<u64>().ok()?.checked_mul(unit)?;
    (amount > 0).then_some(Bytes(amount))
}

/// Parses a time as options take it: a whole number of seconds, minutes or hours (`30s`, `5m`, `1h`).
///
/// Returns `None` for anything else, and for times that do not fit 64 bits of seconds.
#[must_use]
pub fn parse_time(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = is_number.then(|| number.parse().ok())??;
    Some(Duration::from_secs(number.checked_mul(unit)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_whole_number_with_a_unit() {
        for (text, seconds) in [("0s", 0), ("30s", 30), ("5m", 300), ("24h", 86_400)] {
            assert_eq!(parse_time(text), Some(Duration::from_secs(seconds)));
        }
        for text in [
            "",
            "s",
            "30",
            "1.5h",
            "-1s",
            "+1s",
            "1d",
            "30\u{b5}",
            " 1s",
            "1m30s",
            "18446744073709551615h",
        ] {
            assert_eq!(parse_time(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_plain_number_is_mib_as_in_kai() {
        assert_eq!(parse_memory("2000"), Some(Bytes::from_mib(2000)));
        assert_eq!(parse_memory("2000Mi"), Some(Bytes::from_mib(2000)));
        assert_eq!(parse_memory("8Gi"), Some(Bytes::from_mib(8192)));
    }

    #[test]
    fn refuses_what_is_not_an_amount_of_memory() {
        for text in [
            "",
            "0",
            "-1",
            "2000Ti",
            "1.5Gi",
            "Gi",
            " 5",
            "5 ",
            "0x10",
            "99999999999999Gi",
        ] {
            assert_eq!(parse_memory(text), None, "{text:?}");
        }
    }

    #[test]
    fn prints_what_people_compare_with_nvidia_smi() {
        use alloc::string::ToString;
        assert_eq!(Bytes::from_mib(2000).to_string(), "2000 MiB");
        assert_eq!(Bytes::from_mib(143_771).to_string(), "140.4 GiB");
        assert_eq!(Bytes(512).to_string(), "512 bytes");
    }
}
