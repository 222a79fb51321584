//! Durations as Kubernetes writes them: Go's notation, `1h30m`, `5m0s`, `300ms`.

use std::time::Duration;

const NANOS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Units that Go does not have, but the arguments of KAI's scheduler plugins do.
const DAYS_AND_WEEKS: [(&str, u128); 2] = [("d", 86_400_000_000_000), ("w", 604_800_000_000_000)];

/// Parses a duration; `None` for anything else, also for a negative one.
pub fn parse_duration(text: &str) -> Option<Duration> {
    parse(text, &[])
}

/// Parses a duration that may also have days and weeks, `1w2d`, as in arguments of KAI's scheduler plugins.
pub fn parse_long_duration(text: &str) -> Option<Duration> {
    parse(text, &DAYS_AND_WEEKS)
}

/// The message for a text that is not a duration.
pub fn not_a_duration(text: &str) -> String {
    let days = match parse_long_duration(text) {
        Some(duration) => format!(" (write {})", show_duration(duration)),
        None => String::new(),
    };
    format!("{text:?} is not a duration such as 90s, 30m or 12h{days}")
}

fn parse(text: &str, more_units: &[(&str, u128)]) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let (nanos, after) = term(rest, more_units)?;
        total = total.checked_add(nanos)?;
        rest = after;
    }
    // Go keeps a duration in 63 bits.
    let nanos = u64::try_from(total).ok()?;
    (i64::try_from(nanos).is_ok()).then(|| Duration::from_nanos(nanos))
}

/// One number with its unit, and what follows.
fn term<'t>(text: &'t str, more_units: &[(&str, u128)]) -> Option<(u128, &'t str)> {
    let number_ends = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, rest) = text.split_at(number_ends);
    let unit_ends = rest
        .find(|c: char| c.is_ascii_digit() || c == '.')
        .unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_ends);
    let mut units = NANOS.iter().chain(more_units);
    let (_, scale) = units.find(|(name, _)| *name == unit)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() {
        return None;
    }
    let whole: u128 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    let nanos = whole
        .checked_mul(*scale)?
        .checked_add(share(part, *scale)?)?;
    Some((nanos, rest))
}

/// `0.part` of `scale`, cut to whole nanoseconds.
fn share(part: &str, scale: u128) -> Option<u128> {
    let digits = &part[..part.len().min(18)];
    if digits.is_empty() {
        return Some(0);
    }
    let value: u128 = digits.parse().ok()?;
    let places = u32::try_from(digits.len()).ok()?;
    Some(value * scale / 10_u128.pow(places))
}

/// Writes a duration as Go does.
pub fn show_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let (unit, scale) = match nanos {
        0 => return "0s".to_owned(),
        1..1_000 => ("ns", 1),
        1_000..1_000_000 => ("µs", 1_000),
        1_000_000..1_000_000_000 => ("ms", 1_000_000),
        _ => ("s", 1_000_000_000),
    };
    let minutes = nanos / 60_000_000_000;
    let rest = fraction(nanos % 60_000_000_000, scale);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{rest}{unit}"),
        (0, minutes) => format!("{minutes}m{rest}{unit}"),
        (hours, minutes) => format!("{hours}h{minutes}m{rest}{unit}"),
    }
}

fn fraction(nanos: u128, scale: u128) -> String {
    let width = scale.ilog10() as usize;
    let whole = nanos / scale;
    let part = format!("{:0width$}", nanos % scale);
    match part.trim_end_matches('0') {
        "" => whole.to_string(),
        part => format!("{whole}.{part}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_go_durations() {
        for (text, shown) in [
            ("5m", "5m0s"),
            ("1h30m", "1h30m0s"),
            ("90s", "1m30s"),
            ("1.5s", "1.5s"),
            ("300ms", "300ms"),
            (".5h", "30m0s"),
            ("0", "0s"),
            ("1us", "1µs"),
            ("100h", "100h0m0s"),
        ] {
            assert_eq!(
                parse_duration(text).map(show_duration).as_deref(),
                Some(shown),
                "{text}"
            );
        }
    }

    #[test]
    fn days_and_weeks_are_only_in_long_durations() {
        let long = |text| parse_long_duration(text).map(show_duration);
        assert_eq!(long("1w2d").as_deref(), Some("216h0m0s"));
        assert_eq!(long("1.5d12h").as_deref(), Some("48h0m0s"));
        assert_eq!(long("1d2"), None);
        assert_eq!(parse_duration("1d"), None);
        assert_eq!(
            not_a_duration("1d"),
            r#""1d" is not a duration such as 90s, 30m or 12h (write 24h0m0s)"#
        );
    }

    #[test]
    fn a_number_without_a_unit_is_no_duration() {
        for text in [
            "5",
            "abc",
            "",
            "-5m",
            "5 m",
            "5x",
            ".",
            "1h5",
            "9999999999h",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
