//! For how long a running job is safe from others.
//!
//! Against preemption the first value on the way from the victim's queue to the top counts. Against
//! reclaim it is either the same walk, or one that starts below the lowest queue that both sides share:
//! the queues further down belong to the victim's side alone and have no say between the two.

use std::time::Duration;

/// Where the minimum run time against reclaim is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resolution {
    /// From the victim's queue up.
    Queue,
    /// From the child of the lowest common ancestor, on the victim's side, up.
    #[default]
    LowestCommonAncestor,
}

/// The minimum run time along a path, from the top down; the lowest value counts.
#[must_use]
pub fn along(path: &[Option<Duration>], default: Duration) -> Duration {
    let set = path.iter().rev().find_map(|value| *value);
    set.unwrap_or(default)
}

/// The minimum run time against reclaim.
///
/// `path` holds the queues from the top down to the victim's, each with its value; `shared` says how
/// many of them, from the top, are also above the reclaimer's queue or are that queue.
#[must_use]
pub fn against_reclaim(
    resolution: Resolution,
    path: &[Option<Duration>],
    shared: usize,
    default: Duration,
) -> Duration {
    match resolution {
        Resolution::Queue => along(path, default),
        Resolution::LowestCommonAncestor => {
            let end = (shared + 1).min(path.len());
            along(&path[..end], default)
        }
    }
}

/// Whether a job that started at `started` is still safe.
#[must_use]
pub fn is_protected(started: Option<Duration>, minimum: Duration, now: Duration) -> bool {
    started.is_some_and(|started| now < started + minimum)
}

/// Whether a job may be looked at as a victim: a safe one only for what it has above its minimum.
#[must_use]
pub const fn is_candidate(is_protected: bool, is_elastic: bool) -> bool {
    !is_protected || is_elastic
}

/// Whether a victim keeps what a safe job must: all up to its minimum.
#[must_use]
pub const fn keeps_minimum(is_protected: bool, active: usize, gone: usize, minimum: usize) -> bool {
    !is_protected || minimum + gone <= active
}

/// Reads a duration as the settings write it: numbers with the units of Go, and `d` and `w`.
///
/// Returns `None` for anything else, for what is negative and for a number without a unit.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 9] = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("µs", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3_600.0),
        ("d", 86_400.0),
        ("w", 604_800.0),
    ];
    let mut seconds = 0.0;
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.');
        let (unit, tail) = tail.split_at(end.unwrap_or(tail.len()));
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
        seconds += number.parse::<f64>().ok()? * factor;
        rest = tail;
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_durations_as_settings_write_them() {
        assert_eq!(parse_duration("1h30m"), Some(Duration::from_secs(5_400)));
        assert_eq!(parse_duration("1w2d"), Some(Duration::from_secs(777_600)));
        assert_eq!(parse_duration("1.5s"), Some(Duration::from_millis(1_500)));
        for text in ["", "5", "-5s", "1h2", "s", "1x", "five"] {
            assert_eq!(parse_duration(text), None, "{text:?}");
        }
    }
}
