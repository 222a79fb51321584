//! Many latencies as a few figures.

use std::fmt;
use std::time::Duration;

/// The median, the 99th percentile, and the worst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatencyPercentiles {
    median: Duration,
    p99: Duration,
    worst: Duration,
}

impl LatencyPercentiles {
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let last = times.len().saturating_sub(1);
        let at = |percent: usize| times.get(last * percent / 100).copied().unwrap_or_default();
        Self {
            median: at(50),
            p99: at(99),
            worst: at(100),
        }
    }
}

impl fmt::Display for LatencyPercentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        let (median, p99, worst) = (ms(self.median), ms(self.p99), ms(self.worst));
        write!(
            f,
            "p50 {median:.0} ms, p99 {p99:.0} ms, worst {worst:.0} ms"
        )
    }
}
