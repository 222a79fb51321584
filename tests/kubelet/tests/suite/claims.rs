//! Resource claims: what a scheduler allocated is what the container is held to, beside all other ways to the cards.

use std::fs;
use std::time::{Duration, Instant};

use apportion_kubelet_tests::{ApiServer, FakeNode, PodOf, PodsApi, mounted};
use apportion_proto::v1::{Allocation, AllocationState, ClaimHolder, holder};
use apportion_tests::{CONTEXT, MIB, cards};
use serde_json::Value;

use crate::delivery::start;

mod storm;

/// The allocatable memory of a card, in MiB.
const CARD: u64 = apportion_tests::CARD / MIB;
const VARIABLE: &str = "KUBECONFIG";

/// A node whose agent serves claims.
struct ClaimNode {
    node: FakeNode,
    api: ApiServer,
}

impl ClaimNode {
    async fn new(count: usize) -> Self {
        let mut node = FakeNode::idle(&cards(count), 8);
        let api = ApiServer::listen(&node.host.dir().join("kubeconfig")).await;
        start_agent(&mut node, "on").await;
        Self { node, api }
    }

    async fn restart_agent(&mut self) {
        self.node.kill_agent();
        start_agent(&mut self.node, "on").await;
    }

    /// The device name of a card.
    async fn device(&self, card: usize) -> String {
        let uuid = self.node.list().await.cards.swap_remove(card).uuid;
        uuid.to_lowercase()
    }

    /// The card's memory for claims in MiB, and the keys of its taints; `None` until the slice was written.
    fn offer(&self, device: &str) -> Option<(u64, Vec<String>)> {
        let (devices, _) = self.api.offered()?;
        let device = devices.get(device)?;
        let memory = device["capacity"]["memory"]["value"].as_str()?;
        let taints = device["taints"].as_array().into_iter().flatten();
        let keys = taints.filter_map(|taint| Some(taint["key"].as_str()?.to_owned()));
        Some((mib(memory), keys.collect()))
    }

    async fn offers(&self, device: &str, expected: u64) {
        let what = format!("{expected} MiB are offered");
        self.node
            .eventually(&what, async |_| {
                self.offer(device) == Some((expected, Vec::new()))
            })
            .await;
    }

    /// Adds an allocated claim and prepares it.
    async fn claim(&self, uid: &str, results: &[(&str, &str)]) -> Result<Value, String> {
        self.api.has_claim(uid, uid, results, &["p-1"]);
        let devices = self.node.kubelet.prepare(uid, uid).await?;
        let name = format!("c-{uid}");
        let cdi = format!("apportion.dev/grant={name}");
        for device in &devices {
            assert_eq!(device.cdi_device_ids, [cdi.as_str()]);
            assert!(device.share_id.is_some(), "{device:?}");
        }
        assert_eq!(devices.len(), results.len());
        Ok(self
            .node
            .grant(&name)
            .expect("a prepared claim has its CDI spec"))
    }
}

async fn start_agent(node: &mut FakeNode, dra: &str) {
    let kubeconfig = node.host.dir().join("kubeconfig");
    let options = ["--dra", dra, "--node-name", "node-1"];
    node.start_agent_in(&options, &[(VARIABLE, &kubeconfig)])
        .await;
    if dra == "on" {
        node.eventually("the driver is registered", async |_| {
            node.kubelet.register_driver().await.is_ok()
        })
        .await;
    }
}

/// A quantity in MiB.
fn mib(text: &str) -> u64 {
    let at = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..at].parse().expect("it begins with a number");
    match &text[at..] {
        "Ki" => number / 1024,
        "Mi" => number,
        "Gi" => number * 1024,
        "" => number / MIB,
        unit => panic!("what is {unit}?"),
    }
}

fn holder_of(allocation: &Allocation) -> Option<&ClaimHolder> {
    match allocation.holder.as_ref()?.kind.as_ref()? {
        holder::Kind::Claim(claim) => Some(claim),
        holder::Kind::PodUid(_) | holder::Kind::Pid(_) => None,
    }
}

