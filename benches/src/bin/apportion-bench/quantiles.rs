//! Many samples as three numbers.

use serde::{Deserialize, Serialize};

/// The middle, and where the outer tenths begin.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct SampleQuantiles {
    /// One sample in ten is below.
    pub(crate) low: f64,
    /// Half of them are.
    pub(crate) middle: f64,
    /// Nine in ten are.
    pub(crate) high: f64,
}

impl SampleQuantiles {
    /// Of any number of samples; of none it is zero.
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
