//! A task that is pinned to a card goes there or waits, and all others are placed as if it were any task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::{Bytes, Share};
use apportion_policy::cluster::{
    Job, ListedCard, Node, PinnedCard, PodSet, Queue, SubGroupSet, Task, TaskGpuRequest, TaskStatus,
};
use apportion_policy::{Cluster, Decision, step};
use proptest::prelude::*;

/// The memory of each card, and the shares that tasks ask for.
const CARD: Bytes = Bytes::from_mib(1000);
const SHARES: [u64; 4] = [200, 400, 600, 1000];
const NODES: [&str; 2] = ["a", "b"];
const CARDS: [&str; 3] = ["0", "1", "2"];

fn card(node: usize, card: usize) -> PinnedCard {
    PinnedCard {
        node: NODES[node].to_owned(),
        card: format!("{}-{}", NODES[node], CARDS[card]),
    }
}

fn cluster() -> Cluster {
    let node = |(number, name): (usize, &&str)| Node {
        name: (*name).to_owned(),
        pods: 100,
        listed: (0..CARDS.len())
            .map(|index| ListedCard {
                name: card(number, index).card,
                memory: CARD,
                is_healthy: true,
            })
            .collect(),
        ..Node::default()
    };
    Cluster {
        nodes: NODES.iter().enumerate().map(node).collect(),
        queues: vec![Queue::unbounded("team")],
        ..Cluster::default()
    }
}

fn job(number: usize, cards: TaskGpuRequest, pinned: Option<PinnedCard>) -> Arc<Job> {
    let task = Task {
        name: format!("task-{number}"),
        set: "set".to_owned(),
        cards,
        pinned,
        ..Task::default()
    };
    Arc::new(Job {
        name: format!("job-{number}"),
        queue: "team".to_owned(),
        created: Duration::from_secs(number as u64),
        root: SubGroupSet {
            sets: vec![PodSet {
                name: "set".to_owned(),
                min_available: 1,
                topology: None,
            }],
            ..SubGroupSet::default()
        },
        tasks: vec![task],
        ..Job::default()
    })
}

fn share(mib: u64) -> TaskGpuRequest {
    TaskGpuRequest::Shared {
        share: Share::Memory(Bytes::from_mib(mib)),
        devices: 1,
    }
}

/// One step; what is bound runs. Returns whether anything was.
fn carry_on(cluster: &mut Cluster) -> bool {
    let decisions = step(Duration::from_secs(1000), cluster);
    for decision in &decisions {
        let Decision::Bind { job, placement, .. } = decision else {
            panic!("nobody has to leave: {decision:?}");
        };
        let mut jobs = cluster.jobs.iter_mut();
        let job = jobs.find(|known| known.name == *job).expect("a job");
        let task = &mut Arc::make_mut(job).tasks[0];
        task.status = TaskStatus::Running;
        task.node = Some(placement.node.clone());
        task.on.clone_from(&placement.cards);
    }
    !decisions.is_empty()
}

/// What is held of each card, by name.
fn held(cluster: &Cluster) -> BTreeMap<&str, u64> {
    let mut held = BTreeMap::new();
    for task in cluster.jobs.iter().flat_map(|job| &job.tasks) {
        let mib = match task.cards {
            TaskGpuRequest::Shared {
                share: Share::Memory(bytes),
                ..
            } => bytes.as_mib(),
            _ => CARD.as_mib(),
        };
        for card in &task.on {
            *held.entry(card.as_str()).or_default() += mib;
        }
    }
    held
}

#[test]
fn it_waits_for_its_card_while_others_are_idle() {
    let mut cluster = cluster();
    cluster.jobs.push(job(0, share(800), Some(card(0, 1))));
    assert!(carry_on(&mut cluster));
    assert_eq!(cluster.jobs[0].tasks[0].on, ["a-1"], "it is idle");
    cluster.jobs.push(job(1, share(400), Some(card(0, 1))));
    assert!(!carry_on(&mut cluster));
    Arc::make_mut(&mut cluster.jobs[0]).tasks[0].status = TaskStatus::Succeeded;
    assert!(carry_on(&mut cluster));
    assert_eq!(cluster.jobs[1].tasks[0].on, ["a-1"]);
    assert_eq!(cluster.jobs[1].tasks[0].node.as_deref(), Some("a"));
}

#[test]
fn a_card_that_is_gone_or_sick_is_waited_for() {
    let mut cluster = cluster();
    let gone = PinnedCard {
        node: "a".to_owned(),
        card: "a-7".to_owned(),
    };
    cluster.jobs.push(job(0, share(400), Some(gone)));
    cluster.jobs.push(job(1, share(400), Some(card(1, 2))));
    cluster.nodes[1].listed[2].is_healthy = false;
    assert!(!carry_on(&mut cluster));
    cluster.nodes[1].listed[2].is_healthy = true;
    assert!(carry_on(&mut cluster));
    assert_eq!(cluster.jobs[1].tasks[0].on, ["b-2"]);
}

proptest! {
    #[test]
    fn cards_hold_and_whoever_is_pinned_has_its_card_or_waits_for_room(
        asks in prop::collection::vec(
            (prop::option::of((0..NODES.len(), 0..CARDS.len())), 0..=SHARES.len()),
            1..14,
        ),
    ) {
        let mut cluster = cluster();
        for (number, (pin, ask)) in asks.into_iter().enumerate() {
            let pin = pin.map(|(node, index)| card(node, index));
            let cards = match SHARES.get(ask) {
                Some(mib) => share(*mib),
                // Whole cards are not pinned.
                None if pin.is_none() => TaskGpuRequest::Whole(1),
                None => share(SHARES[0]),
            };
            cluster.jobs.push(job(number, cards, pin));
            carry_on(&mut cluster);
        }
        while carry_on(&mut cluster) {}
        let held = held(&cluster);
        prop_assert!(held.values().all(|held| *held <= CARD.as_mib()), "{held:?}");
        for task in cluster.jobs.iter().flat_map(|job| &job.tasks) {
            let waits = task.status == TaskStatus::Pending;
            if let Some(pinned) = &task.pinned {
                prop_assert!(waits || task.on == [pinned.card.clone()], "{task:?}");
            }
            let mib = match task.cards {
                TaskGpuRequest::Shared { share: Share::Memory(bytes), .. } => bytes.as_mib(),
                _ => CARD.as_mib(),
            };
            let all = cluster.nodes.iter().flat_map(|node| &node.listed);
            let mut possible = all.filter(|card| {
                task.pinned.as_ref().is_none_or(|pinned| pinned.card == card.name)
            });
            let has_room = possible.any(|card| {
                held.get(card.name.as_str()).copied().unwrap_or_default() + mib <= CARD.as_mib()
            });
            prop_assert!(!(waits && has_room), "{task:?} waits beside {held:?}");
        }
    }
}
