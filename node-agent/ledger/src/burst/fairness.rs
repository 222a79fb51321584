//! The max-min level of several demands, some of which are used already.

use apportion_abi::Bytes;

/// What one elastic grant uses and wants above its guarantee.
pub(super) struct BurstDemand {
    pub(super) used: Bytes,
    pub(super) wanted: Bytes,
}

impl BurstDemand {
    /// What it gets at a level: no more than it wants, and no less than it uses.
    pub(super) fn at(&self, level: Bytes) -> Bytes {
        self.wanted.min(level).max(self.used)
    }
}

/// The highest level at which all demands fit together.
pub(super) fn water_level(demands: &[BurstDemand], left: Bytes) -> Bytes {
    let fits = |level: u64| {
        let sum: Bytes = demands.iter().map(|demand| demand.at(Bytes(level))).sum();
        sum <= left
    };
    let (mut low, mut high) = (0, left.0);
    while low < high {
        let middle = high - (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Bytes(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(used: u64, wanted: u64) -> BurstDemand {
        BurstDemand {
            used: Bytes(used),
            wanted: Bytes(wanted),
        }
    }

    #[test]
    fn a_level_is_the_same_for_all_who_want_more_and_do_not_use_more() {
        let demands = [demand(0, 100), demand(0, 10), demand(50, 50), demand(0, 90)];
        assert_eq!(water_level(&demands, Bytes(160)), Bytes(50));
        assert_eq!(water_level(&demands, Bytes(100)), Bytes(20));
        assert_eq!(water_level(&demands, Bytes(40)), Bytes(0));
    }
}
