//! Exact Kubernetes quantities: `500m`, `2`, `1.5Gi`, `12e-1`.
//!
//! People and other programs compare the amounts in statuses as text. So an amount is kept in billionths, the smallest
//! unit of Kubernetes, and printed in canonical form. Anything smaller is rounded away from zero, as in Kubernetes.

use std::fmt;
use std::str::FromStr;

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
/// One, in billionths.
const ONE: i128 = 1_000_000_000;
/// The largest amount that Kubernetes keeps.
const MOST: i128 = (i64::MAX as i128) * ONE;

/// A text that is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a quantity such as 500m, 2 or 1.5Gi")]
pub struct ParseQuantityError(String);

impl Quantity {
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
    let digits: String = whole.chars().chain(decimals.chars()).collect();
    let digits = digits.trim_start_matches('0');
    let places = i32::try_from(decimals.len()).ok()?;
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
fn shifted(digits: &str, ten: i32, two: u32) -> i128 {
    // No amount has more digits. Those beyond only decide whether to round up.
    let kept = digits.len().min(36);
    let lost = digits.len() - kept;
    let rounds_up = digits[kept..].bytes().any(|digit| digit != b'0');
    let Ok(mantissa) = format!("0{}", &digits[..kept]).parse::<i128>() else {
        return MOST;
    };
    let ten = i64::from(ten) + i64::try_from(lost).unwrap_or(i64::MAX / 2);
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
            let fits = |power: &u32| whole % (1_i128 << power) == 0;
            let found = BINARY.iter().find(|(_, power)| fits(power));
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
