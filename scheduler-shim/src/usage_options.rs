//! The options for past usage of queues, in the words of KAI's `usageParams`.
//!
//! Off unless a window is given, as in KAI, whose third kind of window (`cron`) is not supported. `simulate` has none
//! of them: the record that it reads contains them.

use apportion_kubernetes::since_epoch;
use std::time::Duration;

use apportion_policy::usage::UsageWindow;
use clap::{Args, ValueEnum};
use jiff::{Span, SpanRelativeTo, Timestamp};

use apportion_model::usage_history::UsageParams;

/// The shortest window. Its buckets are not shorter than the interval of samples.
const LEAST: Duration = Duration::from_secs(60);

/// How past use counts.
#[derive(Args, Clone, Debug)]
pub(crate) struct UsageOptions {
    /// How far back past usage counts, such as 1w or 12h: queues that used more than their weights allow get less
    /// over-quota capacity [default: past usage does not count]
    #[arg(long, value_name = "TIME", value_parser = window)]
    usage_window_size: Option<Duration>,

    /// How the window moves
    #[arg(
        long,
        value_name = "KIND",
        default_value = "sliding",
        requires = "usage_window_size"
    )]
    usage_window_type: UsageWindowType,

    /// Start of the first tumbling window
    #[arg(
        long,
        value_name = "RFC3339",
        requires = "usage_window_size",
        required_if_eq("usage_window_type", "tumbling")
    )]
    usage_tumbling_window_start_time: Option<Timestamp>,

    /// Age at which usage counts half [default: all usage in the window counts the same]
    #[arg(long, value_name = "TIME", requires = "usage_window_size", value_parser = time)]
    usage_half_life_period: Option<Duration>,

    /// Weight of past usage
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 1.0,
        requires = "usage_window_size",
        value_parser = weight
    )]
    k_value: f64,
}

/// How a window moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum UsageWindowType {
    /// The window ends now
    Sliding,
    /// A new window starts where the last one ended, and forgets earlier usage
    Tumbling,
}

impl UsageOptions {
    /// How past usage counts, if it does.
    pub(crate) fn params(&self) -> Option<UsageParams> {
        let length = self.usage_window_size?;
        let start = self.usage_tumbling_window_start_time;
        Some(UsageParams {
            window: match self.usage_window_type {
                UsageWindowType::Sliding => UsageWindow::Sliding(length),
                UsageWindowType::Tumbling => UsageWindow::Tumbling {
                    start: start.map(since_epoch).unwrap_or_default(),
                    length,
                },
            },
            half_life: self.usage_half_life_period,
            k_value: self.k_value,
        })
    }
}

fn window(text: &str) -> Result<Duration, String> {
    let length = time(text)?;
    if length < LEAST {
        return Err(format!("must be at least {} seconds", LEAST.as_secs()));
    }
    Ok(length)
}

fn time(text: &str) -> Result<Duration, String> {
    let span: Span = text
        .parse()
        .map_err(|_| "expected a duration like 1w, 2d, 12h or 30m")?;
    let long = span.to_duration(SpanRelativeTo::days_are_24_hours());
    let long = long.map_err(|_| "months and years have no fixed length; use days or weeks")?;
    let long = Duration::try_from(long).ok();
    long.filter(|long| *long >= Duration::from_secs(1))
        .ok_or_else(|| "must be at least a second".to_owned())
}

fn weight(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number
        .filter(|number| number.is_finite() && *number >= 0.0)
        .ok_or_else(|| "expected a number, 0 or above".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        over_time: UsageOptions,
    }

    fn params(line: &str) -> Result<Option<UsageParams>, String> {
        let words = std::iter::once("run").chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(line.over_time.params())
    }

    #[test]
    fn past_use_does_not_count_unless_somebody_says_for_how_long() {
        assert_eq!(params("").unwrap(), None);
        for alone in [
            "--usage-half-life-period 1h",
            "--k-value 2",
            "--usage-window-type sliding",
        ] {
            let why = params(alone).unwrap_err();
            assert!(why.contains("--usage-window-size"), "{why}");
        }
    }

    #[test]
    fn times_are_written_as_in_kai() {
        let line = "--usage-window-size 1w --usage-half-life-period 1h30m --k-value 0.5";
        let week = UsageParams {
            window: UsageWindow::WEEK,
            half_life: Some(Duration::from_secs(5400)),
            k_value: 0.5,
        };
        assert_eq!(params(line).unwrap(), Some(week));
        let line = "--usage-window-size 2d --usage-window-type tumbling";
        let tumbling = UsageWindow::Tumbling {
            start: Duration::from_secs(86_400),
            length: Duration::from_secs(172_800),
        };
        assert!(params(line).unwrap_err().contains("start-time"));
        let start = "--usage-tumbling-window-start-time 1970-01-02T00:00:00Z";
        let found = params(&format!("{line} {start}")).unwrap().unwrap();
        assert_eq!(found.window, tumbling);
    }

    #[test]
    fn what_can_not_be_meant_is_refused() {
        for (line, why) in [
            ("--usage-window-size 10s", "at least 60 seconds"),
            ("--usage-window-size soon", "like 1w"),
            ("--usage-window-size 1mo", "no fixed length"),
            ("--usage-window-size 1w --k-value=-1", "0 or above"),
            (
                "--usage-window-size 1w --usage-half-life-period 0s",
                "at least a second",
            ),
        ] {
            let error = params(line).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
