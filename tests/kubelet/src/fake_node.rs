//! A node for one test: simulated GPUs, a kubelet, an agent, and the test in the role of the scheduler.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apportion_abi::names::RESOURCE_WHOLE;
use apportion_abi::paths;
use apportion_proto::identity;
use apportion_proto::v1::{
    AllocateRequest, Allocation, CommitRequest, Holder, ListReply, ListRequest, ReleaseRequest,
    Share, allocate_reply, holder,
};
use apportion_proto::{AgentClient, connect};
use apportion_tests::{
    AgentProcess, MIB, MachineConfig, PATIENCE, TestHost, VictimProcess, built, cards,
};
use serde_json::Value;
use tonic::Request;

use crate::FakeKubelet;

/// The files of an elastic account.
const FILES: [&str; 4] = [
    paths::LIMITS_FILE,
    paths::USAGE_FILE,
    paths::BURST_FILE,
    paths::WAKE_FIFO,
];
/// The agent's option with what it reserves for a context, in MiB.
const CONTEXT_RESERVE: &str = "--context-reserve";
/// How long a reservation lasts.
const TTL_MS: u64 = 60_000;

/// A node for one test or bench. It ends with this.
pub struct FakeNode {
    /// The machine with the simulated GPUs.
    pub host: TestHost,
    /// The kubelet.
    pub kubelet: FakeKubelet,
    agent: Option<AgentProcess>,
    slots: u16,
}

impl FakeNode {
    /// A node with so many GPUs and slots, whose agent serves.
    pub async fn new(cards_of_it: usize, slots: u16) -> Self {
        Self::with(cards_of_it, slots, &[]).await
    }

    /// A node whose first agent has additional `options`.
    pub async fn with(cards_of_it: usize, slots: u16, options: &[&str]) -> Self {
        Self::of(&cards(cards_of_it), slots, options).await
    }

    /// A node without an agent.
    #[must_use]
    pub fn idle(machine: &MachineConfig, slots: u16) -> Self {
        let host = TestHost::with(machine);
        let kubelet = FakeKubelet::start(&host.dir().join("kubelet"));
        Self {
            host,
            kubelet,
            agent: None,
            slots,
        }
    }

    /// A node with the cards of this machine.
    pub async fn of(machine: &MachineConfig, slots: u16, options: &[&str]) -> Self {
        let mut node = Self::idle(machine, slots);
        node.start_agent_with(options).await;
        node
    }

    /// Starts an agent and waits until the kubelet knows it.
    pub async fn start_agent(&mut self) {
        self.start_agent_with(&[]).await;
    }

    /// Starts an agent that installs the libraries of this folder.
    pub async fn start_agent_of(&mut self, libraries: &Path) {
        let variables = [("APPORTION_LIB_DIR", libraries)];
        self.start_agent_in(&[], &variables).await;
    }

    /// Starts an agent with additional options.
    pub async fn start_agent_with(&mut self, options: &[&str]) {
        self.start_agent_in(options, &[]).await;
    }

    /// A node whose agent shares cards and gives out no whole ones, as the chart starts it.
    pub async fn without_wholes(cards_of_it: usize, slots: u16) -> Self {
        let mut node = Self::idle(&cards(cards_of_it), slots);
        node.start_agent_without_wholes().await;
        node
    }

    /// Starts an agent that gives out no whole GPUs.
    pub async fn start_agent_without_wholes(&mut self) {
        let before = self.kubelet.registrations();
        self.spawn_agent(&["--whole-cards", "off"], &[]);
        self.kubelet.await_plugin(before).await;
    }

    /// Starts an agent with additional options and environment variables.
    pub async fn start_agent_in(&mut self, options: &[&str], variables: &[(&str, &Path)]) {
        let before = self.kubelet.registrations();
        let before_whole = self.kubelet.registrations_of(RESOURCE_WHOLE);
        self.spawn_agent(&[&["--whole-cards", "on"], options].concat(), variables);
        self.kubelet.await_plugin(before).await;
        let wholes = self.kubelet.await_plugin_of(RESOURCE_WHOLE, before_whole);
        wholes.await;
    }

