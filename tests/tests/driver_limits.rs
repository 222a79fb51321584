//! The driver's own limits of containers, on the simulated driver of release 615: they hold for programs that go round
//! the library. Release 580 has none, so there such programs are only noticed.
//!
//! Containers are control groups that are made as the kubelet makes them. That needs root.

use std::fs;
use std::path::PathBuf;

use apportion_proto::v1::{
    AllocateRequest, CommitRequest, Holder, ListRequest, ReleaseRequest, ResizeRequest, Share,
    allocate_reply, holder, resize_reply,
};
use apportion_proto::{AgentClient, connect};
use apportion_sim_machine::{
    DriverGeneration, MachineReply, MachineRequest, NvmlRefusal, NvmlReply, NvmlRequest,
};
use apportion_tests::{
    AgentProcess, CONTEXT, MIB, PATIENCE, TestHost, VictimProcess, built, cards, eventually,
};
use nix::sys::signal::Signal;
use tokio::runtime::Runtime;

const UID: &str = "6f1c2d3e-4b5a-4978-8a6b-1c2d3e4f5a6b";
/// The share of the container, in MiB, and the driver's limit for it: a context more.
const SHARE: u64 = 2000;
const LIMIT: u64 = SHARE * MIB + CONTEXT;

/// A container's control group, removed when dropped. Drop it after its processes.
struct ContainerGroup {
    root: PathBuf,
    made: Vec<PathBuf>,
}

impl ContainerGroup {
    /// `None` where no hierarchy of version 2 is writable.
    fn new(test: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let unified = mounts.lines().filter_map(|line| {
            let mut words = line.split_ascii_whitespace().skip(1);
            let (point, kind) = (words.next()?, words.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(point))
        });
        let name = format!("apportion-{test}-{}", std::process::id());
        for root in unified {
            let mut folder = root.join(&name);
            let mut made = vec![folder.clone()];
            for part in ["kubepods", &format!("pod{UID}"), &"c0ffee00".repeat(8)] {
                folder.push(part);
                made.push(folder.clone());
            }
            if fs::create_dir_all(&folder).is_ok() {
                return Some(Self { root, made });
            }
        }
        eprintln!("skipped: no control group of version 2 can be made here");
        None
    }

    fn folder(&self) -> &PathBuf {
        self.made.last().expect("it has folders")
    }

    /// The name that the kernel has for it.
    fn name(&self) -> String {
        let below = self.folder().strip_prefix(&self.root).expect("it is below");
        format!("/{}", below.display())
    }

    /// A program of the container: a client of the driver without the library.
    fn program(&self, host: &TestHost) -> VictimProcess {
        let program = host.free_victim();
        let procs = self.folder().join("cgroup.procs");
        fs::write(procs, program.pid().to_string()).expect("root may move a process");
        program
    }
}

