//! How a resource is divided among queues, beyond what the oracles check.

use std::time::Duration;

use apportion_policy::amounts::{ResourceKind, UNLIMITED};
use apportion_policy::divide::{DivisionSettings, SurplusGranularity, divide};
use apportion_policy::share::{QueueShare, ResourceShare};
use proptest::prelude::*;

/// A queue without a quota that wants this many cards.
fn wants(name: &str, cards: f64) -> QueueShare {
    let gpu = ResourceShare {
        limit: UNLIMITED,
        weight: 1.0,
        request: cards,
        ..ResourceShare::default()
    };
    QueueShare {
        uid: name.to_owned(),
        created: Duration::from_secs(1),
        shares: [ResourceShare::default(), ResourceShare::default(), gpu],
        ..QueueShare::default()
    }
}

fn fair(division: DivisionSettings, total: f64, mut queues: Vec<QueueShare>) -> Vec<f64> {
    let members: Vec<usize> = (0..queues.len()).collect();
    divide(division, ResourceKind::Gpu, total, &mut queues, &members);
    let shares = queues.iter().map(|queue| queue.of(ResourceKind::Gpu).fair);
    shares.collect()
}

const WHOLE: DivisionSettings = DivisionSettings {
    k_value: 1.0,
    pieces: SurplusGranularity::Whole,
};
const HUNDREDTHS: DivisionSettings = DivisionSettings {
    k_value: 1.0,
    pieces: SurplusGranularity::Hundredths,
};

#[test]
fn one_card_for_two_that_want_most_of_it() {
    let queues = || vec![wants("a", 0.9), wants("b", 0.9)];
    assert_eq!(fair(WHOLE, 1.0, queues()), [1.0, 0.0]);
    assert_eq!(fair(HUNDREDTHS, 1.0, queues()), [0.5, 0.5]);
}

#[test]
fn one_card_for_three_that_want_half_of_it() {
    let queues = vec![wants("a", 0.5), wants("b", 0.5), wants("c", 0.5)];
    let shares = fair(HUNDREDTHS, 1.0, queues);
    assert!(shares.iter().all(|share| (share - 1.0 / 3.0).abs() < 0.01));
}

#[test]
fn who_used_more_gets_less() {
    let mut queues = vec![wants("a", 10.0), wants("b", 10.0)];
    queues[0].of_mut(ResourceKind::Gpu).usage = 0.5;
    let shares = fair(WHOLE, 12.0, queues);
    assert_eq!(shares, [4.0, 8.0]);
}

proptest! {
    #[test]
    fn shares_sum_to_no_more_than_there_is(
        total in 0..64_u32,
        wanted in prop::collection::vec((0..400_u32, 0..4_u32, prop::option::of(0..20_u32)), 1..6),
        in_hundredths in any::<bool>(),
    ) {
        let queues = wanted.iter().enumerate().map(|(number, (hundredths, weight, limit))| {
            let mut queue = wants(&number.to_string(), f64::from(*hundredths) / 100.0);
            let share = queue.of_mut(ResourceKind::Gpu);
            share.weight = f64::from(*weight);
            share.limit = limit.map_or(UNLIMITED, f64::from);
            queue
        });
        let division = if in_hundredths { HUNDREDTHS } else { WHOLE };
        let queues: Vec<QueueShare> = queues.collect();
        let shares = fair(division, f64::from(total), queues.clone());
        prop_assert!(shares.iter().sum::<f64>() <= f64::from(total) + 1e-6);
        if in_hundredths {
            for (queue, share) in queues.iter().zip(shares) {
                prop_assert!(share <= queue.of(ResourceKind::Gpu).requestable() + 1e-6);
            }
        }
    }
}
