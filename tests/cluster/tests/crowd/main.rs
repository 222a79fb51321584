//! Many pods through fifty slots of a real kubelet, in random order, while the agent is killed at random. Each pod gets
//! its own grant, and at the end the agent's records match the kubelet's.
//!
//! Each pod asks for a unique size and reports the size that it sees, so a grant on the wrong pod shows. While no agent
//! answers, the kubelet rejects pods for good. The test creates those again, as a controller would.
//! `APPORTION_CROWD_PODS=100` makes it a hundred pods.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use apportion_cluster::eventually;
use apportion_cluster::managed::ManagedNode;

#[path = "../../../kubelet/tests/suite/dice.rs"]
mod dice;
mod pods;
mod slot_holders;

use dice::SuiteRng;
use pods::{CrowdPod, CrowdPodState, PodCrowd, PodLifetime, bytes};
use slot_holders::{MEMORY, granted, kept_by_the_kubelet};

const SLOTS: u16 = 50;
/// So many pods wait in addition to those with slots, so that no slot stays free.
const WAITING: usize = 20;
/// How many pods keep running for the comparison of the records.
const LAST: usize = 10;
/// How long there may be no progress on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
const GLANCE: Duration = Duration::from_millis(500);

fn pods() -> usize {
    let asked = std::env::var("APPORTION_CROWD_PODS").ok();
    asked.and_then(|count| count.parse().ok()).unwrap_or(1000)
}

#[test]
fn a_crowd_finds_its_own_grants_whatever_dies_and_the_books_agree_at_the_end() {
    let mut node = ManagedNode::with_slots(SLOTS, &[]);
    let mut storm = CrowdRun::new(&node);
    let started = Instant::now();
    let mut progress = (0, Instant::now());
    while storm.ended < pods() {
        let there = storm.crowd.look();
        storm.count(&there);
        storm.fill(there.len());
        // On a fast machine the agent might by chance never be killed, so force one kill.
        let is_due = storm.kills == 0 && 2 * storm.ended >= pods();
        if storm.dice.roll(15) == 0 || is_due {
            node.kill_agent();
            node.spawn_agent(&[]);
            storm.kills += 1;
        }
        if progress.0 < storm.ended {
            progress = (storm.ended, Instant::now());
        }
        assert!(
            progress.1.elapsed() < PATIENCE,
            "it stands still: {there:?}"
        );
        thread::sleep(GLANCE);
    }
    println!("{storm}, in {:.0?}", started.elapsed());
    assert!(storm.kills > 0, "nothing was killed");
    agree(&mut node, &storm.crowd);
}

/// The pods, and the progress so far.
struct CrowdRun {
    crowd: PodCrowd,
    dice: SuiteRng,
    /// The numbers of the pods that are not created yet.
    waiting: Vec<usize>,
    ended: usize,
    kills: usize,
    refused: usize,
}

impl CrowdRun {
    fn new(node: &ManagedNode) -> Self {
        let mut dice = SuiteRng(20_261_121);
        let mut waiting: Vec<usize> = (0..pods()).collect();
        for place in (1..waiting.len()).rev() {
            waiting.swap(place, dice.roll(place + 1));
        }
        Self {
            crowd: PodCrowd::new(node),
            dice,
            waiting,
            ended: 0,
            kills: 0,
            refused: 0,
        }
    }

    /// Counts pods that have ended, and selects some to end early.
    fn count(&mut self, there: &[CrowdPod]) {
        let mut over = Vec::new();
        for pod in there {
            let said = self.crowd.said(&pod.name);
            let is_right = said.is_none_or(|said| said == bytes(pod.number));
            assert!(is_right, "{pod:?} has another's grant: {said:?}");
            match (&pod.state, said) {
                (CrowdPodState::Ended, None) => panic!("{pod:?} has ended and seen nothing"),
                (CrowdPodState::Ended, Some(_)) => self.ended += 1,
                (CrowdPodState::Live, Some(_)) if self.dice.roll(40) == 0 => self.ended += 1,
                (CrowdPodState::Refused, _) => {
                    self.refused += 1;
                    self.waiting.insert(0, pod.number);
                }
                (CrowdPodState::Live | CrowdPodState::Leaving, _) => continue,
            }
            over.push(pod);
        }
        self.crowd.remove(&over);
    }

    /// Creates new pods while there is room.
    fn fill(&mut self, there: usize) {
        let capacity = (usize::from(SLOTS) + WAITING).saturating_sub(there);
        let next = self.waiting.len().saturating_sub(capacity);
        let next = self.waiting.split_off(next);
        let dice = &mut self.dice;
        self.crowd
            .create(&next, || PodLifetime::Seconds(dice.roll(8)));
    }
}

impl std::fmt::Display for CrowdRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            ended,
            kills,
            refused,
            ..
        } = self;
        write!(
            f,
            "{ended} pods, {kills} kills of the agent, {refused} pods that came again"
        )
    }
}

/// Checks with running pods that all records have these and nothing else.
fn agree(node: &mut ManagedNode, crowd: &PodCrowd) {
    eventually("all others have gone", || crowd.look().is_empty());
    node.offers_slots();
    crowd.create(&(pods()..pods() + LAST).collect::<Vec<_>>(), || {
        PodLifetime::Stays
    });
    let mut last = crowd.look();
    eventually("the last have said what they see", || {
        last = crowd.look();
        last.iter()
            .all(|pod| crowd.said(&pod.name) == Some(bytes(pod.number)))
    });
    assert_eq!(last.len(), LAST);
    node.kill_agent();
    node.start_agent(&[]);
    let uids: BTreeSet<_> = last.iter().map(|pod| pod.uid.clone()).collect();
    let kubelet = kept_by_the_kubelet(node);
    assert_eq!(kubelet.values().cloned().collect::<BTreeSet<_>>(), uids);
    assert_eq!(kubelet.len(), LAST);
    if node.has_cdi() {
        eventually("the grants are those of the kubelet's checkpoint", || {
            granted(node) == kubelet
        });
    }
    eventually("the ledger has them and nothing else", || {
        let allocated = last
            .iter()
            .map(|pod| node.metric(MEMORY, &[&format!("pod=\"{}\"", pod.name)]));
        let mut all = 0.0;
        let mut are_allocated = true;
        for (allocated, pod) in allocated.zip(&last) {
            are_allocated &= allocated == Some(exact(bytes(pod.number)));
            all += exact(bytes(pod.number));
        }
        are_allocated && node.metric(MEMORY, &[]) == Some(all)
    });
}

/// Whole mebibytes as a metric's value.
fn exact(bytes: u64) -> f64 {
    bytes.to_string().parse().expect("digits")
}
