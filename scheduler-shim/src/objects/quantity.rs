//! Kubernetes quantities: `500m`, `2`, `1.5Gi`, `1e3`.

use serde_json::Value;

/// Every suffix with its factor.
const SUFFIXES: &[(&str, f64)] = &[
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("Ei", 1_152_921_504_606_846_976.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("E", 1e18),
];

/// Parses a quantity. It is finite and may be negative.
pub(crate) fn parse(text: &str) -> Option<f64> {
    let suffix = SUFFIXES.iter().find(|(suffix, _)| text.ends_with(suffix));
    let (number, factor) = match suffix {
        Some((suffix, factor)) => (text.strip_suffix(suffix)?, *factor),
        None => (text, 1.0),
    };
    let is_plain = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
    let number: f64 = number
        .chars()
        .all(is_plain)
        .then(|| number.parse().ok())??;
    Some(number * factor).filter(|amount| amount.is_finite())
}

/// Reads a quantity of an object: a string, or a number if the author left out the quotes.
pub(crate) fn of(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) => parse(text),
        Value::Number(number) => number.as_f64(),
        _ => None,
    }
}

/// More than any cluster has, and small enough that sums do not overflow.
const MOST: i64 = 1 << 54;

/// Whole units, rounded up as Kubernetes does.
pub(crate) fn whole(amount: f64) -> i64 {
    // Rounding errors of decimals (0.1 + 0.2) must not become a unit.
    let whole = ((amount * 1e3).round() / 1e3).ceil() as i64;
    whole.clamp(-MOST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_manifests_say() {
        let amounts = ["500m", "2", "1.5Gi", "1e3", "12E", "15G", "-1"].map(parse);
        let right = [0.5, 2.0, 1_610_612_736.0, 1000.0, 12e18, 15e9, -1.0].map(Some);
        assert_eq!(amounts, right);
        assert_eq!(whole(0.1 * 3.0 * 1000.0), 300);
    }

    #[test]
    fn refuses_what_is_no_quantity() {
        for text in ["", "Gi", "NaN", "inf", "0x10", "1 Gi", "1GiB"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
