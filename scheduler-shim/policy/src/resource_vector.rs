//! Amounts of what a node has, for counting: floats, so that shares of cards add up.

/// Slack for sums of shares.
const SLACK: f64 = 1e-6;

/// CPU, memory, pods and cards.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ResourceVector(pub(crate) [f64; 4]);

impl ResourceVector {
    pub(crate) fn plus(self, other: Self) -> Self {
        self.with(other, |mine, other| mine + other)
    }

    /// The lesser of each resource.
    pub(crate) fn least(self, other: Self) -> Self {
        self.with(other, f64::min)
    }

    fn with(self, other: Self, of: impl Fn(f64, f64) -> f64) -> Self {
        let mut parts = self;
        for (mine, other) in parts.0.iter_mut().zip(other.0) {
            *mine = of(*mine, other);
        }
        parts
    }

    /// Whether it is enough for `other`.
    pub(crate) fn covers(self, other: Self) -> bool {
        let pairs = self.0.iter().zip(other.0);
        pairs.into_iter().all(|(has, asks)| asks <= has + SLACK)
    }

    /// How often `ask` fits, at most `most` times.
    pub(crate) fn times(self, ask: Self, most: f64) -> i64 {
        let asked = self.0.iter().zip(ask.0).filter(|(_, ask)| *ask > 0.0);
        let times = asked.map(|(has, ask)| (has + SLACK) / ask);
        // The value is not negative, so the cast rounds down.
        times.fold(most, f64::min).max(0.0) as i64
    }
}
