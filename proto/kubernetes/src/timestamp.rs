//! Timestamps of objects as durations since 1970, the clock of the policy.

use std::time::Duration;

use jiff::Timestamp;

/// The time since 1970; zero for a time before.
pub fn since_epoch(at: Timestamp) -> Duration {
    Duration::try_from(at.as_duration()).unwrap_or_default()
}

/// Parses a timestamp in the form of RFC 3339, such as `2026-01-01T00:00:00Z`.
pub fn parse_timestamp(text: &str) -> Option<Duration> {
    text.parse().ok().map(since_epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_api_server_writes() {
        assert_eq!(
            parse_timestamp("1970-01-02T00:00:00Z"),
            Some(Duration::from_secs(86_400))
        );
        assert_eq!(
            parse_timestamp("1970-01-01T00:00:00.250000Z"),
            Some(Duration::from_millis(250))
        );
        assert_eq!(
            parse_timestamp("1969-12-31T23:59:59Z"),
            Some(Duration::ZERO)
        );
        assert_eq!(parse_timestamp("yesterday"), None);
    }
}
