//! One pod at a time: a container with a share starts with its limit, or it does not start and learns why.

use std::fs;

use apportion_kubelet_tests::{FakeNode, mounted, pod_of};
use apportion_tests::{CONTEXT, MIB, VictimProcess, built, cards};
use serde_json::Value;

/// Runs a victim with the account and the library of the grant, as a runtime would.
pub(crate) fn start(node: &FakeNode, grant: &Value) -> VictimProcess {
    let account = mounted(grant, "/.apportion/limits");
    let mut command = node.host.program(built("victim"));
    command
        .arg("-")
        .env(
            "LD_PRELOAD",
            mounted(grant, "/.apportion/libapportion_cuda.so"),
        )
        .env(
            "APPORTION_ACCOUNT",
            account.parent().expect("a file has a folder"),
        )
        .env("LD_LIBRARY_PATH", node.host.libraries().join("sim"))
        .env(
            "APPORTION_SIM_SOCKET",
            node.host.instance().join("driver.sock"),
        );
    node.host.start(&mut command)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_finds_the_grant_of_its_pod_and_is_held_to_it_until_its_end() {
    let node = FakeNode::new(1, 4).await;
    let placed = node.place("u1", 0, 2000).await.expect("the card is empty");
    let slot = node
        .kubelet
        .admit("u1", "train", &["main"])
        .await
        .expect("a slot is free");
    assert_eq!(
        node.grant(&slot),
        None,
        "nothing is granted before the container starts"
    );
    node.kubelet
        .before_start("u1")
        .await
        .expect("the pod was placed");
    let grant = node.grant(&slot).expect("the container may start");
    assert_eq!(grant["annotations"]["apportion.dev/pod"], "u1");
    assert_eq!(grant["annotations"]["apportion.dev/allocation"], placed.id);

    let mut victim = start(&node, &grant);
    victim.step(&format!("alloc {}", 2000 * MIB - CONTEXT)).ok();
    victim.step("alloc 1").refused();

    // The kubelet has forgotten the pod, but its process still runs: its memory is not given out.
    node.kubelet.remove("u1");
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(node.list().await.allocations.len(), 1, "its process lives");
    assert!(victim.end().success());
    node.eventually("the share is given back", async |list| {
        list.allocations.is_empty()
    })
    .await;
    assert_eq!(node.grants(), 0);
}

/// NVIDIA's hook sets the driver's limit from two variables before the container starts, and fails it where the driver
/// is too old.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_has_the_drivers_limit_where_the_driver_keeps_one() {
    let mut roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter();
    let is_unified =
        |root: &&str| fs::exists(format!("{root}/cgroup.controllers")).is_ok_and(|is| is);
    let Some(root) = roots.find(is_unified).filter(|root| is_writable(root)) else {
        eprintln!("skipped: no control group of version 2 can be made here");
        return;
    };
    let limits = [
        "NVIDIA_GPU_MEMORY_LIMIT=2300",
        "NVIDIA_GPU_MEMORY_REQUEST=0",
    ];
    for (release, expected) in [("615", &limits[..]), ("580", &[])] {
        let mut machine = cards(1);
        machine.driver = serde_json::from_value(release.into()).expect("a release");
        let node = FakeNode::of(&machine, 4, &["--cgroup-root", root]).await;
        node.place("u1", 0, 2000).await.expect("the card is empty");
        let admitted = node.kubelet.admit("u1", "train", &["main"]).await;
        let slot = admitted.expect("a slot is free");
        let placed = node.kubelet.before_start("u1").await;
        placed.expect("the pod was placed");
        let grant = node.grant(&slot).expect("the container may start");
        let env = grant["containerEdits"]["env"]
            .as_array()
            .expect("it has variables");
        let env = env.iter().filter_map(Value::as_str);
        let mut found: Vec<_> = env
            .filter(|entry| entry.starts_with("NVIDIA_GPU_MEMORY_"))
            .collect();
        found.sort_unstable();
        assert_eq!(found, expected, "release {release}");
    }
}

