//! Numbers as Go parses them. KAI's answers depend on which of two parsers fails first.
//!
//! A fraction must be valid for Go's `strconv.ParseFloat` *and* as a Kubernetes quantity. `ParseFloat` also accepts
//! hexadecimal floats, digits with underscores, infinities and `NaN`; the second check rejects those. What a number
//! means is decided in [`crate::request`].

/// Parses a positive integer without a sign, as Go's `ParseUint` with base 10 does.
pub(crate) fn positive(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse::<u64>().ok())??;
    (number > 0).then_some(number)
}

/// Parses a float as Go's `ParseFloat` with 64 bits does; overflow is an error.
pub(crate) fn float(text: &str) -> Option<f64> {
    let (sign, unsigned) = match text.as_bytes().first()? {
        b'-' => (-1.0, &text[1..]),
        b'+' => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    let is_word = |word: &str| unsigned.eq_ignore_ascii_case(word);
    if is_word("inf") || is_word("infinity") {
        return Some(sign * f64::INFINITY);
    }
    if text.eq_ignore_ascii_case("nan") {
        return Some(f64::NAN);
    }
    if !underscores_separate_digits(unsigned) {
        return None;
    }
    let plain: String = unsigned.chars().filter(|c| *c != '_').collect();
    let lower = plain.to_ascii_lowercase();
    let value = match lower.strip_prefix("0x") {
        Some(hex) => hexadecimal(hex)?,
        None if lower
            .bytes()
            .all(|b| b.is_ascii_digit() || b"+-.e".contains(&b)) =>
        {
            signless(&lower)?
        }
        None => return None,
    };
    value.is_finite().then_some(sign * value)
}

/// Parses a decimal float without a sign.
fn signless(text: &str) -> Option<f64> {
    let is_signed = text.starts_with(['+', '-']);
    (!is_signed).then(|| text.parse().ok())?
}

/// Parses `1.8p-3`, the part after `0x`: a hexadecimal mantissa and the power of two, which is required.
fn hexadecimal(text: &str) -> Option<f64> {
    let (mantissa, exponent) = text.split_once('p')?;
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let exponent = exponent.parse::<i32>().unwrap_or(match exponent {
        negative if negative.starts_with('-') => -10_000,
        _ => 10_000,
    });
    let (whole, decimals) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && decimals.is_empty() {
        return None;
    }
    let mut value = 0.0;
    for digit in whole.chars() {
        value = value * 16.0 + f64::from(digit.to_digit(16)?);
    }
    let mut position = 1.0;
    for digit in decimals.chars() {
        position /= 16.0;
        value += f64::from(digit.to_digit(16)?) * position;
    }
    Some(value * f64::powi(2.0, exponent))
}

/// Whether every underscore is between two digits, or between a prefix such as `0x` and a digit.
fn underscores_separate_digits(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let is_hex = lower.starts_with("0x");
    let has_prefix = is_hex || lower.starts_with("0b") || lower.starts_with("0o");
    let number = if has_prefix { &lower[2..] } else { &lower };
    let is_digit = |byte: u8| byte.is_ascii_digit() || (is_hex && byte.is_ascii_hexdigit());
    let mut after_digit = has_prefix;
    let mut after_underscore = false;
    for byte in number.bytes() {
        let is_underscore = byte == b'_';
        if (is_underscore && !after_digit) || (after_underscore && !is_digit(byte)) {
            return false;
        }
        (after_digit, after_underscore) = (is_digit(byte), is_underscore);
    }
    !after_underscore
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_floats_that_go_reads() {
        for (text, value) in [
            ("0.5", 0.5),
            (".5", 0.5),
            ("5.", 5.0),
            ("+5e-1", 0.5),
            ("-1", -1.0),
            ("1_0.2_5", 10.25),
            ("0x1p-1", 0.5),
            ("0X_1.8P0", 1.5),
            ("0x.8p0", 0.5),
            ("-Inf", f64::NEG_INFINITY),
            ("infinity", f64::INFINITY),
            ("1e-400", 0.0),
            ("0x1p-99999999999", 0.0),
        ] {
            assert_eq!(float(text), Some(value), "{text}");
        }
        assert!(float("nAn").is_some_and(f64::is_nan));
    }

    #[test]
    fn refuses_the_floats_that_go_refuses() {
        for text in [
            "", ".", "e5", "+", "--1", "+-1", " 0.5", "0.5 ", "0.5f", "+nan", "_1", "1_", "1__0",
            "1_.5", "0x1", "0x1.8", "0xp1", "0x.p1", "0x1p", "0x1p+", "0b1", "1e400", "0.5m", "١",
        ] {
            assert_eq!(float(text), None, "{text:?}");
        }
    }

    #[test]
    fn reads_counts_without_signs() {
        assert_eq!(positive("18446744073709551615"), Some(u64::MAX));
        for text in [
            "",
            "0",
            "+1",
            "-1",
            "1_0",
            "1.0",
            "18446744073709551616",
            "8Gi",
        ] {
            assert_eq!(positive(text), None, "{text:?}");
        }
    }
}
