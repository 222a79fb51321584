//! Random events in random order against a real API server. Pods arrive, leave, end and are edited. The scheduler, the
//! agents and the API server are killed. The leading scheduler is stopped until another one leads, and continues.
//!
//! Steps are sent as fast as the API server accepts them, many at once. An `InvariantChecker` sees everything that the
//! API server and the agents report, and checks what must hold at every moment: no card has more granted than it has,
//! neither in the agent's ledger nor in the pods' annotations, and no pod disappears unless the test deleted it. From
//! time to time the test waits until all is quiet. Then both records must agree, and no pod that fits may wait, except
//! for reservations of a dead scheduler, which expire. At the end both records are empty. `APPORTION_STEPS` and
//! `APPORTION_SEED` set the length and the random seed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use apportion_tests::cards;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::cluster::{Cluster, PATIENCE};
use crate::requests::{self, ApiRequester};

mod agent_ledgers;
mod invariants;
mod sender;
mod steps;
mod watches;

use agent_ledgers::AgentLedgers;
use invariants::{InvariantChecker, ObservationCounts};
use sender::ChangeSender;
use steps::{ChaosStep, ChaosSteps, KillTarget};

/// The nodes, with two cards each.
const NODES: [&str; 2] = ["node-1", "node-2"];
/// The most steps between two waits for quiet, and how many waits a short run has.
const QUIET: u64 = 500;
const QUIETS: u64 = 4;
/// How often the test checks whether all is quiet and whether the scheduler runs.
const GLANCE: Duration = Duration::from_millis(100);

/// What to kill, and which one of several.
type KillOrder = (KillTarget, usize);

struct ChaosRun {
    steps: ChaosSteps,
    requests: ApiRequester,
    sender: ChangeSender,
    sockets: BTreeMap<&'static str, PathBuf>,
    orders: mpsc::Sender<KillOrder>,
    witness: Arc<Mutex<InvariantChecker>>,
    began: Instant,
}

impl ChaosRun {
    async fn new(
        kubeconfig: PathBuf,
        sockets: BTreeMap<&'static str, PathBuf>,
        orders: mpsc::Sender<KillOrder>,
        steps: ChaosSteps,
    ) -> Self {
        let requests = ApiRequester::new(&kubeconfig).await;
        let witness = Arc::new(Mutex::new(InvariantChecker::default()));
        tokio::spawn(watches::pods(requests.clone(), witness.clone()));
        for (node, socket) in &sockets {
            tokio::spawn(watches::ledger(node, socket.clone(), witness.clone()));
        }
        Self {
            steps,
            sender: ChangeSender::new(&requests, &witness),
            requests,
            sockets,
            orders,
            witness,
            began: Instant::now(),
        }
    }

    /// Takes all steps. Returns the first error.
    async fn go(mut self) -> Result<(), String> {
        let (mut taken, quiet) = (0, QUIET.min(self.steps.length() / QUIETS).max(1));
        while let Some(step) = self.steps.next() {
            match step {
                ChaosStep::Change(change) => self.sender.send(change).await,
                ChaosStep::Kill(kill, which) => {
                    let sent = self.orders.send((kill, which)).await;
                    sent.map_err(|_| "nobody is there to kill".to_owned())?;
                }
            }
            self.seen()?;
            taken += 1;
            if taken % quiet == 0 {
                self.settle().await?;
                self.tell(taken);
            }
        }
        self.end().await
    }

    /// Removes all remaining pods. Nothing may be left.
    async fn end(mut self) -> Result<(), String> {
        while let Some(change) = self.steps.clear() {
            self.sender.send(change).await;
        }
        self.settle().await?;
        let deadline = Instant::now() + PATIENCE * 3;
        while self.left().await.is_none_or(|left| !left.is_empty()) {
            if Instant::now() > deadline {
                return Err(format!("{:?} are left", self.left().await));
            }
            sleep(GLANCE).await;
        }
        let tally = self.seen()?;
        if tally.placed == 0 || tally.ledgers == 0 {
            return Err(format!("it was about nothing: {tally:?}"));
        }
        Ok(())
    }

    /// What the checker has seen, or its errors.
    fn seen(&self) -> Result<ObservationCounts, String> {
        let witness = self.witness.lock().expect("nobody panicked");
        if witness.wrong.is_empty() {
            Ok(witness.tally)
        } else {
            Err(witness.wrong.join("\n"))
        }
    }

