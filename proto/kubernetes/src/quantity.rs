//! Exact Kubernetes quantities: `500m`, `2`, `1.5Gi`, `12e-1`.
//!
//! People and other programs compare the amounts in statuses as text. So an amount is kept in billionths, the smallest
//! unit of Kubernetes, and printed in canonical form. Anything smaller is rounded away from zero, as in Kubernetes.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use serde_json::Value;

/// An amount in billionths, with the format in which it was written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    billionths: i128,
    form: QuantityFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum QuantityFormat {
    #[default]
    Decimal,
    Binary,
    Exponent,
}

/// The suffixes of powers of ten, largest first.
const DECIMAL: [(&str, i32); 10] = [
    ("E", 18),
    ("P", 15),
    ("T", 12),
    ("G", 9),
    ("M", 6),
    ("k", 3),
    ("", 0),
    ("m", -3),
    ("u", -6),
    ("n", -9),
];
/// The suffixes of powers of two, largest first.
const BINARY: [(&str, u32); 6] = [
    ("Ei", 60),
    ("Pi", 50),
    ("Ti", 40),
    ("Gi", 30),
    ("Mi", 20),
    ("Ki", 10),
];
/// The value 1 in the unit in which amounts are kept, billionths.
const ONE: i128 = 1_000_000_000;
/// The largest amount that Kubernetes keeps.
const MOST: i128 = (i64::MAX as i128) * ONE;
/// More units than any cluster has, and few enough that sums of them do not overflow.
const MOST_UNITS: i64 = 1 << 54;
/// No amount has more significant digits.
const MOST_DIGITS: usize = 36;

/// A text that is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a quantity such as 500m, 2 or 1.5Gi")]
pub struct ParseQuantityError(String);

impl Quantity {
    /// The quantity 0, without a suffix.
    pub const ZERO: Self = Self {
        billionths: 0,
        form: QuantityFormat::Decimal,
    };

    /// So many thousandths of a unit, such as the millicores of a CPU.
    #[must_use]
    pub fn from_millis(millis: i64) -> Self {
        Self {
            billionths: i128::from(millis) * (ONE / 1000),
            form: QuantityFormat::Decimal,
        }
    }

    /// So many bytes, printed with the suffixes of powers of two.
    #[must_use]
    pub fn from_bytes(bytes: i64) -> Self {
        Self {
            billionths: i128::from(bytes) * ONE,
            form: QuantityFormat::Binary,
        }
    }

    /// Reads a quantity of an object: a string, or a number if the author left out the quotes.
    #[must_use]
    pub fn from_json(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => parse(text),
            Value::Number(number) => parse(&number.to_string()),
            _ => None,
        }
    }

    /// Whole units, rounded up as Kubernetes does, and at most 2^54.
    #[must_use]
    pub fn units(self) -> i64 {
        rounded_up(self.billionths, ONE)
    }

    /// Thousandths of a unit, rounded up as Kubernetes does, and at most 2^54.
    #[must_use]
    pub fn millis(self) -> i64 {
        rounded_up(self.billionths, ONE / 1000)
    }

    /// The amount in billionths, exactly.
    #[must_use]
    pub fn billionths(self) -> i128 {
        self.billionths
    }

    /// Another amount in the same format, in billionths.
    #[must_use]
    pub fn with_billionths(self, billionths: i128) -> Self {
        Self {
            billionths: billionths.clamp(-MOST, MOST),
            ..self
        }
    }

    /// The amount multiplied by `count`.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        let product = self.billionths.saturating_mul(i128::from(count));
        Self {
            billionths: product.clamp(-MOST, MOST),
            ..self
        }
    }

    /// The amount if it is an integer.
    #[must_use]
    pub fn whole(self) -> Option<i64> {
        let whole = (self.billionths % ONE == 0).then_some(self.billionths / ONE)?;
        i64::try_from(whole).ok()
    }

    /// Whether the amount is zero.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.billionths == 0
    }

    /// Whether the amount is below zero.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.billionths < 0
    }

    /// The amount in billionths, kept within what Kubernetes keeps. Like Kubernetes, a sum has the format of its first
    /// part that is not zero.
    fn combined(self, other: Self, billionths: i128) -> Self {
        let form = if self.is_zero() {
            other.form
        } else {
            self.form
        };
        Self {
            billionths: billionths.clamp(-MOST, MOST),
            form,
        }
    }
}

