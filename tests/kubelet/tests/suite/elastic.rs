//! Pods with a request and a higher limit: the container gets what its programs need to ask for more, and they do.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use apportion_kubelet_tests::{FakeNode, PodsApi, mounted};
use apportion_proto::v1;
use apportion_tests::{CONTEXT, MIB, MachineConfig, cards};

const GIB: u64 = 1024 * MIB;
/// What programs can get of the card of these tests.
const CARD: u64 = 16 * GIB;
const REQUEST: u64 = 3 * 1024;
const LIMIT: u64 = 12 * 1024;

fn machine() -> MachineConfig {
    let mut machine = cards(1);
    machine.cards[0].memory = CARD + machine.cards[0].reserved;
    machine
}

/// What a pod is guaranteed, what it may have now, and its limit, in MiB.
async fn numbers(node: &FakeNode, uid: &str) -> [u64; 3] {
    let list = node.list().await;
    let mut all = list.allocations.iter();
    let found = all.find(|of| of.idempotency_key == uid);
    let grant: &v1::Grant = &found.expect("it is there").grants[0];
    [
        grant.guaranteed_bytes,
        grant.limit_bytes,
        grant.ceiling_bytes,
    ]
    .map(|bytes| bytes / MIB)
}

fn is_open_to_all(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.mode() & 0o777 == 0o666)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_bursts_above_its_request_up_to_its_limit_also_after_the_agent_has_started_again() {
    let mut node = FakeNode::of(&machine(), 4, &[]).await;
    let placed = node.place_elastic("u1", 0, REQUEST, LIMIT).await;
    placed.expect("the card is empty");
    let grant = node.started("u1").await;
    let burst = mounted(&grant, "/.apportion/burst");
    let wake = mounted(&grant, "/.apportion/wake");
    assert!(is_open_to_all(&burst) && is_open_to_all(&wake));
    let kind = fs::symlink_metadata(&wake).expect("it is there");
    assert!(kind.file_type().is_fifo());

    let mut victim = node.program(&grant, "u1");
    victim.step(&format!("alloc {}", 8 * GIB)).ok();
    let [guaranteed, allowance, limit] = numbers(&node, "u1").await;
    assert_eq!([guaranteed, limit], [REQUEST, LIMIT]);
    assert!((8 * 1024..LIMIT).contains(&allowance), "{allowance}");
    let metric = |kind: &str| {
        let name = format!("apportion_container_memory_{kind}_bytes");
        let labels = ["namespace=\"team\"", "pod=\"u1\""];
        node.host.metric(&name, &labels)
    };
    assert_eq!(metric("guaranteed"), Some((REQUEST * MIB) as f64));
    assert_eq!(metric("limit"), Some((LIMIT * MIB) as f64));
    assert!(metric("allowance") >= Some((8 * GIB) as f64));

    node.kill_agent();
    node.start_agent().await;
    assert_eq!(numbers(&node, "u1").await, [guaranteed, allowance, limit]);
    let rest = LIMIT * MIB - 8 * GIB - CONTEXT;
    victim.step(&format!("alloc {rest}")).ok();
    assert_eq!(numbers(&node, "u1").await, [REQUEST, LIMIT, LIMIT]);
    victim.step(&format!("alloc {}", 2 * MIB)).refused();
    let next = node.kubelet.before_start("u1").await;
    next.expect("the pod's next container finds the same account");
    assert!(victim.end().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn guarantees_fill_the_card_and_bursts_take_what_nobody_is_guaranteed() {
    let node = FakeNode::of(&machine(), 8, &[]).await;
    let names = ["u1", "u2", "u3", "u4"];
    let mut victims = Vec::new();
    for name in names {
        let placed = node.place_elastic(name, 0, REQUEST, LIMIT).await;
        placed.expect("the guarantees fit");
        let grant = node.started(name).await;
        victims.push(node.program(&grant, name));
    }
    for victim in &mut victims {
        victim.begin("fill 64M");
    }
    for victim in &mut victims {
        let filled = victim.finish().numbers[0] + CONTEXT;
        let guaranteed = REQUEST * MIB;
        assert!(filled > guaranteed - 64 * MIB, "{filled}");
    }
    assert!(node.host.high_water() <= CARD);
    assert!(node.host.high_water() > CARD - 5 * 64 * MIB);
    assert!(node.place("late", 0, 4 * 1024).await.is_none());
    for victim in &mut victims {
        assert!(victim.end().success());
    }
    node.eventually("the bursts have ended", async |list| {
        list.cards[0].free_bytes == 4 * GIB
    })
    .await;
    let late = node.place("late", 0, 4 * 1024).await;
    late.expect("it fits beside the guarantees");
    assert!(node.place("later", 0, 2).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_share_has_no_more_files_than_before() {
    let node = FakeNode::of(&machine(), 4, &[]).await;
    node.place("u1", 0, 2000).await.expect("the card is empty");
    let grant = node.started("u1").await.to_string();
    assert!(grant.contains("/.apportion/usage"), "{grant}");
    assert!(!grant.contains("/.apportion/burst"), "{grant}");
    assert!(!grant.contains("/.apportion/wake"), "{grant}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_places_pods_itself_reads_their_limits() {
    let options = ["--unplaced", "local-fit"];
    let mut node = FakeNode::of(&machine(), 4, &options).await;
    let pods = PodsApi::listen(&kubelet_folder(&node));
    // The agent reads the pods when it starts, and again after a while.
    node.kill_agent();
    node.start_agent_with(&options).await;
    let sizes = [("gpu-memory", "3072"), ("gpu-memory.limit", "12Gi")];
    let mark = ("apportion.dev/gpu-memory-burst", "true");
    pods.has("marked", "marked", &[sizes[0], sizes[1], mark]);
    node.started("marked").await;
    assert_eq!(numbers(&node, "marked").await, [REQUEST, REQUEST, LIMIT]);
    // Where the webhook does not let pods burst, this agent gives the request alone, as ever.
    pods.has("unmarked", "unmarked", &sizes);
    node.started("unmarked").await;
    assert_eq!(numbers(&node, "unmarked").await, [REQUEST; 3]);
}

fn kubelet_folder(node: &FakeNode) -> PathBuf {
    node.host.dir().join("kubelet")
}
