//! A node for one test: simulated cards, a kubelet, an agent, and the test in the role of the scheduler.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apportion_abi::names::RESOURCE_WHOLE;
use apportion_kubelet_tests::FakeKubelet;
use apportion_proto::v1::{
    AllocateRequest, Allocation, CommitRequest, Holder, ListReply, ListRequest, ReleaseRequest,
    Share, allocate_reply, holder,
};
use apportion_proto::{AgentClient, connect};
use apportion_tests::{AgentProcess, MIB, MachineConfig, PATIENCE, TestHost, cards};
use serde_json::Value;

pub(crate) struct Node {
    pub(crate) host: TestHost,
    pub(crate) kubelet: FakeKubelet,
    agent: Option<AgentProcess>,
    slots: u16,
}

impl Node {
    pub(crate) async fn new(cards_of_it: usize, slots: u16) -> Self {
        Self::with(cards_of_it, slots, &[]).await
    }

    /// A node whose first agent has additional `options`.
    pub(crate) async fn with(cards_of_it: usize, slots: u16, options: &[&str]) -> Self {
        Self::of(&cards(cards_of_it), slots, options).await
    }

    /// A node without an agent.
    pub(crate) fn idle(machine: &MachineConfig, slots: u16) -> Self {
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
    pub(crate) async fn of(machine: &MachineConfig, slots: u16, options: &[&str]) -> Self {
        let mut node = Self::idle(machine, slots);
        node.start_agent_with(options).await;
        node
    }

    pub(crate) async fn start_agent(&mut self) {
        self.start_agent_with(&[]).await;
    }

    /// Starts an agent that installs the libraries of this folder.
    pub(crate) async fn start_agent_of(&mut self, libraries: &Path) {
        let variables = [("APPORTION_LIB_DIR", libraries)];
        self.start_agent_in(&[], &variables).await;
    }

    pub(crate) async fn start_agent_with(&mut self, options: &[&str]) {
        self.start_agent_in(options, &[]).await;
    }

    /// A node whose agent shares cards and gives out no whole ones, as the chart starts it.
    pub(crate) async fn without_wholes(cards_of_it: usize, slots: u16) -> Self {
        let mut node = Self::idle(&cards(cards_of_it), slots);
        node.start_agent_without_wholes().await;
        node
    }

    pub(crate) async fn start_agent_without_wholes(&mut self) {
        let before = self.kubelet.registrations();
        self.spawn_agent(&["--whole-cards", "off"], &[]);
        self.kubelet.await_plugin(before).await;
    }

    pub(crate) async fn start_agent_in(&mut self, options: &[&str], variables: &[(&str, &Path)]) {
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
            "--context-reserve",
            "300",
        ];
        let options = [&usual[..], options].concat();
        self.agent = Some(self.host.agent_with(&options, variables));
    }

    pub(crate) fn kill_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.kill();
        }
    }

    fn cdi(&self) -> PathBuf {
        self.host.dir().join("cdi")
    }

    pub(crate) async fn client(&self) -> AgentClient {
        connect(&self.host.instance().join("agent.sock"))
            .await
            .expect("the agent serves")
    }

    pub(crate) async fn list(&self) -> ListReply {
        let mut client = self.client().await;
        client
            .list(ListRequest {})
            .await
            .expect("the agent answers")
            .into_inner()
    }

    /// Places a pod as a scheduler does. `None` if it does not fit now.
    pub(crate) async fn place(&self, uid: &str, card: usize, mib: u64) -> Option<Allocation> {
        self.place_elastic(uid, card, mib, 0).await
    }

    /// The same for a pod that may use up to `limit` MiB.
    pub(crate) async fn place_elastic(
        &self,
        uid: &str,
        card: usize,
        mib: u64,
        limit: u64,
    ) -> Option<Allocation> {
        let allocation = self.reserve_up_to(uid, card, mib, limit).await?;
        let request = CommitRequest {
            id: allocation.id,
            holder: Some(Holder {
                kind: Some(holder::Kind::PodUid(uid.to_owned())),
            }),
        };
        let committed = self.client().await.commit(request).await;
        committed
            .expect("it was just reserved")
            .into_inner()
            .allocation
    }

    pub(crate) async fn reserve(&self, uid: &str, card: usize, mib: u64) -> Option<Allocation> {
        self.reserve_up_to(uid, card, mib, 0).await
    }

    async fn reserve_up_to(
        &self,
        uid: &str,
        card: usize,
        mib: u64,
        limit: u64,
    ) -> Option<Allocation> {
        let card = self.list().await.cards.swap_remove(card).uuid;
        let bytes = mib * MIB;
        let request = AllocateRequest {
            idempotency_key: uid.to_owned(),
            name: format!("team/{uid}"),
            shares: vec![Share {
                card,
                bytes,
                limit_bytes: limit * MIB,
            }],
            ttl_ms: 60_000,
            ..AllocateRequest::default()
        };
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

    pub(crate) async fn release(&self, id: &str) {
        let request = ReleaseRequest { id: id.to_owned() };
        let released = self.client().await.release(request).await;
        released.expect("the agent answers");
    }

    /// The grant of a slot, as a runtime finds it.
    pub(crate) fn grant(&self, slot: &str) -> Option<Value> {
        let path = self.cdi().join(format!("apportion.dev-grant-{slot}.json"));
        let text = fs::read(path).ok()?;
        let file: Value = serde_json::from_slice(&text).expect("a grant is whole or not there");
        Some(file["devices"][0].clone())
    }

    /// The number of grants on disk.
    pub(crate) fn grants(&self) -> usize {
        fs::read_dir(self.cdi()).map_or(0, |entries| entries.flatten().count())
    }

    pub(crate) async fn eventually(
        &self,
        what: &str,
        mut seen: impl AsyncFnMut(&ListReply) -> bool,
    ) {
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

/// The host path of a mount.
pub(crate) fn mounted(grant: &Value, place: &str) -> PathBuf {
    let mounts = grant["containerEdits"]["mounts"].as_array();
    let mut mounts = mounts.into_iter().flatten();
    let mount = mounts.find(|mount| mount["containerPath"] == place);
    let host = mount.and_then(|mount| mount["hostPath"].as_str());
    PathBuf::from(host.unwrap_or_else(|| panic!("nothing is mounted at {place}: {grant}")))
}

pub(crate) fn pod_of(allocation: &Allocation) -> Option<&str> {
    match allocation.holder.as_ref()?.kind.as_ref()? {
        holder::Kind::PodUid(uid) => Some(uid),
        holder::Kind::Pid(_) | holder::Kind::Claim(_) => None,
    }
}