fn rounded_up(billionths: i128, unit: i128) -> i64 {
    let is_cut = billionths > 0 && billionths % unit != 0;
    let whole = billionths / unit + i128::from(is_cut);
    let most = i128::from(MOST_UNITS);
    i64::try_from(whole.clamp(-most, most)).unwrap_or(MOST_UNITS)
}

impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.combined(other, self.billionths.saturating_add(other.billionths))
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.combined(other, self.billionths.saturating_sub(other.billionths))
    }
}

impl Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.billionths == other.billionths
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.billionths.cmp(&other.billionths)
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, ParseQuantityError> {
        parse(text).ok_or_else(|| ParseQuantityError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Quantity> {
    let (is_negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = |text: &str| {
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len())
    };
    let (whole, after) = unsigned.split_at(end(unsigned));
    let (decimals, suffix) = match after.strip_prefix('.') {
        Some(after) => after.split_at(end(after)),
        None => ("", after),
    };
    // Kubernetes accepts a sign alone, and a suffix without digits, as zero.
    let (form, ten, two) = scale(suffix)?;
    let places = i32::try_from(decimals.len()).ok()?;
    let digits = whole.bytes().chain(decimals.bytes());
    let amount = shifted(digits, ten.saturating_sub(places).saturating_add(9), two);
    Some(Quantity {
        billionths: if is_negative { -amount } else { amount },
        form,
    })
}

/// The format, the power of ten and the power of two of a suffix.
fn scale(suffix: &str) -> Option<(QuantityFormat, i32, u32)> {
    if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((QuantityFormat::Decimal, *power, 0));
    }
    if let Some((_, power)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some((QuantityFormat::Binary, 0, *power));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let exponent = is_number.then(|| exponent.parse::<i64>().ok())??;
    let bounded = i32::try_from(exponent.clamp(-1000, 1000)).ok()?;
    Some((QuantityFormat::Exponent, bounded, 0))
}

/// `digits` × 10^`ten` × 2^`two`, rounded up to a whole number, at most [`MOST`].
fn shifted(digits: impl Iterator<Item = u8>, ten: i32, two: u32) -> i128 {
    let (mut mantissa, mut kept) = (0_i128, 0_usize);
    let (mut lost, mut rounds_up) = (0_i64, false);
    for digit in digits {
        if kept == 0 && digit == b'0' {
            continue;
        }
        if kept == MOST_DIGITS {
            // The digits beyond only decide whether to round up.
            lost += 1;
            rounds_up |= digit != b'0';
            continue;
        }
        kept += 1;
        mantissa = mantissa * 10 + i128::from(digit - b'0');
    }
    let ten = i64::from(ten) + lost;
    if mantissa == 0 {
        return 0;
    }
    let Some(doubled) = mantissa.checked_mul(1_i128 << two) else {
        return MOST;
    };
    let power = |exponent: i64| 10_i128.checked_pow(u32::try_from(exponent).unwrap_or(u32::MAX));
    let amount = if ten >= 0 {
        power(ten).and_then(|factor| doubled.checked_mul(factor))
    } else {
        let divisor = power(-ten).unwrap_or(i128::MAX);
        let has_rest = doubled % divisor != 0 || rounds_up;
        Some(doubled / divisor + i128::from(has_rest))
    };
    amount.unwrap_or(MOST).min(MOST)
}

impl fmt::Display for Quantity {
    /// The canonical form: no decimals, the largest suffix that allows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.billionths == 0 {
            return f.write_str("0");
        }
        let whole = self.billionths / ONE;
        if self.form == QuantityFormat::Binary && self.billionths % ONE == 0 && whole.abs() >= 1024
        {
            let found = BINARY
                .iter()
                .find(|(_, power)| whole % (1_i128 << power) == 0);
            let (suffix, power) = found.copied().unwrap_or(("", 0));
            return write!(f, "{}{suffix}", whole >> power);
        }
        for (suffix, power) in DECIMAL {
            let unit = 10_i128.pow(u32::try_from(power + 9).unwrap_or_default());
            if self.billionths % unit == 0 {
                let count = self.billionths / unit;
                return match self.form {
                    QuantityFormat::Exponent if power != 0 => write!(f, "{count}e{power}"),
                    _ => write!(f, "{count}{suffix}"),
                };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn canonical(text: &str) -> String {
        text.parse::<Quantity>().unwrap().to_string()
    }

    #[test]
    fn prints_the_canonical_form() {
        for (text, printed) in [
            ("0.5", "500m"),
            ("1.0", "1"),
            ("0.125", "125m"),
            ("1000", "1k"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("12e2", "1200"),
            ("1e3", "1e3"),
            ("1e-10", "1e-9"),
            ("-2.50", "-2500m"),
            ("100000000000000000000", "9223372036854775807"),
            ("00.4000", "400m"),
            ("5.", "5"),
            (".5", "500m"),
        ] {
            assert_eq!(canonical(text), printed, "{text}");
        }
    }

    #[test]
    fn refuses_what_kubernetes_refuses() {
        for text in [
            "", "NaN", "0x1p-1", "1_0", "1 ", "1GiB", "1e", "1e+", "1.2.3", "16b8", "1K",
        ] {
            assert!(text.parse::<Quantity>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn adds_subtracts_and_rounds_exactly() {
        let read = |text: &str| text.parse::<Quantity>().unwrap();
        assert_eq!((read("0.1") + read("0.2")).millis(), 300);
        assert_eq!((read("1Gi") - read("1Mi")).to_string(), "1023Mi");
        assert_eq!((Quantity::ZERO + read("1Gi")).to_string(), "1Gi");
        assert_eq!(
            [read("1500m"), read("2")].into_iter().sum::<Quantity>(),
            read("3.5")
        );
        assert_eq!(
            (read("1n").units(), read("-1n").units(), read("1n").millis()),
            (1, 0, 1)
        );
        assert_eq!(read("9007199254740993").units(), 9_007_199_254_740_993);
        assert_eq!(read("1e400").units(), MOST_UNITS);
        assert_eq!(Quantity::from_millis(1500).to_string(), "1500m");
        assert_eq!(Quantity::from_bytes(3 << 20).to_string(), "3Mi");
        assert_eq!(Quantity::from_bytes(1000).to_string(), "1k");
    }

    #[test]
    fn reads_numbers_without_quotes() {
        let read = |json: &str| Quantity::from_json(&serde_json::from_str(json).unwrap());
        assert_eq!(read("2").map(Quantity::units), Some(2));
        assert_eq!(read("0.5").map(Quantity::millis), Some(500));
        assert_eq!(read("1e3").map(Quantity::units), Some(1000));
        assert_eq!(read("\"1Gi\"").map(Quantity::units), Some(1 << 30));
        assert_eq!(read("true"), None);
        assert_eq!(read("\"1e3Ki\""), None);
    }

    #[test]
    fn multiplies_exactly() {
        let half: Quantity = "0.5".parse().unwrap();
        assert_eq!(half.times(2).to_string(), "1");
        assert_eq!(half.times(2).whole(), Some(1));
        assert_eq!(half.whole(), None);
        assert_eq!(
            "0.1".parse::<Quantity>().unwrap().times(3).to_string(),
            "300m"
        );
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(text in "[+-]?[0-9]{0,20}(\\.[0-9]{0,12})?(Ki|Mi|Gi|n|u|m|k|M|G|e-?[0-9]{1,2})?") {
            if let Ok(read) = text.parse::<Quantity>() {
                prop_assert_eq!(read.to_string().parse::<Quantity>().unwrap(), read);
            }
        }

        #[test]
        fn no_text_is_too_strange(text in ".{0,40}") {
            let _ = text.parse::<Quantity>();
        }
    }
}
