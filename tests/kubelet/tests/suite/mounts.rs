//! A runtime without CDI: the kubelet is given paths that do not exist yet. They exist and lead to the pod's own
//! account exactly while the pod may start.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use apportion_kubelet_tests::{FakeKubelet, FakeNode, Runtime};
use apportion_proto::deviceplugin::ContainerAllocateResponse;
use apportion_tests::{PATIENCE, TestHost, cards};

/// What Debian's containerd reports about itself, shortened.
const OLD: &str =
    r#"{"enableCDI":false,"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{}}}}"#;

/// A node whose runtime reports a version that is too old for CDI.
async fn node() -> (FakeNode, Runtime, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder for the socket");
    let socket = folder.path().join("cri.sock");
    let runtime = Runtime::listen(&socket, "containerd", "1.7.24~ds1", OLD);
    let socket = socket.display().to_string();
    let options = ["--cdi", "auto", "--cri-socket", &socket];
    (FakeNode::with(1, 2, &options).await, runtime, folder)
}

/// The host path of a mount.
fn mounted(answer: &ContainerAllocateResponse, place: &str) -> PathBuf {
    let mut mounts = answer.mounts.iter();
    let mount = mounts.find(|mount| mount.container_path == place);
    mount.expect("it is mounted").host_path.clone().into()
}

/// What the runtime would find at a mount's host path, if anything.
fn found(answer: &ContainerAllocateResponse, place: &str) -> Option<PathBuf> {
    mounted(answer, place).canonicalize().ok()
}

