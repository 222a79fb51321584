//! The weighted max-min parts of several demands, some of which are used already.

use apportion_abi::{BurstWeight, Bytes};

/// What one elastic grant uses and wants above its guarantee.
#[derive(Clone, Copy, Debug)]
pub(super) struct BurstDemand {
    pub(super) used: Bytes,
    pub(super) wanted: Bytes,
    pub(super) weight: BurstWeight,
}

/// How high the memory stands for those who are treated by weight: a weight of `unit` gets that many bytes, and others in
/// proportion. The largest weight is the unit, so that no part is rounded by more than a byte.
#[derive(Clone, Copy, Debug)]
struct FairLevel {
    bytes: u128,
    unit: u32,
}

impl FairLevel {
    fn of(self, weight: u32) -> Bytes {
        let bytes = self.bytes * u128::from(weight) / u128::from(self.unit.max(1));
        Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

impl BurstDemand {
    /// What it gets at a level: no more than it wants, and no less than it uses.
    fn at(&self, level: FairLevel) -> Bytes {
        let part = level.of(self.thousandths());
        self.wanted.min(part).max(self.used)
    }

    /// Those without a weight come after all others, and are equal then.
    fn thousandths(&self) -> u32 {
        self.weight.thousandths().max(1)
    }

    fn is_last(&self) -> bool {
        self.weight == BurstWeight::NONE
    }
}

/// What each demand gets of `left`, which is not enough for all.
pub(super) fn fair_parts(demands: &[BurstDemand], left: Bytes) -> Vec<Bytes> {
    let (last, first): (Vec<&BurstDemand>, Vec<&BurstDemand>) =
        demands.iter().partition(|demand| demand.is_last());
    let used: Bytes = last.iter().map(|demand| demand.used).sum();
    let high = highest_level(&first, left.minus(used));
    let has_all = first.iter().all(|demand| demand.at(high) == demand.wanted);
    let given: Bytes = first.iter().map(|demand| demand.at(high)).sum();
    let rest = if has_all {
        left.minus(given)
    } else {
        Bytes::ZERO
    };
    let low = highest_level(&last, rest);
    let parts = demands.iter().map(|demand| {
        if demand.is_last() {
            demand.at(low)
        } else {
            demand.at(high)
        }
    });
    parts.collect()
}

/// The highest level at which these demands fit together.
fn highest_level(demands: &[&BurstDemand], left: Bytes) -> FairLevel {
    let weights = || demands.iter().map(|demand| demand.thousandths());
    let unit = weights().max().unwrap_or(1);
    let smallest = weights().min().unwrap_or(1);
    let at = |bytes| FairLevel { bytes, unit };
    let fits = |bytes| {
        let parts = demands.iter().map(|demand| demand.at(at(bytes)));
        parts.sum::<Bytes>() <= left
    };
    // The level at which the smallest weight alone would have all.
    let (mut low, mut high) = (0, u128::from(left.0) * u128::from(unit.div_ceil(smallest)));
    while low < high {
        let middle = high - (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    at(low)
}

#[cfg(test)]
mod tests {
    use apportion_abi::SHARE_UNIT;
    use proptest::prelude::*;

    use super::*;

    fn units(count: u64) -> Bytes {
        Bytes(count * SHARE_UNIT)
    }

    fn demand(used: u64, wanted: u64, thousandths: u32) -> BurstDemand {
        BurstDemand {
            used: units(used),
            wanted: units(wanted),
            weight: BurstWeight::from_thousandths(thousandths).unwrap(),
        }
    }

    fn parts(demands: &[BurstDemand], left: u64) -> Vec<u64> {
        let parts = fair_parts(demands, units(left)).into_iter();
        parts.map(|part| part.0 / SHARE_UNIT).collect()
    }

    #[test]
    fn equal_weights_get_equal_parts_if_they_want_more_and_do_not_use_more() {
        let demands = [(0, 100), (0, 10), (50, 50), (0, 90)];
        let demands = demands.map(|(used, wanted)| demand(used, wanted, 1000));
        assert_eq!(parts(&demands, 160), [50, 10, 50, 50]);
        assert_eq!(parts(&demands, 100), [20, 10, 50, 20]);
        assert_eq!(parts(&demands, 40), [0, 0, 50, 0]);
    }

    #[test]
    fn parts_are_in_proportion_to_weights_and_what_one_does_not_want_goes_to_others() {
        let all = [demand(0, 1000, 3000), demand(0, 1000, 1000)];
        assert_eq!(parts(&all, 400), [300, 100]);
        let modest = [demand(0, 60, 3000), demand(0, 1000, 1000)];
        assert_eq!(parts(&modest, 400), [60, 340]);
        let half = [
            demand(0, 1000, 1000),
            demand(0, 1000, 500),
            demand(0, 1000, 500),
        ];
        assert_eq!(parts(&half, 400), [200, 100, 100]);
    }

    #[test]
    fn a_small_weight_loses_nothing_to_the_rounding_of_a_large_one() {
        let all = [(424, 31_334), (310, 22_853), (7, 500), (27, 2000)];
        let all = all.map(|(wanted, thousandths)| demand(0, wanted, thousandths));
        assert_eq!(parts(&all, 767), [423, 309, 6, 27]);
    }

    #[test]
    fn without_a_weight_one_gets_what_others_leave() {
        let crowded = [demand(0, 500, 1), demand(0, 500, 0), demand(20, 500, 0)];
        assert_eq!(parts(&crowded, 400), [380, 0, 20]);
        let left = [demand(0, 100, 1), demand(0, 500, 0), demand(20, 500, 0)];
        assert_eq!(parts(&left, 400), [100, 150, 150]);
    }

    /// The rule before there were weights, in bytes.
    fn unweighted(demands: &[BurstDemand], left: Bytes) -> Vec<Bytes> {
        let at = |demand: &BurstDemand, level| demand.wanted.min(Bytes(level)).max(demand.used);
        let fits = |level| demands.iter().map(|of| at(of, level)).sum::<Bytes>() <= left;
        let (mut low, mut high) = (0, left.0);
        while low < high {
            let middle = high - (high - low) / 2;
            if fits(middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        demands.iter().map(|demand| at(demand, low)).collect()
    }

    fn weight() -> impl Strategy<Value = u32> {
        prop_oneof![
            3 => prop_oneof![Just(1000), Just(2000), Just(500), Just(10_000)],
            1 => Just(0_u32),
            2 => 1..=BurstWeight::LARGEST.thousandths(),
        ]
    }

    fn crowd() -> impl Strategy<Value = (Vec<BurstDemand>, Bytes)> {
        let one = (0..300_u64, 0..1000_u64, weight());
        let all = proptest::collection::vec(one, 1..8);
        let crowd = all.prop_map(|all| {
            let all = all
                .into_iter()
                .map(|(used, more, weight)| demand(used, used + more, weight));
            all.collect::<Vec<_>>()
        });
        (crowd, 0..4_000_000_000_u64).prop_map(|(demands, left)| (demands, Bytes(left)))
    }

    proptest! {
        #[test]
        fn nobody_waits_while_another_has_more_for_its_weight((demands, left) in crowd()) {
            let parts = fair_parts(&demands, left);
            let used: Bytes = demands.iter().map(|demand| demand.used).sum();
            let sum: Bytes = parts.iter().copied().sum();
            prop_assert!(sum <= left.max(used), "{parts:?}");
            for (one, part) in demands.iter().zip(&parts) {
                prop_assert!(one.used <= *part && *part <= one.wanted);
                if *part == one.wanted {
                    continue;
                }
                // What nobody has is less than it takes to raise all by a step.
                let count = demands.len() as u64;
                prop_assert!(left.minus(sum) < units(count + 1), "{left} left, {parts:?}");
                for (other, has) in demands.iter().zip(&parts) {
                    if *has <= other.used {
                        continue;
                    }
                    prop_assert!(one.is_last() || !other.is_last(), "{one:?} waits for {other:?}");
                    if one.is_last() != other.is_last() {
                        continue;
                    }
                    // A part is rounded down by less than the smallest share.
                    let own = u128::from(part.0 + SHARE_UNIT) * u128::from(other.thousandths());
                    let others = u128::from(has.0) * u128::from(one.thousandths());
                    prop_assert!(others <= own, "{one:?} has {part}, {other:?} has {has}");
                }
            }
        }

        #[test]
        fn equal_weights_give_what_there_was_before_weights(
            (demands, left) in crowd(), weight in 1..=BurstWeight::LARGEST.thousandths(),
        ) {
            let weight = BurstWeight::from_thousandths(weight).unwrap();
            let demands: Vec<_> = (demands.into_iter())
                .map(|demand| BurstDemand { weight, ..demand })
                .collect();
            // The ledger gives whole units.
            let whole = |parts: Vec<Bytes>| -> Vec<u64> {
                parts.into_iter().map(|part| part.0 / SHARE_UNIT).collect()
            };
            let wanted: Bytes = demands.iter().map(|demand| demand.wanted).sum();
            if wanted > left {
                let parts = whole(fair_parts(&demands, left));
                prop_assert_eq!(parts, whole(unweighted(&demands, left)));
            }
        }
    }
}