fn is_writable(root: &str) -> bool {
    let folder = format!("{root}/apportion-delivery-{}", std::process::id());
    fs::create_dir(&folder).is_ok() && fs::remove_dir(&folder).is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_at_the_kubelet_shows_in_metrics() {
    let node = FakeNode::new(1, 4).await;
    node.place("u1", 0, 2000).await.expect("the card is empty");
    let started = |result: &str| {
        let name = "apportion_prestart_duration_seconds_count";
        node.host.metric(name, &[&format!("result=\"{result}\"")])
    };
    for (uid, name) in [("u1", "train"), ("u2", "stray")] {
        let admitted = node.kubelet.admit(uid, name, &["main"]).await;
        admitted.expect("a slot is free");
        let _ = node.kubelet.before_start(uid).await;
    }
    let slots = |state: &str| {
        let label = format!("state=\"{state}\"");
        node.host.metric("apportion_slots", &[&label])
    };
    node.eventually("both starts are counted", async |_| {
        (started("granted"), started("refused")) == (Some(1.0), Some(1.0))
            && [slots("prepared"), slots("free")] == [Some(1.0), Some(2.0)]
    })
    .await;
    let registered = ["resource=\"apportion.dev/gpu-slot\""];
    let registered = node
        .host
        .metric("apportion_kubelet_registered", &registered);
    assert_eq!(registered, Some(1.0));
    let has_cdi = node.host.metric("apportion_cdi_enabled", &[]);
    assert_eq!(has_cdi, Some(1.0));
    let looks = ["source=\"both\"", "result=\"ok\""];
    let looks = node.host.metric("apportion_identity_lookups_total", &looks);
    assert!(looks > Some(1.0), "{looks:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_nobody_placed_does_not_start_and_is_told_why() {
    let node = FakeNode::new(1, 4).await;
    let slot = node
        .kubelet
        .admit("u1", "stray", &["main"])
        .await
        .expect("a slot is free");
    let refused = node
        .kubelet
        .before_start("u1")
        .await
        .expect_err("nobody placed it");
    assert!(
        refused
            .message()
            .contains("pod team/stray has no GPU share"),
        "{refused}"
    );
    assert_eq!(node.grant(&slot), None);
    let disagreed = node.host.metric(
        "apportion_scheduler_disagreements_total",
        &["kind=\"unplaced\""],
    );
    assert_eq!(disagreed, Some(1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_is_faster_than_the_commit_does_it() {
    let node = FakeNode::new(1, 4).await;
    node.reserve("u1", 0, 2000)
        .await
        .expect("the card is empty");
    node.kubelet
        .admit("u1", "train", &["main"])
        .await
        .expect("a slot is free");
    node.kubelet
        .before_start("u1")
        .await
        .expect("the reservation is in the pod's name");
    let list = node.list().await;
    assert_eq!(pod_of(&list.allocations[0]), Some("u1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_and_the_container_after_an_init_container_find_the_same_account() {
    let node = FakeNode::new(1, 4).await;
    node.place("u1", 0, 2000).await.expect("the card is empty");
    let slot = node
        .kubelet
        .admit("u1", "train", &["init", "main"])
        .await
        .expect("a slot is free");
    let mut grants = Vec::new();
    for _ in 0..3 {
        node.kubelet
            .before_start("u1")
            .await
            .expect("the pod was placed");
        grants.push(node.grant(&slot));
    }
    assert!(grants[0].is_some() && grants.windows(2).all(|pair| pair[0] == pair[1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_account_or_library_was_removed_does_not_start() {
    let node = FakeNode::new(1, 4).await;
    node.place("u1", 0, 2000).await.expect("the card is empty");
    let slot = node
        .kubelet
        .admit("u1", "train", &["main"])
        .await
        .expect("a slot is free");
    node.kubelet
        .before_start("u1")
        .await
        .expect("the pod was placed");
    let grant = node.grant(&slot).expect("it is granted");
    for (place, why) in [
        (
            "/.apportion/libapportion_cuda.so",
            "the limit of pod team/train cannot be enforced",
        ),
        ("/.apportion/limits", "the account of pod team/train"),
    ] {
        let (file, aside) = (mounted(&grant, place), node.host.dir().join("aside"));
        fs::rename(&file, &aside).expect("it is there");
        let refused = node
            .kubelet
            .before_start("u1")
            .await
            .expect_err("a piece is missing");
        assert!(refused.message().contains(why), "{refused}");
        fs::rename(&aside, &file).expect("it was there");
        node.kubelet
            .before_start("u1")
            .await
            .expect("all is there again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_without_an_agent_does_not_start() {
    let mut node = FakeNode::new(1, 4).await;
    node.place("u1", 0, 2000).await.expect("the card is empty");
    node.kubelet
        .admit("u1", "train", &["main"])
        .await
        .expect("a slot is free");
    node.kill_agent();
    node.kubelet
        .before_start("u1")
        .await
        .expect_err("nobody answers");
    node.start_agent().await;
    node.kubelet
        .before_start("u1")
        .await
        .expect("the next agent knows the pod");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_starts_again_is_told_of_the_slots_within_a_second() {
    let mut node = FakeNode::new(1, 4).await;
    node.place("u1", 0, 2000).await.expect("the card is empty");
    let slot = node
        .kubelet
        .admit("u1", "train", &["main"])
        .await
        .expect("a slot is free");
    node.kubelet
        .before_start("u1")
        .await
        .expect("the pod was placed");
    let before = node.kubelet.registrations();
    node.kubelet.restart().await;
    node.kubelet.await_plugin(before).await;
    node.kubelet
        .before_start("u1")
        .await
        .expect("the pod is still there");
    assert!(node.grant(&slot).is_some());
    assert_eq!(node.list().await.allocations.len(), 1);
}
