//! Claims placed by kube-scheduler and shares placed by Apportion's scheduler on the same GPUs, in random order, while
//! the agent, the kubelet and both schedulers are killed.
//!
//! Most steps are those of the pods' programs: they allocate and free memory, and each knows what it must be given. If
//! the agent gave more than a GPU has, a program would be refused memory of its own share.
//!
//! `APPORTION_STORM_STEPS` and `APPORTION_STORM_SEED` ask for more steps and for others.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use apportion_cluster::api_proxy::{ApiProxy, PODS};
use apportion_cluster::eventually;
use apportion_cluster::managed::{MIB, ManagedNode, is_rejection};
use serde_json::Value;

use super::{ClaimNode, FULL};
use crate::dice::SuiteRng;

mod program;
mod share;
mod share_scheduler;

use share::{SELECTOR, SIZES, ShareDoor, StormShare, by_annotation};
use share_scheduler::ShareScheduler;

/// The agent leaves shares by annotation to Apportion's scheduler.
const OPTIONS: &[&str] = &["--dra", "on", "--unplaced", "deny"];
const KUBELET: &str = "kubelet";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";
/// So many shares exist at once. They ask for more than the GPUs have.
const SHARES: usize = 24;
/// So many pods may be starting or ending while the storm goes on.
const UNSETTLED: usize = 5;
/// The storm does not wait longer than this for pods that start: a pod that was bound to memory that others have waits
/// for as long as they do.
const PAUSE: Duration = Duration::from_secs(10);
/// How long a pod may take to end on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
const GLANCE: Duration = Duration::from_millis(100);
/// How often the storm calms down in a run.
const CALMS: usize = 10;

/// What happened, and how often.
#[derive(Debug, Default)]
struct StormCounts {
    agents_killed: u32,
    kubelets_killed: u32,
    kube_schedulers_killed: u32,
    share_schedulers_killed: u32,
    shares_by_annotation: u32,
    claims_by_template: u32,
    shared_claims: u32,
    shares_deleted: u32,
    /// The kubelet ended by itself, and was started again as systemd does.
    kubelets_ended: u32,
    /// Pods that the kubelet rejected because no agent answered, or was killed while it started them.
    pods_failed: u32,
    program_steps: u32,
}

struct ClaimStorm {
    scheduler: ShareScheduler,
    api: ApiProxy,
    node: ClaimNode,
    folder: PathBuf,
    rng: SuiteRng,
    shares: BTreeMap<String, StormShare>,
    /// The pods that are being deleted, and since when.
    ending: BTreeMap<String, Instant>,
    counts: StormCounts,
}

impl ClaimStorm {
    fn start(seed: u64) -> Self {
        let slots = u16::try_from(SHARES).expect("it is small");
        let node = ClaimNode::on(ManagedNode::with_slots(slots, OPTIONS));
        let api = ApiProxy::of(&node.node.cluster);
        for template in share::templates(&node.cards) {
            api.create(TEMPLATES, &template);
        }
        let folder = node.node.cluster.folder().path().join("apportion/storm");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("the folder is writable");
        Self {
            scheduler: ShareScheduler::start(&node.node),
            api,
            node,
            folder,
            rng: SuiteRng(seed),
            shares: BTreeMap::new(),
            ending: BTreeMap::new(),
            counts: StormCounts::default(),
        }
    }

    fn step(&mut self, step: usize) {
        match self.rng.roll(2000) {
            0..=2 => {
                self.node.node.kill_agent();
                self.node.node.spawn_agent(OPTIONS);
                self.counts.agents_killed += 1;
            }
            3 | 4 => {
                self.scheduler.restart();
                self.counts.share_schedulers_killed += 1;
            }
            5 => {
                self.node.node.restart(KUBELET);
                self.counts.kubelets_killed += 1;
            }
            6 => {
                self.node.node.restart("kube-scheduler");
                self.counts.kube_schedulers_killed += 1;
            }
            7..=66 => self.share_step(&format!("storm-{step}")),
            _ => self.program_step(),
        }
    }

