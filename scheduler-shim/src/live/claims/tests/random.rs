//! Random steps: no device is ever given beyond what it has, and nobody waits in the end who could have one.

use std::time::Duration;

use proptest::prelude::*;

use super::{ATTACHED, BROKEN, ClaimCluster, UNITS, WHOLE};

#[derive(Clone, Debug)]
enum ClaimStep {
    Create(Option<i64>, Option<usize>),
    CreateExtended,
    DeleteClaim,
    /// The scheduler ends after it wrote the claims of a pod, and another one starts.
    Crash(usize),
    Delete(usize),
    Decide,
    PodEvent,
    ClaimEvent,
    Answer(usize, Option<usize>),
    Attach(usize, bool),
    /// The driver says that a device is ready, or broken.
    Driver(usize, bool),
    /// More time goes by than devices have.
    Late,
    Evict,
    Restart,
}

fn step() -> impl Strategy<Value = ClaimStep> {
    let amount = prop::option::weighted(0.8, 1..=UNITS);
    prop_oneof![
        5 => (amount, prop::option::weighted(0.2, 0..8_usize))
            .prop_map(|(amount, shares)| ClaimStep::Create(amount, shares)),
        3 => Just(ClaimStep::CreateExtended),
        3 => Just(ClaimStep::DeleteClaim),
        1 => (0..8_usize).prop_map(ClaimStep::Crash),
        2 => (0..12_usize).prop_map(ClaimStep::Delete),
        6 => Just(ClaimStep::Decide),
        8 => Just(ClaimStep::PodEvent),
        8 => Just(ClaimStep::ClaimEvent),
        8 => (0..8_usize, prop::option::weighted(0.2, 0..2_usize))
            .prop_map(|(which, fails)| ClaimStep::Answer(which, fails)),
        6 => (0..8_usize, prop::bool::weighted(0.2))
            .prop_map(|(which, fails)| ClaimStep::Attach(which, fails)),
        4 => (0..12_usize, prop::bool::weighted(0.3))
            .prop_map(|(which, is_broken)| ClaimStep::Driver(which, is_broken)),
        1 => Just(ClaimStep::Late),
        4 => Just(ClaimStep::Evict),
        1 => Just(ClaimStep::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn no_device_is_given_twice_whatever_the_order_of_answers(
        has_conditions in prop::bool::ANY,
        steps in prop::collection::vec(step(), 30..120),
    ) {
        let mut cluster = ClaimCluster::with(has_conditions);
        for step in &steps {
            match step {
                ClaimStep::Create(amount, shares) => cluster.create(*amount, *shares),
                ClaimStep::CreateExtended => drop(cluster.create_extended(WHOLE)),
                ClaimStep::DeleteClaim => cluster.delete_claim(),
                ClaimStep::Crash(which) => cluster.crash(*which),
                ClaimStep::Delete(which) => cluster.delete(*which),
                ClaimStep::Decide => cluster.decide(),
                ClaimStep::PodEvent => {
                    if let Some(event) = cluster.pod_events.pop_front() {
                        cluster.deliver(event);
                    }
                }
                ClaimStep::ClaimEvent => {
                    if let Some(event) = cluster.claim_events.pop_front() {
                        cluster.deliver(event);
                    }
                }
                ClaimStep::Answer(which, fails) => cluster.answer(*which, *fails),
                ClaimStep::Attach(which, fails) => cluster.attach(*which, *fails),
                ClaimStep::Driver(which, is_broken) => {
                    // It says so once.
                    let mut silent = cluster.claims.iter().filter(|(_, claim)| claim["status"]["devices"].is_null());
                    let name = silent.nth(*which).map(|(name, _)| name.clone());
                    let condition = if *is_broken { BROKEN } else { ATTACHED };
                    name.into_iter().for_each(|name| cluster.driver_says(&name, condition));
                }
                ClaimStep::Late => cluster.now += Duration::from_secs(700),
                ClaimStep::Evict => cluster.evict(),
                ClaimStep::Restart => {
                    // The leader's requests end before the next one leads.
                    while !cluster.binds.is_empty() || !cluster.attachments.is_empty() {
                        cluster.answer(0, None);
                        cluster.attach(0, false);
                    }
                    cluster.evictions.clear();
                    cluster.start_scheduler();
                }
            }
            cluster.check();
        }
        cluster.settle();
    }
}
