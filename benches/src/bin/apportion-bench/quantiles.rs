//! Many samples as three quantiles.

use serde::{Deserialize, Serialize};

/// The median, and the 10th and 90th percentiles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct SampleQuantiles {
    /// The 10th percentile.
    pub(crate) low: f64,
    /// The median.
    pub(crate) middle: f64,
    /// The 90th percentile.
    pub(crate) high: f64,
}

impl SampleQuantiles {
    /// The quantiles of any number of samples; zeros for none.
    pub(crate) fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |tenth: usize| {
            let place = samples.len().saturating_sub(1) * tenth / 10;
            samples.get(place).copied().unwrap_or(0.0)
        };
        Self {
            low: at(1),
            middle: at(5),
            high: at(9),
        }
    }
}