    /// A share is created or deleted.
    fn share_step(&mut self, name: &str) {
        self.settle();
        for (given, all) in self.node.given() {
            assert!(given <= all, "{name}: {given} of {all} are given");
        }
        let many = self.rng.roll(SHARES);
        if self.shares.len() < SHARES && many >= self.shares.len() / 2 {
            self.create(name);
        } else {
            self.delete_any();
        }
    }

    fn create(&mut self, name: &str) {
        let cards = self.node.cards.len();
        let (door, count) = match self.rng.roll(10) {
            0..=3 => (ShareDoor::Annotation, &mut self.counts.shares_by_annotation),
            4..=8 => {
                let card = Some(self.rng.roll(cards + 1)).filter(|card| *card < cards);
                (
                    ShareDoor::Template(card),
                    &mut self.counts.claims_by_template,
                )
            }
            _ => (ShareDoor::SharedClaim, &mut self.counts.shared_claims),
        };
        *count += 1;
        let mib = SIZES[self.rng.roll(SIZES.len())];
        let share = StormShare::new(&self.folder, name, door, mib);
        if let Some(claim) = share.claim(name) {
            self.api.create(CLAIMS, &claim);
        }
        for pod in share.manifests(name) {
            self.api.create(PODS, &pod);
        }
        self.shares.insert(name.to_owned(), share);
    }

    fn delete_any(&mut self) {
        let chosen = self.rng.roll(self.shares.len());
        if let Some(name) = self.shares.keys().nth(chosen).cloned() {
            self.delete(&name);
            self.counts.shares_deleted += 1;
        }
    }

    fn delete(&mut self, name: &str) {
        let Some(share) = self.shares.remove(name) else {
            return;
        };
        for pod in &share.pods {
            self.api.delete(PODS, &pod.name);
            self.ending.insert(pod.name.clone(), Instant::now());
        }
        if share.claim(name).is_some() {
            self.api.delete(CLAIMS, name);
        }
    }

    /// A program of a share does something with its memory.
    fn program_step(&mut self) {
        let chosen = self.rng.roll(self.shares.len());
        if let Some(share) = self.shares.values_mut().nth(chosen) {
            share.step(&mut self.rng);
            self.counts.program_steps += 1;
        }
    }

    /// Waits while many pods start or end.
    fn settle(&mut self) {
        let deadline = Instant::now() + PAUSE;
        while self.unsettled() > UNSETTLED && Instant::now() < deadline {
            sleep(GLANCE);
        }
    }

    /// Starts the kubelet again if it has ended, as systemd does.
    fn keep_kubelet(&mut self) {
        let cluster = &self.node.node.cluster;
        if !cluster.is_alive(KUBELET) {
            let log = fs::read_to_string(cluster.folder().log(KUBELET)).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(5).collect();
            println!("the kubelet has ended: {last:#?}");
            self.node.node.restart(KUBELET);
            self.counts.kubelets_ended += 1;
        }
    }

    /// Reads the pods, and returns how many of them start or end.
    fn unsettled(&mut self) -> usize {
        self.keep_kubelet();
        let pods = self.api.list(PODS, SELECTOR);
        let mut starting = 0;
        let mut rejected = Vec::new();
        self.ending.retain(|name, since| {
            let is_there = pods.iter().any(|pod| pod["metadata"]["name"] == *name);
            assert!(
                !is_there || since.elapsed() < PATIENCE,
                "{name} does not end"
            );
            is_there
        });
        for (share_name, share) in &mut self.shares {
            for pod in &mut share.pods {
                let found = pods
                    .iter()
                    .find(|found| found["metadata"]["name"] == pod.name);
                let Some(found) = found else {
                    panic!("{} is gone, and nobody has deleted it", pod.name);
                };
                let reason = found["status"]["reason"].as_str().unwrap_or_default();
                match found["status"]["phase"].as_str() {
                    Some("Running") => pod.is_running = true,
                    Some("Pending") if found["spec"]["nodeName"].is_string() => starting += 1,
                    Some("Failed") if is_rejection(reason) || was_cut_off(found) => {
                        rejected.push(share_name.clone());
                    }
                    Some("Pending") | None => {}
                    Some(_) => panic!("{} has ended: {found:#}", pod.name),
                }
            }
        }
        for share in rejected {
            self.delete(&share);
            self.counts.pods_failed += 1;
        }
        starting + self.ending.len()
    }

