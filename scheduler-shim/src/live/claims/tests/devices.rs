//! Devices that must get ready before their pod is bound (KEP-5007).

use std::time::Duration;

use serde_json::{Value, json};

use super::{ATTACHED, BROKEN, ClaimCluster};
use crate::live::event::SchedulerEffect;

const PENDING: &str =
    "waits on node n1: device gpu.example.com/n1/whole-0 is not ready: example.com/attached";

impl ClaimCluster {
    /// A pod with a claim for a device with conditions, once the claim is reserved.
    fn with_waiting_pod() -> Self {
        let mut cluster = Self::with(true);
        cluster.create(None, None);
        cluster.deliver_all();
        cluster.decide();
        assert!(cluster.binds.is_empty(), "it is not bound yet");
        assert_eq!(cluster.attachments.len(), 1);
        cluster.attach(0, false);
        cluster.decide();
        assert!(cluster.told.is_empty(), "the watch does not show it yet");
        cluster.deliver_all();
        cluster.decide();
        assert_eq!(cluster.told, [PENDING]);
        cluster
    }

    fn status(&self) -> &Value {
        &self.claims["c1"]["status"]
    }

    /// Delivers what is shown, decides, and carries out what follows for claims.
    fn go_on(&mut self) {
        self.deliver_all();
        self.decide();
        while !self.attachments.is_empty() {
            self.attach(0, false);
        }
    }
}

#[test]
fn a_pod_is_bound_once_its_devices_are_ready() {
    let mut cluster = ClaimCluster::with_waiting_pod();
    cluster.go_on();
    assert!(
        cluster.binds.is_empty() && cluster.told.len() == 1,
        "nothing is new"
    );
    assert_eq!(
        cluster.model.explain_devices("uid-p1").as_deref(),
        Some(PENDING)
    );
    cluster.driver_says("c1", ATTACHED);
    cluster.deliver_all();
    cluster.decide();
    let SchedulerEffect::Bind {
        are_claims_reserved: true,
        ..
    } = &cluster.binds[0]
    else {
        panic!("{:?}", cluster.binds);
    };
    assert_eq!(cluster.model.explain_devices("uid-p1"), None);
    cluster.answer(0, None);
    cluster.check();
    assert_eq!(cluster.pods["p1"]["spec"]["nodeName"], "n1");
}

#[test]
fn a_device_that_fails_is_given_back_and_the_pod_is_decided_again() {
    let mut cluster = ClaimCluster::with_waiting_pod();
    cluster.driver_says("c1", BROKEN);
    cluster.deliver_all();
    cluster.decide();
    let why = "device gpu.example.com/n1/whole-0 failed: example.com/broken (Fabric: it is so)";
    assert_eq!(cluster.told.last().map(String::as_str), Some(why));
    let [SchedulerEffect::ReleaseClaims { .. }] = &cluster.attachments[..] else {
        panic!("{:?}", cluster.attachments);
    };
    cluster.attach(0, false);
    assert!(
        cluster.status()["allocation"].is_null(),
        "{}",
        cluster.status()
    );
    cluster.now += Duration::from_secs(120);
    cluster.go_on();
    cluster.driver_says("c1", ATTACHED);
    cluster.go_on();
    cluster.answer(0, None);
    assert_eq!(cluster.pods["p1"]["spec"]["nodeName"], "n1");
}

#[test]
fn devices_that_are_late_are_given_back() {
    let mut cluster = ClaimCluster::with_waiting_pod();
    cluster.now += Duration::from_secs(600);
    cluster.go_on();
    assert!(
        !cluster.status()["allocation"].is_null(),
        "there is time left"
    );
    cluster.now += Duration::from_secs(1);
    cluster.go_on();
    let late = "device gpu.example.com/n1/whole-0 is not ready: example.com/attached after 600 s";
    assert_eq!(cluster.told.last().map(String::as_str), Some(late));
    assert!(
        cluster.status()["allocation"].is_null(),
        "{}",
        cluster.status()
    );
}

#[test]
fn a_new_scheduler_goes_on_waiting() {
    let mut cluster = ClaimCluster::with_waiting_pod();
    cluster.start_scheduler();
    cluster.go_on();
    assert!(cluster.binds.is_empty());
    cluster.go_on();
    assert_eq!(cluster.told.len(), 2, "it says so again");
    cluster.driver_says("c1", ATTACHED);
    cluster.go_on();
    cluster.answer(0, None);
    assert_eq!(cluster.pods["p1"]["spec"]["nodeName"], "n1");
}

#[test]
fn a_new_scheduler_takes_back_what_failed_in_the_meantime() {
    let mut cluster = ClaimCluster::with_waiting_pod();
    cluster.driver_says("c1", BROKEN);
    cluster.start_scheduler();
    cluster.go_on();
    assert!(
        cluster.status()["allocation"].is_null(),
        "{}",
        cluster.status()
    );
    assert!(cluster.binds.is_empty());
    cluster.go_on();
    assert!(
        !cluster.status()["allocation"].is_null(),
        "it is decided again"
    );
}

/// The devices get ready while they are taken back.
#[test]
fn a_pod_is_not_decided_while_its_devices_are_taken_back() {
    let mut cluster = ClaimCluster::with_waiting_pod();
    cluster.start_scheduler();
    cluster.deliver_all();
    cluster.now += Duration::from_secs(700);
    cluster.decide();
    let [SchedulerEffect::ReleaseClaims { .. }] = cluster.attachments.as_slice() else {
        panic!("they are late: {:?}", cluster.attachments);
    };
    cluster.driver_says("c1", ATTACHED);
    cluster.deliver_all();
    cluster.decide();
    assert_eq!(cluster.attachments.len(), 1, "{:?}", cluster.attachments);
    cluster.settle();
    assert_eq!(cluster.pods["p1"]["spec"]["nodeName"], "n1");
    cluster.check();
}

#[test]
fn a_new_scheduler_takes_back_what_pods_share_that_wait() {
    let mut cluster = ClaimCluster::with_waiting_pod();
    cluster.create(None, Some(0));
    cluster.go_on();
    assert_eq!(super::users(&cluster.claims["c1"]).len(), 2);
    cluster.driver_says("c1", BROKEN);
    cluster.start_scheduler();
    for _ in 0..3 {
        cluster.go_on();
    }
    assert!(
        cluster.status()["devices"].is_null(),
        "{}",
        cluster.status()
    );
    cluster.settle();
    assert!(
        cluster
            .pods
            .values()
            .all(|pod| pod["spec"]["nodeName"] == "n1")
    );
}

#[test]
fn devices_that_another_pod_uses_are_not_taken_back() {
    let mut cluster = ClaimCluster::with_waiting_pod();
    let other = json!({"resource": "pods", "name": "other", "uid": "other"});
    let claim = cluster.claims.get_mut("c1").unwrap();
    claim["status"]["reservedFor"]
        .as_array_mut()
        .unwrap()
        .push(other);
    cluster.driver_says("c1", BROKEN);
    cluster.start_scheduler();
    for _ in 0..3 {
        cluster.now += Duration::from_secs(61);
        cluster.go_on();
    }
    assert!(
        !cluster.status()["allocation"].is_null(),
        "{}",
        cluster.status()
    );
    assert!(cluster.binds.is_empty());
}