fn account(node: &FakeNode, id: &str) -> PathBuf {
    let accounts = node.host.instance().join("accounts");
    let account = accounts.join(id).join("limits");
    account.canonicalize().expect("the account is there")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_cannot_tell_what_the_runtime_knows_offers_nothing() {
    let host = TestHost::with(&cards(1));
    let dir = |name: &str| host.dir().join(name).display().to_string();
    let mut kubelet = FakeKubelet::start(&host.dir().join("kubelet"));
    let socket = host.dir().join("cri.sock");
    let agent = host.agent(&[
        "--kubelet-dir",
        &dir("kubelet"),
        "--cdi-dir",
        &dir("cdi"),
        "--cri-socket",
        &dir("cri.sock"),
    ]);
    let deadline = Instant::now() + PATIENCE;
    while !host
        .agent_log()
        .contains("GPU slots not offered to the kubelet")
    {
        assert!(Instant::now() < deadline, "{}", host.agent_log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(kubelet.registrations(), 0);
    let _runtime = Runtime::listen(&socket, "containerd", "v2.4.2", "{}");
    kubelet.await_plugin(0).await;
    agent.kill();
}

/// The configuration of a containerd that looks for CDI files in other folders than ours.
const ELSEWHERE: &str = r#"{"enableCDI":true,"cdiSpecDirs":["/etc/cdi","/var/run/cdi"]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_files_the_runtime_does_not_look_for_says_where_it_does() {
    let host = TestHost::with(&cards(1));
    let dir = |name: &str| host.dir().join(name).display().to_string();
    let mut kubelet = FakeKubelet::start(&host.dir().join("kubelet"));
    let socket = host.dir().join("cri.sock");
    let runtime = Runtime::listen(&socket, "containerd", "v2.4.2", ELSEWHERE);
    let agent = host.agent(&[
        "--kubelet-dir",
        &dir("kubelet"),
        "--cdi-dir",
        &dir("cdi"),
        "--cri-socket",
        &dir("cri.sock"),
    ]);
    let deadline = Instant::now() + PATIENCE;
    let sentence =
        "the container runtime reads CDI specs from /etc/cdi, /var/run/cdi, but --cdi-dir is";
    while !host.agent_log().contains(sentence) {
        assert!(Instant::now() < deadline, "{}", host.agent_log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(kubelet.registrations(), 0);
    drop(runtime);
    fs::remove_file(&socket).expect("it was there");
    let _runtime = Runtime::listen(&socket, "containerd", "v2.4.2", "{}");
    kubelet.await_plugin(0).await;
    agent.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_learns_cdi_when_it_is_restarted_gets_it_without_a_new_agent() {
    let (node, runtime, folder) = node().await;
    let socket = folder.path().join("cri.sock");
    drop(runtime);
    fs::remove_file(&socket).expect("it was there");
    let _runtime = Runtime::listen(&socket, "containerd", "v2.4.2", "{}");
    let learned = || node.host.metric("apportion_cdi_enabled", &[]) == Some(1.0);
    node.eventually("CDI is known to be on", async |_| learned())
        .await;
    node.place("u1", 0, 2000).await.expect("the card is empty");
    let answered = async |uid: &str| {
        let admitted = node.kubelet.admit(uid, uid, &["main"]).await;
        admitted.expect("a slot is free");
        !node.kubelet.answer(uid).cdi_devices.is_empty()
    };
    // The plugin learns it after the loop.
    node.eventually("slots are answered for by CDI", async |_| {
        let is_cdi = answered("u1").await;
        if !is_cdi {
            node.kubelet.remove("u1");
        }
        is_cdi
    })
    .await;
    node.kubelet
        .before_start("u1")
        .await
        .expect("it was placed");
    assert_eq!(node.grants(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_leads_to_its_pods_account_when_the_container_starts_and_no_sooner() {
    let (node, _runtime, _folder) = node().await;
    let placed = node.place("u1", 0, 2000).await.expect("the card is empty");
    let slot = node.kubelet.admit("u1", "train", &["main"]).await;
    slot.expect("a slot is free");
    let answer = node.kubelet.answer("u1");
    assert!(answer.cdi_devices.is_empty(), "{answer:?}");
    assert_eq!(answer.devices[0].container_path, "/dev");
    let devices = Path::new(&answer.devices[0].host_path).to_owned();
    assert!(!devices.exists(), "a runtime would create the container");
    assert_eq!(found(&answer, "/.apportion/limits"), None);

    node.kubelet
        .before_start("u1")
        .await
        .expect("it was placed");
    assert!(devices.is_dir());
    let limits = found(&answer, "/.apportion/limits");
    assert_eq!(limits, Some(account(&node, &placed.id)));
    for mount in &answer.mounts {
        let is_there = Path::new(&mount.host_path).exists();
        assert!(is_there, "{} would be made a folder", mount.host_path);
    }
    let cards = fs::read_dir(mounted(&answer, "/.apportion/sim")).expect("it has cards");
    assert_eq!(cards.count(), 1);
    assert_eq!(
        node.grants(),
        0,
        "a runtime without CDI gets no file of CDI"
    );

    node.kubelet.remove("u1");
    node.eventually("its folder is gone", async |_| !devices.exists())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_before_leads_to_the_same_account_under_the_next_agent() {
    let (mut node, _runtime, _folder) = node().await;
    let placed = node.place("u1", 0, 2000).await.expect("the card is empty");
    let slot = node.kubelet.admit("u1", "train", &["main"]).await;
    slot.expect("a slot is free");
    node.kubelet
        .before_start("u1")
        .await
        .expect("it was placed");
    node.kill_agent();
    // The next agent uses CDI. The kubelet keeps the old answer for the pod.
    node.start_agent_with(&["--cdi", "on"]).await;
    let answer = node.kubelet.answer("u1");
    let limits = || found(&answer, "/.apportion/limits");
    assert_eq!(limits(), Some(account(&node, &placed.id)));
    node.kubelet
        .before_start("u1")
        .await
        .expect("it starts again");
    assert_eq!(limits(), Some(account(&node, &placed.id)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_goes_to_another_pod_leads_nowhere_until_that_pod_starts() {
    let (node, _runtime, _folder) = node().await;
    node.place("u1", 0, 2000).await.expect("the card is empty");
    let first = node.kubelet.admit("u1", "train", &["main"]).await;
    let first = first.expect("a slot is free");
    node.kubelet
        .before_start("u1")
        .await
        .expect("it was placed");
    node.kubelet.remove("u1");
    node.eventually("its share is given back", async |list| {
        list.allocations.is_empty()
    })
    .await;
    let other = node.place("u2", 0, 1000).await.expect("the card is empty");
    let second = node.kubelet.admit("u2", "serve", &["main"]).await;
    assert_eq!(second.expect("a slot is free"), first);
    let answer = node.kubelet.answer("u2");
    assert_eq!(found(&answer, "/.apportion/limits"), None);
    node.kubelet
        .before_start("u2")
        .await
        .expect("it was placed");
    let limits = found(&answer, "/.apportion/limits");
    assert_eq!(limits, Some(account(&node, &other.id)));
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_cards_are_behind_their_first_device_when_the_container_starts_and_no_sooner() {
    let (node, _runtime, _folder) = node().await;
    let its = node
        .kubelet
        .admit_whole("u1", "train", &[("main", 1, false)]);
    let its = its.await.expect("the card is idle");
    let device = node.host.instance().join("slots").join(&its.whole[0].1[0]);
    assert!(!device.exists(), "a runtime would create the container");
    let asked = node.kubelet.before_whole_start("u1", "main").await;
    asked.expect("it has its card");
    assert!(device.join("dev").is_dir());
    assert_eq!(
        fs::read_dir(device.join("sim")).expect("its card").count(),
        1
    );
    let limits = device.join(".apportion_limits").canonicalize();
    let list = node.list().await;
    assert_eq!(limits.ok(), Some(account(&node, &list.allocations[0].id)));
    assert!(!device.join(".apportion_libapportion_cuda.so").exists());
    assert_eq!(
        node.grants(),
        0,
        "a runtime without CDI gets no file of CDI"
    );

    node.kubelet.remove("u1");
    node.eventually("its folder is gone", async |_| !device.exists())
        .await;
}