    /// Lets a few shares stay. Each of them gets what it asks for, and nothing is left of the others.
    fn calm(&mut self) {
        let one_card = self
            .node
            .given()
            .iter()
            .map(|(_, all)| *all as u64 / MIB)
            .min();
        let room = one_card.filter(|all| *all > 0).unwrap_or(2 * SIZES[3]);
        while self.shares.len() > 6 || self.asked() > room {
            self.delete_any();
        }
        self.node.node.offers_slots();
        eventually("only the shares that stay are left, and they run", || {
            self.unsettled();
            self.ending.is_empty() && self.shares.values().all(StormShare::is_running)
        });
        let asked = self.asked() * MIB;
        eventually("the ledger has the shares that stay, and no more", || {
            let given = self.node.given();
            given.iter().map(|(given, _)| *given as u64).sum::<u64>() == asked
        });
        let claims = self.shares.values();
        let claims = claims.filter(|share| share.door != ShareDoor::Annotation);
        let claims = claims.count();
        eventually("the claims that stay are left", || {
            self.claims() == claims && self.prepared() == claims
        });
    }

    fn asked(&self) -> u64 {
        self.shares.values().map(|share| share.mib).sum()
    }

    /// How many claims there are.
    fn claims(&self) -> usize {
        self.api.list(CLAIMS, "").len()
    }

    /// How many claims the kubelet's checkpoint has as prepared.
    fn prepared(&self) -> usize {
        let folder = self.node.node.cluster.folder().kubelet();
        let text = fs::read(folder.join("dra_manager_state")).expect("the kubelet keeps it");
        let file: Value = serde_json::from_slice(&text).expect("it is replaced as a whole");
        let data = file["Data"].as_str().expect("it is a checkpoint");
        let data: Value = serde_json::from_str(data).expect("it is a checkpoint");
        match &data["ClaimInfoStateList"] {
            Value::Array(claims) => claims.len(),
            Value::Null => 0,
            other => panic!("not a list of claims: {other}"),
        }
    }

    /// A claim and a share still get their memory, and nothing is left of anybody in the end.
    fn ends(mut self) {
        for name in self.shares.keys().cloned().collect::<Vec<_>>() {
            self.delete(&name);
        }
        self.node
            .node
            .pod("last-share", FULL, by_annotation)
            .says("alloc 2");
        self.node.pod("last-claim", FULL, "first").says("alloc 2");
        eventually("every pod is gone", || self.unsettled() == 0);
        self.node.ends_clean();
        eventually("every claim is unprepared", || self.prepared() == 0);
    }
}

impl Drop for ClaimStorm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?}", self.counts);
            for pod in self.api.list(PODS, SELECTOR) {
                eprintln!("{}: {}", pod["metadata"]["name"], pod["status"]);
            }
        }
        for path in [PODS, CLAIMS, TEMPLATES] {
            self.api.delete_all(path, SELECTOR);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Whether the kubelet was killed while the runtime started the pod's container for it.
fn was_cut_off(pod: &Value) -> bool {
    let end = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    let message = end["message"].as_str().unwrap_or_default();
    end["reason"] == "StartError" && message.ends_with("context canceled")
}

#[test]
fn claims_and_annotations_never_take_more_than_a_card_whatever_dies() {
    let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
    let steps = number("APPORTION_STORM_STEPS").unwrap_or(2000);
    let steps = usize::try_from(steps).expect("it is small");
    let seed = number("APPORTION_STORM_SEED").unwrap_or(20_261_126);
    println!("seed {seed}");
    let mut storm = ClaimStorm::start(seed);
    let started = Instant::now();
    for step in 0..steps {
        storm.step(step);
        if (step + 1) % (steps / CALMS).max(1) == 0 {
            storm.calm();
            println!(
                "{:.0?}: {} steps, {:?}",
                started.elapsed(),
                step + 1,
                storm.counts
            );
        }
    }
    assert!(storm.counts.agents_killed > 0, "the storm was none");
    storm.ends();
}
