//! Anything at all, in any order, against a real API server: pods come, go, end and are edited; the scheduler,
//! the agents and the API server are killed; the scheduler that leads is stopped until another leads, and goes on.
//!
//! Steps go out as fast as the API server takes them, many at once. What must hold at every moment is looked
//! at by a [`witness`] who hears all that the API server and the agents say: no card has more granted than it
//! has, in the agent's book or as pods have it written on them, and nobody's pod is gone but those that this
//! test took away. Now and then all is left alone until it is quiet: the two books must come to be one, with
//! nobody waiting who fits, but for reservations of a scheduler that died, which lapse. At the end both are empty. `APPORTION_STEPS` and `APPORTION_SEED` make it longer or
//! another.

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
/// How often everything is left alone until it is quiet; in a short run this many times.
const QUIET: u64 = 500;
const QUIETS: u64 = 4;
/// How often it is looked at whether it is quiet, and whether the scheduler is there.
const GLANCE: Duration = Duration::from_millis(100);

/// A death that was ordered, and which of several.
type KillOrder = (KillTarget, usize);

/// One run.
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
            tokio::spawn(watches::book(node, socket.clone(), witness.clone()));
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

    /// Takes all steps; what went wrong is the error.
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

    /// Takes everybody away who is left: nothing may stay.
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
        if tally.placed == 0 || tally.books == 0 {
            return Err(format!("it was about nothing: {tally:?}"));
        }
        Ok(())
    }

    /// What the witness saw, if nothing was wrong.
    fn seen(&self) -> Result<ObservationCounts, String> {
        let witness = self.witness.lock().expect("nobody panicked");
        match witness.wrong.is_empty() {
            true => Ok(witness.tally),
            false => Err(witness.wrong.join("\n")),
        }
    }

    fn tell(&self, taken: u64) {
        let ObservationCounts {
            placed,
            words,
            books,
        } = self.witness.lock().expect("nobody panicked").tally;
        let (seconds, arrivals) = (self.began.elapsed().as_secs(), self.steps.arrivals());
        println!(
            "{taken} steps in {seconds} s: {arrivals} arrivals, {placed} pods placed; \
             {words} words of the API server and {books} books of agents"
        );
    }

    /// Waits until agents hold what bound pods have and nothing else, and nobody waits who fits.
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
        let mut wrong = agent_ledgers::differences(&pods, &self.books().await?);
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

    /// Whom agents have something for.
    async fn left(&self) -> Option<Vec<String>> {
        let books = self.books().await?;
        let held = books.into_values().flat_map(|book| book.allocations);
        Some(held.map(|held| held.name).collect())
    }

    async fn books(&self) -> Option<AgentLedgers> {
        let mut books = AgentLedgers::new();
        for (node, socket) in &self.sockets {
            books.insert(node, requests::book(socket).await?);
        }
        Some(books)
    }
}

impl Cluster {
    /// Kills, and brings back.
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

    /// Does what is ordered until nobody orders any more, and starts the scheduler where it ended by itself.
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

/// A number of the environment.
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
    let socket = |node| cluster.nodes[node].host.instance().join("agent.sock");
    let sockets = NODES.map(|node| (node, socket(node))).into();
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