fn is_held_to(grant: &Value, mib: u64) -> bool {
    let limits = fs::read(mounted(grant, "/.apportion/limits")).expect("the account is there");
    let limit = (mib * MIB).to_le_bytes();
    limits.windows(8).any(|word| word == limit)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubelet_finds_a_driver_that_speaks_both_versions() {
    let node = ClaimNode::new(1).await;
    let info = node
        .node
        .kubelet
        .register_driver()
        .await
        .expect("it is there");
    assert_eq!(
        (info.r#type.as_str(), info.name.as_str()),
        ("DRAPlugin", "gpu.apportion.dev")
    );
    assert_eq!(
        info.supported_versions,
        ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    );
    let device = node.device(0).await;
    node.api
        .has_claim("c1", "c1", &[(&device, "1000Mi")], &["p-1"]);
    let prepared = node.node.kubelet.prepare_beta("c1", "c1").await;
    assert_eq!(prepared, Ok(vec!["apportion.dev/grant=c-c1".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_held_to_its_claim_until_its_last_process_has_ended() {
    let node = ClaimNode::new(1).await;
    let device = node.device(0).await;
    let grant = node
        .claim("c1", &[(&device, "2000Mi")])
        .await
        .expect("the card is empty");
    let mut victim = start(&node.node, &grant);
    victim.step(&format!("alloc {}", 2000 * MIB - CONTEXT)).ok();
    victim.step("alloc 1").refused();
    // The scheduler knows the claim itself.
    node.offers(&device, CARD).await;

    let again = node.claim("c1", &[(&device, "2000Mi")]).await;
    assert_eq!(again, Ok(grant), "a prepared claim can be prepared again");
    assert_eq!(node.node.list().await.allocations.len(), 1);

    node.node
        .kubelet
        .unprepare("c1", "c1")
        .await
        .expect("it was prepared");
    assert_eq!(
        node.node.grant("c-c1"),
        None,
        "no container starts with it any more"
    );
    let left = node.node.list().await.allocations;
    assert_eq!(
        left[0].state(),
        AllocationState::Draining,
        "its process lives"
    );
    node.offers(&device, CARD - 2000).await;
    assert!(victim.end().success());
    node.node
        .eventually("the memory is back", async |list| {
            list.allocations.is_empty()
        })
        .await;
    node.offers(&device, CARD).await;
    let twice = node.node.kubelet.unprepare("c1", "c1").await;
    assert_eq!(twice, Ok(()), "a claim that is gone is unprepared");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_share_by_annotation_has_no_claim_gets() {
    let node = ClaimNode::new(1).await;
    let device = node.device(0).await;
    node.node
        .place("u1", 0, 6000)
        .await
        .expect("the card is empty");
    node.offers(&device, CARD - 6000).await;
    // A scheduler that has not seen that yet.
    let refused = node.claim("c1", &[(&device, "5000Mi")]).await;
    let refused = refused.expect_err("4000 MiB are left");
    let sentence = "ResourceClaim team/c1: asked for 5000 MiB";
    assert!(
        refused.contains(sentence) && refused.contains("team/u1"),
        "{refused}"
    );
    node.claim("c2", &[(&device, "4000Mi")])
        .await
        .expect("the rest is free");
    assert!(
        node.node.place("u2", 0, 2).await.is_none(),
        "nothing is left"
    );
    assert_eq!(node.offer(&device), Some((CARD - 6000, Vec::new())));

    // What the share gives back goes to the claim that was refused, when the kubelet asks again.
    let id = node
        .node
        .list()
        .await
        .allocations
        .into_iter()
        .find(|of| of.name == "team/u1");
    node.node.release(&id.expect("the share is there").id).await;
    node.offers(&device, CARD).await;
    node.claim("c1", &[(&device, "5000Mi")])
        .await
        .expect("there is room now");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_for_all_of_a_card_has_it_whole() {
    let node = ClaimNode::new(2).await;
    let (first, second) = (node.device(0).await, node.device(1).await);
    let all = format!("{CARD}Mi");
    let grant = node
        .claim("c1", &[(&first, &all)])
        .await
        .expect("the card is empty");
    let mounts = grant["containerEdits"]["mounts"].to_string();
    assert!(
        !mounts.contains("libapportion_cuda"),
        "nothing is in between: {mounts}"
    );
    assert!(
        node.node.place("u1", 0, 2).await.is_none(),
        "nobody else has any of it"
    );
    node.node
        .place("u2", 1, 2)
        .await
        .expect("the other card is free");
    node.offers(&second, CARD - 2).await;
    let refused = node
        .claim("c2", &[(&second, &all)])
        .await
        .expect_err("it is shared");
    assert!(refused.contains("asked for"), "{refused}");
    // A whole card and a share are shares, with limits.
    let both = node
        .claim("c3", &[(&second, "100Mi"), (&second, "50Mi")])
        .await;
    assert!(is_held_to(&both.expect("there is room"), 150));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_others_have_whole_is_tainted_and_one_that_is_back_is_not() {
    let node = ClaimNode::new(1).await;
    let device = node.device(0).await;
    node.node
        .place("u1", 0, CARD)
        .await
        .expect("the card is empty");
    let full = Some((2, vec!["gpu.apportion.dev/full".to_owned()]));
    node.node
        .eventually("it is full", async |_| node.offer(&device) == full)
        .await;
    let id = node.node.list().await.allocations.swap_remove(0).id;
    node.node.release(&id).await;
    node.offers(&device, CARD).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_two_pods_is_one_account_that_both_are_known_for() {
    let node = ClaimNode::new(2).await;
    let pods = PodsApi::listen(&node.node.host.dir().join("kubelet"));
    let (first, second) = (node.device(0).await, node.device(1).await);
    let grant = node
        .claim("c1", &[(&first, "1000Mi"), (&second, "2000Mi")])
        .await;
    let grant = grant.expect("the cards are empty");
    assert!(is_held_to(&grant, 1000) && is_held_to(&grant, 2000));
    // The kubelet prepares nothing for the second pod, but lists it.
    pods.has("p-2", "second", &[("team", "a")]);
    node.node.kubelet.enter(PodOf {
        uid: "p-2".to_owned(),
        name: "second".to_owned(),
        own_claims: vec!["c1".to_owned()],
        ..PodOf::default()
    });
    node.node
        .eventually("both pods are known", async |list| {
            let claims: Vec<_> = list.allocations.iter().filter_map(holder_of).collect();
            let [claim] = claims[..] else {
                return false;
            };
            let uids: Vec<_> = claim.pods.iter().map(|pod| pod.uid.as_str()).collect();
            claim.name == "team/c1" && uids == ["p-1", "p-2"]
        })
        .await;
    let mut victims = [start(&node.node, &grant), start(&node.node, &grant)];
    victims[0]
        .step(&format!("alloc {}", 500 * MIB - CONTEXT))
        .ok();
    victims[1]
        .step(&format!("alloc {}", 500 * MIB - CONTEXT))
        .ok();
    victims
        .iter_mut()
        .for_each(|victim| victim.step("alloc 1").refused());
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_and_their_grants_survive_the_agent_and_the_kubelet() {
    let mut node = ClaimNode::new(1).await;
    let device = node.device(0).await;
    let grant = node
        .claim("c1", &[(&device, "2000Mi")])
        .await
        .expect("the card is empty");
    let mut victim = start(&node.node, &grant);
    victim.step(&format!("alloc {}", 1000 * MIB)).ok();
    let before = node.node.list().await.allocations;
    node.restart_agent().await;
    let after = node.node.list().await.allocations;
    assert_eq!(after[0].id, before[0].id);
    assert_eq!(holder_of(&after[0]), holder_of(&before[0]));
    assert_eq!(
        node.claim("c1", &[(&device, "2000Mi")]).await,
        Ok(grant),
        "it is the same grant"
    );
    victim.step("alloc 1").ok();

    // A container that restarts names its claim without asking, so a lost file must come back with the agent.
    let spec = node
        .node
        .host
        .dir()
        .join("cdi/apportion.dev-grant-c-c1.json");
    fs::remove_file(&spec).expect("it is there");
    node.restart_agent().await;
    assert!(spec.exists());
    node.node.kubelet.restart().await;
    fs::remove_dir_all(node.node.host.dir().join("kubelet/plugins_registry")).expect("it is there");
    node.node
        .eventually("the driver is registered again", async |_| {
            node.node.kubelet.register_driver().await.is_ok()
        })
        .await;
    node.node
        .kubelet
        .unprepare("c1", "c1")
        .await
        .expect("it was prepared");
    node.restart_agent().await;
    assert_eq!(
        node.node.list().await.allocations[0].state(),
        AllocationState::Draining
    );
    assert!(victim.end().success());
    node.node
        .eventually("the memory is back", async |list| {
            list.allocations.is_empty()
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_allocated_anew_does_not_keep_its_earlier_cards() {
    let node = ClaimNode::new(2).await;
    let (first, second) = (node.device(0).await, node.device(1).await);
    node.claim("c1", &[(&first, "2000Mi")])
        .await
        .expect("the card is empty");
    let refused = node
        .claim("c1", &[(&second, "3000Mi")])
        .await
        .expect_err("it has another card");
    assert!(refused.contains("are being released"), "{refused}");
    let grant = node
        .claim("c1", &[(&second, "3000Mi")])
        .await
        .expect("nothing ran");
    assert!(is_held_to(&grant, 3000));
    assert_eq!(node.node.list().await.allocations.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_cannot_be_read_is_refused_in_words() {
    let node = ClaimNode::new(1).await;
    let refused = node
        .node
        .kubelet
        .prepare("c1", "c1")
        .await
        .expect_err("there is none");
    assert!(
        refused.contains("failed to read ResourceClaim team/c1"),
        "{refused}"
    );
    let device = node.device(0).await;
    node.api
        .has_claim("c2", "c1", &[(&device, "100Mi")], &["p-1"]);
    let refused = node
        .node
        .kubelet
        .prepare("c1", "c1")
        .await
        .expect_err("it is another one");
    assert!(refused.contains("another one has its name"), "{refused}");
    assert!(node.node.list().await.allocations.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_slice_follows_what_happens_and_is_written_again_if_somebody_removes_it() {
    let mut node = ClaimNode::new(1).await;
    let device = node.device(0).await;
    node.offers(&device, CARD).await;
    let (devices, generation) = node.api.offered().expect("it was written");
    let attributes = &devices[&device]["attributes"];
    assert_eq!(attributes["type"]["string"], "gpu");
    assert_eq!(
        attributes["driverVersion"]["version"]
            .as_str()
            .map(|of| of.split('.').count()),
        Some(3)
    );
    assert!(
        attributes["productName"]["string"].is_string(),
        "{attributes}"
    );
    assert_eq!(devices[&device]["allowMultipleAllocations"], true);

    node.api.wipe();
    node.offers(&device, CARD).await;
    let (_, later) = node.api.offered().expect("it was written again");
    assert!(
        later > generation,
        "{later} is no later generation than {generation}"
    );
    // What does not change is not written.
    let writes = node.api.writes();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(node.api.writes(), writes);

    let sick = r#"{"Nvml":{"Control":{"Recovery":{"card":0,"action":1}}}}"#;
    let sick = serde_json::from_str(sick).expect("it is a request");
    drop(node.node.host.ask(sick));
    let lost = vec!["gpu.apportion.dev/health".to_owned()];
    node.node
        .eventually("the card is tainted", async |_| {
            node.offer(&device)
                .is_some_and(|(_, taints)| taints == lost)
        })
        .await;
    node.node.kill_agent();
    start_agent(&mut node.node, "off").await;
    node.node
        .eventually("nothing is offered", async |_| node.api.offered().is_none())
        .await;
}

/// The kubelet's state was deleted, so it never unprepares the claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_gone_and_was_never_unprepared_is_released() {
    /// The agent asks every half minute, and believes the second answer.
    const LATEST: Duration = Duration::from_secs(100);
    let node = ClaimNode::new(1).await;
    let device = node.device(0).await;
    for uid in ["gone", "kept"] {
        node.claim(uid, &[(&device, "2000Mi")])
            .await
            .expect("the card is empty");
    }
    node.api.loses_claim("gone");
    let start = Instant::now();
    while node.node.list().await.allocations.len() > 1 {
        assert!(start.elapsed() < LATEST, "the claim keeps its memory");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let left = node.node.list().await.allocations;
    assert_eq!(holder_of(&left[0]).expect("a claim").uid, "kept");
    assert_eq!(node.node.grant("c-gone"), None);
}

/// Two schedulers chose the same memory. The kubelet repeats the call, and no scheduler moves a bound pod.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_claim_stays_refused_is_evicted_if_it_is_replaced() {
    let node = ClaimNode::new(1).await;
    let device = node.device(0).await;
    node.node
        .place("u1", 0, 6000)
        .await
        .expect("the card is empty");
    let spec = serde_json::json!({"nodeName": "node-1", "containers": []});
    for (uid, pod, job) in [("c1", "p-job", Some("train")), ("c2", "p-bare", None)] {
        node.api.has_pod(pod, &spec, job);
        node.api.has_claim(uid, uid, &[(&device, "5000Mi")], &[pod]);
    }
    let start = Instant::now();
    while node.api.evictions().is_empty() {
        assert!(
            start.elapsed() < Duration::from_secs(90),
            "nobody is evicted"
        );
        for uid in ["c1", "c2"] {
            let refused = node.node.kubelet.prepare(uid, uid).await;
            assert!(refused.is_err_and(|reason| reason.contains("asked for 5000 MiB")));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(
        start.elapsed() > Duration::from_secs(29),
        "it may be free soon"
    );
    assert_eq!(
        node.api.evictions(),
        ["p-job"],
        "the other one would be lost"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_has_one_claim_and_a_pod_may_have_several() {
    let node = ClaimNode::new(1).await;
    let device = node.device(0).await;
    let claims = serde_json::json!([{"name": "one", "resourceClaimName": "c1"}, {"name": "two", "resourceClaimName": "c2"}]);
    let names = |names: &[&str]| {
        let claims: Vec<Value> = names
            .iter()
            .map(|name| serde_json::json!({"name": name}))
            .collect();
        serde_json::json!({"claims": claims})
    };
    let both = serde_json::json!({"resourceClaims": claims,
        "containers": [{"name": "main", "resources": names(&["one", "two"])}]});
    node.api.has_pod("p-1", &both, None);
    node.claim("c1", &[(&device, "1000Mi")])
        .await
        .expect("nobody has another claim yet");
    let refused = node
        .claim("c2", &[(&device, "1000Mi")])
        .await
        .expect_err("the container has c1");
    let sentence = "container main of pod team/p-1 names ResourceClaims c2 and c1, and a container can have one claim";
    assert!(refused.contains(sentence), "{refused}");
    let apart = serde_json::json!({"resourceClaims": claims, "containers": [
        {"name": "main", "resources": names(&["one"])}, {"name": "side", "resources": names(&["two"])}]});
    node.api.has_pod("p-1", &apart, None);
    node.claim("c2", &[(&device, "1000Mi")])
        .await
        .expect("each container has one");
}