    fn spawn_agent(&mut self, options: &[&str], variables: &[(&str, &Path)]) {
        let kubelet = self.host.dir().join("kubelet").display().to_string();
        let (cdi, slots) = (self.cdi().display().to_string(), self.slots.to_string());
        let usual = [
            "--kubelet-dir",
            &kubelet,
            "--cdi-dir",
            &cdi,
            "--cdi",
            "on",
            "--slots",
            &slots,
            "--tick",
            "50",
        ];
        let mut options = [&usual[..], options].concat();
        if !options.contains(&CONTEXT_RESERVE) {
            options.extend([CONTEXT_RESERVE, "300"]);
        }
        self.agent = Some(self.host.agent_with(&options, variables));
    }

    /// Kills the agent, as a crash does.
    pub fn kill_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.kill();
        }
    }

    fn cdi(&self) -> PathBuf {
        self.host.dir().join("cdi")
    }

    /// A client of the agent.
    ///
    /// # Panics
    /// If the agent does not serve.
    pub async fn client(&self) -> AgentClient {
        connect(&self.host.instance().join("agent.sock"))
            .await
            .expect("the agent serves")
    }

    /// What the agent says of the node.
    ///
    /// # Panics
    /// If the agent does not answer.
    pub async fn list(&self) -> ListReply {
        let mut client = self.client().await;
        client
            .list(ListRequest {})
            .await
            .expect("the agent answers")
            .into_inner()
    }

    /// Places a pod as a scheduler does. `None` if it does not fit now.
    pub async fn place(&self, uid: &str, card: usize, mib: u64) -> Option<Allocation> {
        self.place_elastic(uid, card, mib, 0).await
    }

    /// The same for a pod that may use up to `limit` MiB.
    ///
    /// # Panics
    /// If the agent refuses the request itself.
    pub async fn place_elastic(
        &self,
        uid: &str,
        card: usize,
        mib: u64,
        limit: u64,
    ) -> Option<Allocation> {
        let allocation = self.reserve_up_to(uid, card, mib, limit).await?;
        self.commit(allocation.id, uid).await
    }

    async fn commit(&self, id: String, uid: &str) -> Option<Allocation> {
        let kind = Some(holder::Kind::PodUid(uid.to_owned()));
        let holder = Some(Holder { kind });
        let mut client = self.client().await;
        let committed = client.commit(CommitRequest { id, holder }).await;
        committed
            .expect("it was just reserved")
            .into_inner()
            .allocation
    }

    /// Reserves a share, as a scheduler does before it binds the pod. `None` if it does not fit now.
    pub async fn reserve(&self, uid: &str, card: usize, mib: u64) -> Option<Allocation> {
        self.reserve_up_to(uid, card, mib, 0).await
    }

    /// The request for so much of a GPU for a pod.
    pub async fn request(&self, uid: &str, card: usize, mib: u64) -> AllocateRequest {
        let card = self.list().await.cards.swap_remove(card).uuid;
        AllocateRequest {
            idempotency_key: uid.to_owned(),
            name: format!("team/{uid}"),
            shares: vec![Share {
                card,
                bytes: mib * MIB,
                limit_bytes: 0,
            }],
            ttl_ms: TTL_MS,
            ..AllocateRequest::default()
        }
    }

    async fn reserve_up_to(
        &self,
        uid: &str,
        card: usize,
        mib: u64,
        limit: u64,
    ) -> Option<Allocation> {
        let mut request = self.request(uid, card, mib).await;
        request.shares[0].limit_bytes = limit * MIB;
        let reply = self
            .client()
            .await
            .allocate(request)
            .await
            .expect("it is well formed");
        match reply.into_inner().result {
            Some(allocate_reply::Result::Allocation(allocation)) => Some(allocation),
            _ => None,
        }
    }

    /// Releases an allocation.
    ///
    /// # Panics
    /// If the agent does not answer.
    pub async fn release(&self, id: &str) {
        let request = ReleaseRequest { id: id.to_owned() };
        let released = self.client().await.release(request).await;
        released.expect("the agent answers");
    }

    /// Places a pod with the time of its annotation `suspend-when-idle`.
    ///
    /// # Panics
    /// If it does not fit now.
    pub async fn place_idle(&self, uid: &str, card: usize, mib: u64, idle: Duration) {
        let mut request = self.request(uid, card, mib).await;
        request.suspend_when_idle_ms = idle.as_millis().try_into().expect("it is short");
        // Only a scheduler may say this of a pod.
        let request = of_scheduler(request);
        let reply = self.client().await.allocate(request).await;
        let result = reply.expect("a pod is not refused").into_inner().result;
        let Some(allocate_reply::Result::Allocation(allocation)) = result else {
            panic!("its guarantee fits");
        };
        self.commit(allocation.id, uid).await;
    }

    /// Admits a pod to the kubelet and starts its container. Returns what the container gets.
    ///
    /// # Panics
    /// If the container may not start.
    pub async fn started(&self, uid: &str) -> Value {
        let slot = self.kubelet.admit(uid, uid, &["main"]).await;
        let slot = slot.expect("a slot is free");
        let placed = self.kubelet.before_start(uid).await;
        placed.expect("the pod has a share");
        self.grant(&slot).expect("the container may start")
    }

    /// Starts a victim with the files that are mounted into its container, and no others of its account.
    ///
    /// # Panics
    /// If it was started before.
    #[must_use]
    pub fn program(&self, grant: &Value, name: &str) -> VictimProcess {
        let account = self.host.dir().join(name);
        fs::create_dir(&account).expect("it is new");
        let given = grant.to_string();
        for file in FILES {
            let place = format!("{}/{file}", paths::CONTAINER_ACCOUNT);
            // A fixed share has two of them.
            if !given.contains(&format!("\"{place}\"")) {
                continue;
            }
            let host = mounted(grant, &place);
            fs::hard_link(host, account.join(file)).expect("both are on one file system");
        }
        let library = mounted(grant, "/.apportion/libapportion_cuda.so");
        let socket = self.host.instance().join("driver.sock");
        let mut command = self.host.program(built("victim"));
        command
            .arg("-")
            .env("LD_PRELOAD", library)
            .env("APPORTION_ACCOUNT", account)
            .env("LD_LIBRARY_PATH", self.host.libraries().join("sim"))
            .env("APPORTION_SIM_SOCKET", socket);
        self.host.start(&mut command)
    }

    /// The grant of a slot, as a runtime finds it.
    ///
    /// # Panics
    /// If the file is not complete.
    #[must_use]
    pub fn grant(&self, slot: &str) -> Option<Value> {
        let path = self.cdi().join(format!("apportion.dev-grant-{slot}.json"));
        let text = fs::read(path).ok()?;
        let file: Value = serde_json::from_slice(&text).expect("a grant is whole or not there");
        Some(file["devices"][0].clone())
    }

    /// The number of grants on disk.
    #[must_use]
    pub fn grants(&self) -> usize {
        fs::read_dir(self.cdi()).map_or(0, |entries| entries.flatten().count())
    }

    /// Waits until what the agent says of the node is as it should be.
    ///
    /// # Panics
    /// If it is not in time. The message is `what`.
    pub async fn eventually(&self, what: &str, mut seen: impl AsyncFnMut(&ListReply) -> bool) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !seen(&self.list().await).await {
            let log = self.host.agent_log();
            assert!(
                tokio::time::Instant::now() < deadline,
                "not within {PATIENCE:?}: {what}\n{log}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A request as a scheduler sends it, with its term.
pub fn of_scheduler<T>(request: T) -> Request<T> {
    let mut request = Request::new(request);
    request.metadata_mut().insert(identity::TERM, 1.into());
    request
}

/// The host path of a mount.
///
/// # Panics
/// If nothing is mounted there.
#[must_use]
pub fn mounted(grant: &Value, place: &str) -> PathBuf {
    let mounts = grant["containerEdits"]["mounts"].as_array();
    let mut mounts = mounts.into_iter().flatten();
    let mount = mounts.find(|mount| mount["containerPath"] == place);
    let host = mount.and_then(|mount| mount["hostPath"].as_str());
    PathBuf::from(host.unwrap_or_else(|| panic!("nothing is mounted at {place}: {grant}")))
}

/// The UID of the pod that holds an allocation.
#[must_use]
pub fn pod_of(allocation: &Allocation) -> Option<&str> {
    match allocation.holder.as_ref()?.kind.as_ref()? {
        holder::Kind::PodUid(uid) => Some(uid),
        holder::Kind::Pid(_) | holder::Kind::Claim(_) => None,
    }
}
