//! Whether victims may be taken does not depend on their order.

use std::collections::BTreeMap;

use apportion_policy::amounts::{ResourceAmounts, ResourceKind, UNLIMITED};
use apportion_policy::reclaimable::{Losses, QueueLoss, Reclaimer, reclaimable};
use apportion_policy::share::QueueShare;
use apportion_policy::tree::QueueTree;
use proptest::prelude::*;

/// What the jobs of two queues lose, each in order: CPU and GPUs.
type Jobs = [Vec<Vec<(u8, u8)>>; 2];

fn amounts((cpu, gpus): (u8, u8)) -> ResourceAmounts {
    ResourceAmounts::new(f64::from(cpu), 0.0, f64::from(gpus))
}

/// A queue with what it may hold and what it holds.
fn queue(
    name: &str,
    parent: Option<&str>,
    may: ResourceAmounts,
    holds: ResourceAmounts,
) -> (QueueShare, Option<String>) {
    let mut queue = QueueShare {
        uid: name.to_owned(),
        ..QueueShare::default()
    };
    for resource in ResourceKind::ALL {
        let share = queue.of_mut(resource);
        share.limit = UNLIMITED;
        share.deserved = may[resource];
        share.fair = may[resource];
        share.allocated = holds[resource];
    }
    (queue, parent.map(str::to_owned))
}

/// Two queues below one that holds what the jobs of both lose, and a queue that reclaims.
fn tree(may: ResourceAmounts, holds: ResourceAmounts) -> (QueueTree, Reclaimer, [usize; 2]) {
    let nothing = ResourceAmounts::default();
    let plenty = ResourceAmounts::new(1000.0, 1000.0, 1000.0);
    let tree = QueueTree::from_shares([
        queue("loser", None, may, holds),
        queue("loser-a", Some("loser"), nothing, holds),
        queue("loser-b", Some("loser"), nothing, holds),
        queue("taker", None, plenty, nothing),
    ]);
    let reclaimer = Reclaimer {
        queue: 3,
        is_preemptible: true,
        wants: ResourceAmounts::new(0.0, 0.0, 1.0),
    };
    (tree, reclaimer, [1, 2])
}

fn losses(job: &[(u8, u8)]) -> Vec<QueueLoss> {
    job.iter()
        .map(|&lost| QueueLoss {
            amounts: amounts(lost),
            ..QueueLoss::default()
        })
        .collect()
}

/// All orders of some jobs.
fn orders(jobs: &[Vec<(u8, u8)>]) -> Vec<Vec<Vec<(u8, u8)>>> {
    if jobs.is_empty() {
        return vec![Vec::new()];
    }
    (0..jobs.len())
        .flat_map(|place| {
            let mut others = jobs.to_vec();
            let job = others.remove(place);
            let rest = orders(&others);
            rest.into_iter()
                .map(move |rest| [vec![job.clone()], rest].concat())
        })
        .collect()
}

fn jobs() -> impl Strategy<Value = Jobs> {
    let loss = (0..4_u8, 1..4_u8);
    // The last loss is the core of a job: never less than one of its other pods.
    let job = (loss, 0..3_usize, 1..3_u8).prop_map(|((cpu, gpus), elastic, core)| {
        let mut losses = vec![(cpu, gpus); elastic];
        losses.push((cpu * core, gpus * core));
        losses
    });
    let few = || proptest::collection::vec(job.clone(), 0..3);
    [few(), few()]
}

proptest! {
    #[test]
    fn victims_may_be_taken_if_they_may_in_any_order(
        jobs in jobs(),
        may in (0..12_u8, 0..12_u8),
        more in (0..3_u8, 0..3_u8),
    ) {
        let all = jobs.concat();
        let lost: ResourceAmounts = all.iter().flatten().map(|&lost| amounts(lost)).sum();
        let (tree, reclaimer, [a, b]) = tree(amounts(may), lost.plus(amounts(more)));
        let by_queue = |queue: &[Vec<(u8, u8)>]| queue.iter().map(|job| losses(job)).collect();
        let victims: Losses = BTreeMap::from([(a, by_queue(&jobs[0])), (b, by_queue(&jobs[1]))]);
        let victims = victims.into_iter().filter(|(_, jobs): &(usize, Vec<_>)| !jobs.is_empty()).collect();
        // A single job with all losses loses them in exactly this order.
        prop_assert_eq!(
            reclaimable(&tree, reclaimer, &victims, 1.0),
            orders(&all).iter().any(|order| {
                let one = BTreeMap::from([(a, vec![losses(&order.concat())])]);
                reclaimable(&tree, reclaimer, &one, 1.0)
            })
        );
    }
}
