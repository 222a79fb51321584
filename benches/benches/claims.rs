//! What resource claims cost: preparing one while 0 or 63 others are prepared, and the ResourceSlice after a change, on
//! an API server that answers at once and on a slow one.
//!
//! The agent, its ledger and its files are real; the kubelet and the API server are stand-ins. The kubelet waits for
//! `NodePrepareResources` before it creates a container, so each millisecond delays a pod.

use std::time::{Duration, Instant};

use apportion_kubelet_tests::{ApiServer, FakeKubelet};
use apportion_proto::v1::{AllocateRequest, ListRequest, ReleaseRequest, Share, allocate_reply};
use apportion_proto::{AgentClient, connect};
use apportion_tests::{AgentProcess, MIB, TestHost, cards};

/// How often each figure is taken.
const ROUNDS: usize = 25;
/// How many claims of the node are prepared in the second row.
const MANY: usize = 63;
const SLOW: Duration = Duration::from_millis(200);
/// What preparing one claim may take besides the API server's answer.
const PREPARE_BUDGET: Duration = Duration::from_millis(50);
/// What a slice may lag behind, besides the API server's answer.
const SLICE_BUDGET: Duration = Duration::from_secs(1);

/// A node whose agent serves claims.
struct ClaimBench {
    kubelet: FakeKubelet,
    api: ApiServer,
    client: AgentClient,
    card: String,
    made: usize,
    _agent: AgentProcess,
    _host: TestHost,
}

impl ClaimBench {
    async fn start() -> Self {
        let host = TestHost::with(&cards(1));
        let dir = host.dir().join("kubelet");
        let kubelet = FakeKubelet::start(&dir);
        let kubeconfig = host.dir().join("kubeconfig");
        let api = ApiServer::listen(&kubeconfig).await;
        let (dir, cdi) = (dir.display().to_string(), host.dir().join("cdi"));
        let cdi = cdi.display().to_string();
        let options = [
            "--kubelet-dir",
            &dir,
            "--cdi-dir",
            &cdi,
            "--cdi",
            "on",
            "--dra",
            "on",
        ];
        let options = [&options[..], &["--node-name", "node-1"]].concat();
        let agent = host.agent_with(&options, &[("KUBECONFIG", &kubeconfig)]);
        while kubelet.register_driver().await.is_err() || api.offered().is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let socket = host.instance().join("agent.sock");
        let mut client = connect(&socket).await.expect("the agent serves");
        let list = client.list(ListRequest {}).await.expect("it answers");
        let card = list.into_inner().cards.swap_remove(0).uuid;
        Self {
            kubelet,
            api,
            client,
            card,
            made: 0,
            _agent: agent,
            _host: host,
        }
    }

    /// Prepares a new claim of 100 MiB. Returns its name and how long it took.
    async fn prepare(&mut self) -> (String, Duration) {
        self.made += 1;
        let name = format!("c{}", self.made);
        let device = self.card.to_lowercase();
        let pod = format!("p{}", self.made);
        self.api
            .has_claim(&name, &name, &[(&device, "100Mi")], &[&pod]);
        let start = Instant::now();
        let prepared = self.kubelet.prepare(&name, &name).await;
        let took = start.elapsed();
        prepared.expect("the card has room");
        (name, took)
    }

    async fn median_of_preparing(&mut self) -> Duration {
        let mut all = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let (name, took) = self.prepare().await;
            all.push(took);
            let unprepared = self.kubelet.unprepare(&name, &name).await;
            unprepared.expect("it was prepared");
        }
        median(all)
    }

    /// From a share by annotation to the slice that shows it.
    async fn median_of_slices(&mut self) -> Duration {
        let mut all = Vec::with_capacity(ROUNDS);
        for round in 0..ROUNDS {
            let before = self.generation();
            let start = Instant::now();
            let id = self.place(round).await;
            all.push(self.after(before, start).await);
            let before = self.generation();
            let start = Instant::now();
            let release = ReleaseRequest { id };
            let released = self.client.release(release).await;
            released.expect("it was just reserved");
            all.push(self.after(before, start).await);
        }
        median(all)
    }

    fn generation(&self) -> i64 {
        self.api.offered().map_or(0, |(_, generation)| generation)
    }

    async fn after(&self, before: i64, start: Instant) -> Duration {
        while self.generation() == before {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        start.elapsed()
    }

    async fn place(&mut self, round: usize) -> String {
        let request = AllocateRequest {
            idempotency_key: format!("u{round}"),
            name: format!("team/u{round}"),
            shares: vec![Share {
                card: self.card.clone(),
                bytes: 1000 * MIB,
                limit_bytes: 0,
            }],
            ttl_ms: 60_000,
            ..AllocateRequest::default()
        };
        let reply = self.client.allocate(request).await;
        let reply = reply.expect("the agent answers").into_inner();
        match reply.result {
            Some(allocate_reply::Result::Allocation(made)) => made.id,
            other => panic!("the card has room: {other:?}"),
        }
    }
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

fn row(what: &str, took: Duration, budget: Duration) {
    let kept = if took <= budget { "kept" } else { "MISSED" };
    println!("{what:<64} {took:>10.1?}   budget {budget:>8.0?}   {kept}");
}

async fn measure() {
    let mut bench = ClaimBench::start().await;
    for others in [0, MANY] {
        for _ in 0..others {
            bench.prepare().await;
        }
        for delay in [Duration::ZERO, SLOW] {
            bench.api.slow_down(delay);
            let what = format!("prepare a claim, {others} others, the API server takes {delay:?}");
            let took = bench.median_of_preparing().await;
            row(&what, took, PREPARE_BUDGET + delay);
            let what =
                format!("a slice after a change, {others} claims, the API server takes {delay:?}");
            let took = bench.median_of_slices().await;
            row(&what, took, SLICE_BUDGET + delay);
        }
        bench.api.slow_down(Duration::ZERO);
    }
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    runtime.block_on(measure());
}