    fn tell(&self, taken: u64) {
        let ObservationCounts {
            placed,
            words,
            ledgers,
        } = self.witness.lock().expect("nobody panicked").tally;
        let (seconds, arrivals) = (self.began.elapsed().as_secs(), self.steps.arrivals());
        println!(
            "{taken} steps in {seconds} s: {arrivals} arrivals, {placed} pods placed; \
             {words} words of the API server and {ledgers} ledgers of agents"
        );
    }

    /// Waits until the agents hold exactly what bound pods have, and no pod that fits waits.
    async fn settle(&self) -> Result<(), String> {
        self.sender.done().await;
        let deadline = Instant::now() + PATIENCE * 3;
        loop {
            self.seen()?;
            let differences = self.differences().await;
            if differences.as_ref().is_some_and(Vec::is_empty) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("it does not come to rest: {differences:?}"));
            }
            sleep(GLANCE).await;
        }
    }

    async fn differences(&self) -> Option<Vec<String>> {
        let pods = self.requests.all().await?;
        let mut wrong = agent_ledgers::differences(&pods, &self.ledgers().await?);
        let there: BTreeSet<&str> = pods.iter().map(agent_ledgers::name).collect();
        let here: BTreeSet<String> = self
            .steps
            .alive()
            .iter()
            .map(steps::ArrivalPod::name)
            .collect();
        if !here.iter().map(String::as_str).eq(there.iter().copied()) {
            wrong.push(format!("{there:?} are there, and should {here:?}"));
        }
        Some(wrong)
    }

    /// The holders of all allocations in the agents' ledgers.
    async fn left(&self) -> Option<Vec<String>> {
        let ledgers = self.ledgers().await?;
        let held = ledgers.into_values().flat_map(|book| book.allocations);
        Some(held.map(|held| held.name).collect())
    }

    async fn ledgers(&self) -> Option<AgentLedgers> {
        let mut ledgers = AgentLedgers::new();
        for (node, socket) in &self.sockets {
            ledgers.insert(node, requests::book(socket).await?);
        }
        Some(ledgers)
    }
}

impl Cluster {
    /// Kills a target and restarts it.
    fn kill(&mut self, (kill, which): KillOrder) {
        match kill {
            KillTarget::Agent => {
                let node = NODES[which % NODES.len()];
                let node = self.nodes.get_mut(node).expect("it is there");
                node.replace_agent();
            }
            KillTarget::Scheduler => {
                self.kill_scheduler();
                self.start_scheduler();
            }
            KillTarget::Leader => {
                self.await_leader();
                let stopped = self.stop_scheduler();
                self.start_scheduler();
                self.await_leader();
                stopped.go_on();
            }
            KillTarget::ApiServer => {
                self.plane.kill_apiserver();
                self.plane.start_apiserver();
            }
        }
    }

    /// Carries out orders until the channel closes. Restarts a scheduler that has ended by itself.
    fn obey(&mut self, runtime: &Runtime, mut orders: mpsc::Receiver<KillOrder>) {
        loop {
            let order = async { timeout(GLANCE, orders.recv()).await };
            match runtime.block_on(order) {
                Ok(Some(order)) => self.kill(order),
                Ok(None) => return,
                Err(_) => self.revive_scheduler(),
            }
        }
    }
}

/// A number from an environment variable.
fn number(name: &str, usual: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn whatever_happens_no_card_is_given_twice_and_nothing_is_left_behind() {
    let (length, seed) = (number("APPORTION_STEPS", 600), number("APPORTION_SEED", 1));
    let mut cluster = Cluster::bare();
    cluster.log_level = "info";
    for node in NODES {
        cluster.add_node(node, &cards(2));
    }
    cluster.start_scheduler();
    cluster.await_leader();
    let sockets = NODES
        .map(|node| (node, cluster.nodes[node].host.instance().join("agent.sock")))
        .into();
    let (orders, ordered) = mpsc::channel(1);
    let (kubeconfig, steps) = (cluster.plane.kubeconfig(), ChaosSteps::new(seed, length));
    let runtime = Runtime::new().expect("a runtime");
    let run = runtime.spawn(async move {
        let run = ChaosRun::new(kubeconfig, sockets, orders, steps).await;
        run.go().await
    });
    cluster.obey(&runtime, ordered);
    let ended = runtime.block_on(run).expect("it does not panic");
    if let Err(wrong) = ended {
        panic!("{wrong}\n{}", cluster.said());
    }
}