impl Drop for ContainerGroup {
    fn drop(&mut self) {
        for folder in self.made.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// A node with one GPU, an agent, and a pod with a share.
struct Node {
    host: TestHost,
    group: ContainerGroup,
    client: Runtime,
}

impl Node {
    fn new(test: &str, driver: DriverGeneration) -> Option<Self> {
        let group = ContainerGroup::new(test)?;
        let mut config = cards(1);
        config.driver = driver;
        let host = TestHost::with(&config);
        let client = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a client of the agent");
        Some(Self {
            host,
            group,
            client,
        })
    }

    fn agent(&self, options: &[&str]) -> AgentProcess {
        let root = self.group.root.display().to_string();
        let usual = ["--tick", "50", "--cgroup-root", &root];
        self.host.agent(&[&usual, options].concat())
    }

    fn ask<T>(&self, question: impl AsyncFnOnce(&mut AgentClient) -> T) -> T {
        let socket = self.host.instance().join("agent.sock");
        self.client.block_on(async {
            let mut client = connect(&socket).await.expect("the agent listens");
            question(&mut client).await
        })
    }

    /// Gives the pod a share. Returns its id.
    fn grant(&self) -> String {
        let card = self.card();
        let request = AllocateRequest {
            idempotency_key: "pod".into(),
            name: "team/train-0/main".into(),
            shares: vec![Share {
                card,
                bytes: SHARE * MIB,
                limit_bytes: 0,
            }],
            ttl_ms: 0,
            ..AllocateRequest::default()
        };
        self.ask(async |client| {
            let reply = client.allocate(request).await.expect("the agent answers");
            let result = reply.into_inner().result;
            let Some(allocate_reply::Result::Allocation(made)) = result else {
                panic!("it fits: {result:?}");
            };
            let holder = Some(Holder {
                kind: Some(holder::Kind::PodUid(UID.to_owned())),
            });
            let commit = CommitRequest {
                id: made.id.clone(),
                holder,
            };
            client.commit(commit).await.expect("it is reserved");
            made.id
        })
    }

    fn card(&self) -> String {
        self.ask(async |client| {
            let list = client.list(ListRequest {}).await.expect("the agent lists");
            list.into_inner().cards[0].uuid.clone()
        })
    }

    fn resize(&self, id: &str, mib: u64) {
        let request = ResizeRequest {
            id: id.to_owned(),
            shares: vec![Share {
                card: self.card(),
                bytes: mib * MIB,
                limit_bytes: 0,
            }],
        };
        let reply = self.ask(async |client| client.resize(request).await);
        let result = reply.expect("the agent answers").into_inner().result;
        assert!(
            matches!(result, Some(resize_reply::Result::Allocation(_))),
            "{result:?}"
        );
    }

    /// The driver's soft and hard limit of the container.
    fn limit(&self) -> Option<(u64, u64)> {
        let request = NvmlRequest::GetMemoryLimits {
            card: 0,
            group: self.group.name(),
        };
        match self.host.ask(MachineRequest::Nvml(request)) {
            MachineReply::Nvml(NvmlReply::MemoryLimits(limits)) => Some((limits.soft, limits.hard)),
            MachineReply::Nvml(NvmlReply::Refused(
                NvmlRefusal::NotFound | NvmlRefusal::NotSupported,
            )) => None,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn await_limit(&self, hard: Option<u64>) {
        eventually(PATIENCE, "the driver has the limit", || {
            self.limit() == hard.map(|hard| (0, hard))
        });
    }

    fn enforcement(&self) -> String {
        let state = self.host.top()["allocations"][0]["enforcement"].clone();
        state.as_str().unwrap_or_default().to_owned()
    }
}

#[test]
fn a_program_that_goes_round_the_library_is_refused_at_the_limit() {
    let Some(node) = Node::new("refused", DriverGeneration::R615) else {
        return;
    };
    let _agent = node.agent(&[]);
    let labels = ["backend=\"misc\""];
    let active = node.host.metric("apportion_driver_limits_active", &labels);
    assert_eq!(active, Some(1.0));
    node.grant();
    let mut client = node.group.program(&node.host);
    client.step("alloc 100M").ok();
    node.await_limit(Some(LIMIT));
    eventually(PATIENCE, "it is counted", || {
        node.host.metric("apportion_driver_limited_containers", &[]) == Some(1.0)
    });
    client.step("alloc 1900M").ok();
    assert_eq!(node.host.used(), LIMIT, "the last byte of the limit");
    client.step("alloc 2M").refused();
    // A program without a loader cannot even open a context.
    client.step("static 100M").ok();
    assert_eq!(node.host.used(), LIMIT);
    client.step("free 1").ok();
    client.step("static 1500M").ok();
    assert_eq!(node.host.used(), 1600 * MIB + 2 * CONTEXT);
    client.step("alloc 200M").refused();
    client.step("reap").ok();
    // This one gets a context and no memory, so it ends.
    client.step("static 2000M").ok();
    let own = 100 * MIB + CONTEXT;
    eventually(PATIENCE, "it ended", || node.host.used() == own);
    assert!(node.host.high_water() <= LIMIT, "it was never above");
}

#[test]
fn an_older_driver_lets_it_and_the_agent_notices() {
    let Some(node) = Node::new("noticed", DriverGeneration::R580) else {
        return;
    };
    let _agent = node.agent(&[]);
    node.grant();
    let mut client = node.group.program(&node.host);
    client.step("alloc 100M").ok();
    client.step("alloc 1900M").ok();
    client.step("static 1500M").ok();
    assert_eq!(node.host.used(), 3500 * MIB + 2 * CONTEXT);
    eventually(PATIENCE, "it is noticed", || {
        node.enforcement() == "bypassed"
    });
    assert_eq!(node.limit(), None);
    let active = node
        .host
        .metric("apportion_driver_limits_active", &["backend=\"\""]);
    assert_eq!(active, Some(0.0));
}

#[test]
fn the_library_answers_before_the_driver_does() {
    let Some(node) = Node::new("first", DriverGeneration::R615) else {
        return;
    };
    let _agent = node.agent(&[]);
    let id = node.grant();
    let (libraries, instance) = (node.host.libraries(), node.host.instance());
    let mut command = node.host.program(built("victim"));
    command
        .env("LD_LIBRARY_PATH", libraries.join("sim"))
        .env("LD_PRELOAD", libraries.join("libapportion_cuda.so"))
        .env("APPORTION_SIM_SOCKET", instance.join("driver.sock"))
        .env("APPORTION_ACCOUNT", instance.join("accounts").join(&id))
        .arg("-");
    let mut program = node.host.start(&mut command);
    let procs = node.group.folder().join("cgroup.procs");
    fs::write(procs, program.pid().to_string()).expect("root may move a process");
    program.step("alloc 100M").ok();
    node.await_limit(Some(LIMIT));
    program.step("alloc 1600M").ok();
    program.step("alloc 2M").refused();
    assert_eq!(node.host.used(), SHARE * MIB, "the share, to the byte");
    eventually(PATIENCE, "the library counts what it refused", || {
        let denied = "apportion_container_memory_denied_bytes_total";
        node.host.metric(denied, &[]) >= Some(2.0 * MIB as f64)
    });
}

#[test]
fn the_limit_follows_the_share_and_is_lifted_with_the_last_process() {
    let Some(node) = Node::new("follows", DriverGeneration::R615) else {
        return;
    };
    let _agent = node.agent(&[]);
    let id = node.grant();
    let mut client = node.group.program(&node.host);
    client.step("alloc 1000M").ok();
    node.await_limit(Some(LIMIT));
    node.resize(&id, 3000);
    node.await_limit(Some(3000 * MIB + CONTEXT));
    client.step("alloc 1500M").ok();
    // The driver refuses a limit below what the container holds. So the old one stays until there is room.
    node.resize(&id, SHARE);
    client.step("alloc 200M").ok();
    eventually(PATIENCE, "it is counted", || {
        let name = "apportion_driver_limit_failures_total";
        node.host.metric(name, &[]) >= Some(1.0)
    });
    client.step("free 1").ok();
    node.await_limit(Some(LIMIT));
    client.step("alloc 1000M").refused();
    drop(client);
    node.await_limit(None);
    assert!(node.group.folder().is_dir(), "before it is removed");
}

#[test]
fn a_killed_agent_leaves_limits_that_the_next_one_keeps_or_lifts() {
    let Some(node) = Node::new("killed", DriverGeneration::R615) else {
        return;
    };
    let agent = node.agent(&[]);
    let id = node.grant();
    let mut client = node.group.program(&node.host);
    client.step("alloc 100M").ok();
    node.await_limit(Some(LIMIT));
    agent.kill();
    client.step("alloc 1900M").ok();
    client.step("alloc 2M").refused();

    let agent = node.agent(&[]);
    node.resize(&id, 3000);
    node.await_limit(Some(3000 * MIB + CONTEXT));
    agent.kill();
    drop(client);
    assert_eq!(node.limit(), Some((0, 3000 * MIB + CONTEXT)));
    let agent = node.agent(&[]);
    node.await_limit(None);

    // The share itself is gone while the agent is: the limit of what still runs stays, and goes with it.
    let mut client = node.group.program(&node.host);
    client.step("alloc 100M").ok();
    node.await_limit(Some(3000 * MIB + CONTEXT));
    agent.kill();
    fs::remove_file(node.host.instance().join("checkpoint.json")).expect("it was written");
    let _agent = node.agent(&[]);
    assert_eq!(node.limit(), Some((0, 3000 * MIB + CONTEXT)));
    drop(client);
    node.await_limit(None);
}

#[test]
fn an_agent_without_the_drivers_limits_lifts_those_of_an_earlier_one() {
    let Some(node) = Node::new("off", DriverGeneration::R615) else {
        return;
    };
    let agent = node.agent(&[]);
    node.grant();
    let mut client = node.group.program(&node.host);
    client.step("alloc 100M").ok();
    node.await_limit(Some(LIMIT));
    agent.kill();
    let _agent = node.agent(&["--driver-memory-limits", "off"]);
    node.await_limit(None);
    client.step("alloc 4000M").ok();
    eventually(PATIENCE, "it is noticed", || {
        node.enforcement() == "bypassed"
    });
    assert_eq!(node.limit(), None);
}

/// The runtime removes a container's group without asking. Nothing of it stays anywhere.
#[test]
fn a_removed_container_is_forgotten() {
    let Some(node) = Node::new("removed", DriverGeneration::R615) else {
        return;
    };
    let _agent = node.agent(&[]);
    let id = node.grant();
    let mut client = node.group.program(&node.host);
    client.step("alloc 100M").ok();
    node.await_limit(Some(LIMIT));
    client.signal(Signal::SIGKILL);
    drop(client);
    node.await_limit(None);
    fs::remove_dir(node.group.folder()).expect("nothing is in it");
    let request = ReleaseRequest { id };
    node.ask(async |client| client.release(request).await.expect("it is there"));
    let record = node.host.instance().join("driver-limits.json");
    eventually(PATIENCE, "the record is empty", || {
        let text = fs::read_to_string(&record).expect("it was written");
        let record: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        record["groups"] == serde_json::json!([])
    });
}
