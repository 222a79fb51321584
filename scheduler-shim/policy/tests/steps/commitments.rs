//! Properties that hold in any cluster.

use apportion_abi::{Bytes, Share};
use apportion_policy::cluster::{Job, Node, PodSet, SubGroupSet, Task, TaskGpuRequest, TaskStatus};
use apportion_policy::{Cluster, Decision, TaskPlacement, plan_observed, step};
use proptest::prelude::*;

use super::checks::{check_cards, check_gangs, check_queues};
use super::clusters::{NOW, cluster, queue, quota};
use super::rounds::{are_only_reservations, carry_on, shuffled};

const ROUNDS: usize = 20;

proptest! {
    #[test]
    fn cards_limits_quotas_and_gangs_hold_round_after_round(mut cluster in cluster()) {
        for _ in 0..ROUNDS {
            let decisions = step(NOW, &cluster);
            if decisions.is_empty() {
                break;
            }
            carry_on(&mut cluster, &decisions);
            check_cards(&cluster)?;
            check_queues(&cluster)?;
            check_gangs(&cluster, &decisions)?;
        }
    }

    #[test]
    fn a_cluster_settles_and_nothing_is_evicted_in_vain(mut cluster in cluster()) {
        let mut changes = Vec::new();
        for _ in 0..ROUNDS {
            let decisions = step(NOW, &cluster);
            if are_only_reservations(&decisions) {
                return Ok(());
            }
            carry_on(&mut cluster, &decisions);
            changes.push(decisions);
        }
        prop_assert!(false, "still changing: {:?}", changes.split_off(ROUNDS - 4));
    }

    #[test]
    fn what_is_seen_of_a_plan_at_last_is_what_is_done(mut cluster in cluster()) {
        for _ in 0..4 {
            let mut seen = Vec::new();
            plan_observed(NOW, &cluster, |session, _| seen = session.decisions());
            let decisions = step(NOW, &cluster);
            prop_assert_eq!(&seen, &decisions);
            carry_on(&mut cluster, &decisions);
        }
    }

    #[test]
    fn the_order_of_the_input_does_not_matter(mut cluster in cluster(), seed in 0..100_usize) {
        for _ in 0..3 {
            let decisions = step(NOW, &cluster);
            prop_assert_eq!(&decisions, &step(NOW, &shuffled(&cluster, seed)));
            carry_on(&mut cluster, &decisions);
        }
    }
}

#[test]
fn one_card_is_bound_where_it_leaves_the_smallest_hole() {
    let task = |name: &str, fraction: &str, on: Option<(&str, &str)>| Task {
        name: name.to_owned(),
        set: "default".to_owned(),
        status: if on.is_some() {
            TaskStatus::Running
        } else {
            TaskStatus::Pending
        },
        node: on.map(|(node, _)| node.to_owned()),
        on: on.iter().map(|(_, card)| (*card).to_owned()).collect(),
        cards: TaskGpuRequest::Shared {
            share: Share::Fraction(fraction.parse().unwrap()),
            devices: 1,
        },
        ..Task::default()
    };
    let job = |task: Task| Job {
        name: task.name.clone(),
        queue: "all".to_owned(),
        is_preemptible: true,
        root: SubGroupSet {
            sets: vec![PodSet {
                name: "default".to_owned(),
                min_available: 1,
                topology: None,
            }],
            ..SubGroupSet::default()
        },
        tasks: vec![task],
        ..Job::default()
    };
    let node = |name: &str| Node {
        name: name.to_owned(),
        pods: 10,
        cards: 1,
        card_memory: Bytes::from_mib(1000),
        ..Node::default()
    };
    let cluster = Cluster {
        nodes: vec![node("a"), node("b")],
        queues: vec![queue("all", None, quota(-1.0, -1.0, 1.0), 100)],
        jobs: vec![
            job(task("low", "0.1", Some(("a", "a0")))).into(),
            job(task("high", "0.7", Some(("b", "b0")))).into(),
            job(task("new", "0.3", None)).into(),
        ],
        ..Cluster::default()
    };
    let placement = TaskPlacement {
        node: "b".to_owned(),
        cards: vec!["b0".to_owned()],
        zones: Vec::new(),
        claims: Vec::new(),
    };
    let bind = Decision::Bind {
        job: "new".to_owned(),
        task: "new".to_owned(),
        placement,
    };
    assert_eq!(step(NOW, &cluster), [bind]);
}
