//! Times the actions on a full cluster: `steps [NODES [PODS_PER_JOB [CARDS_PER_POD]]]`.
//!
//! Two queues without a quota run a pod on every card; two queues that deserve all of it wait with as much.
//! Run it with `--release`.

use std::env;
use std::time::{Duration, Instant};

use apportion_abi::Bytes;
use apportion_policy::cluster::{Cards, Group, Job, Node, PodSet, Queue, Quota, Status, Task};
use apportion_policy::{Action, Cluster, Session, plan};

const NOW: Duration = Duration::from_secs(1_000_000);
const CARDS: usize = 8;

fn main() {
    let mut numbers = env::args().skip(1).filter_map(|text| text.parse().ok());
    let nodes = numbers.next().unwrap_or(500);
    let pods = numbers.next().unwrap_or(1);
    let cards = numbers.next().unwrap_or(1);
    let cluster = cluster(nodes, pods, cards);
    let begin = Instant::now();
    let mut session = Session::open(NOW, &cluster);
    println!("{:>16} {:?}", "Open", begin.elapsed());
    for action in Action::ALL {
        let begin = Instant::now();
        session.run(action);
        println!("{:>16} {:?}", format!("{action:?}"), begin.elapsed());
    }
    println!("{:>16} {:?}", "Together", begin.elapsed());
    let begin = Instant::now();
    let planned = plan(NOW, &cluster).decisions();
    println!("{:>16} {:?}", "Plan", begin.elapsed());
    assert_eq!(planned, session.decisions(), "every promise would be kept");
    println!("{:>16} {}", "Decisions", session.decisions().len());
}

fn cluster(nodes: usize, pods: usize, cards: usize) -> Cluster {
    let all = nodes * CARDS;
    let running = (0..all).map(|number| {
        let queue = ["a", "b"][number % 2];
        job("running", number, queue, 1, 1, Some(number / CARDS))
    });
    let waiting = (0..all / (pods * cards)).map(|number| {
        let queue = ["c", "d"][number % 2];
        job("waiting", number, queue, pods, cards, None)
    });
    let half = all as f64 / 2.0;
    Cluster {
        nodes: (0..nodes).map(node).collect(),
        queues: vec![
            queue("poor", None, 0.0),
            queue("rich", None, all as f64),
            queue("a", Some("poor"), 0.0),
            queue("b", Some("poor"), 0.0),
            queue("c", Some("rich"), half),
            queue("d", Some("rich"), half),
        ],
        jobs: running.chain(waiting).collect(),
        ..Cluster::default()
    }
}

fn node(number: usize) -> Node {
    Node {
        name: format!("node-{number}"),
        cpu_millis: 1_000_000,
        memory: 1 << 42,
        pods: 110,
        cards: CARDS as i64,
        card_memory: Bytes::from_mib(80_000),
        ..Node::default()
    }
}

fn queue(name: &str, parent: Option<&str>, deserved: f64) -> Queue {
    Queue {
        name: name.to_owned(),
        parent: parent.map(str::to_owned),
        created: Duration::ZERO,
        priority: 100,
        cpu: Quota::UNLIMITED,
        memory: Quota::UNLIMITED,
        gpu: Quota {
            deserved,
            ..Quota::UNLIMITED
        },
        usage: [0.0; 3],
        preempt_min_runtime: None,
        reclaim_min_runtime: None,
    }
}

fn job(
    kind: &str,
    number: usize,
    queue: &str,
    pods: usize,
    cards: usize,
    on: Option<usize>,
) -> Job {
    let task = |pod| Task {
        name: format!("{kind}-{number}-{pod}"),
        set: "default".to_owned(),
        status: if on.is_some() {
            Status::Running
        } else {
            Status::Pending
        },
        node: on.map(|node| format!("node-{node}")),
        cards: Cards::Whole(i64::try_from(cards).unwrap_or(i64::MAX)),
        cpu_millis: 1000,
        memory: 1 << 30,
        ..Task::default()
    };
    Job {
        name: format!("{kind}-{number}"),
        queue: queue.to_owned(),
        priority: 50,
        is_preemptible: true,
        created: NOW - Duration::from_secs(number as u64),
        root: Group {
            sets: vec![PodSet {
                name: "default".to_owned(),
                min_available: pods,
                topology: None,
            }],
            ..Group::default()
        },
        tasks: (0..pods).map(task).collect(),
        ..Job::default()
    }
}
