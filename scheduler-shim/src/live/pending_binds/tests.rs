//! Units of pods whose agents and API server answer in any order.

use std::time::Duration;

use super::*;

fn start(name: &str, node: &str) -> PendingBind {
    let cards = vec!["GPU-1=1".parse().unwrap()];
    PendingBind::new(pod(name), node.to_owned(), cards, Some("Fraction"))
}

fn pod(name: &str) -> PodRef {
    PodRef {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
    }
}

/// A pod with devices that must get ready, and without a share.
fn with_devices(name: &str) -> PendingBind {
    let mut start = PendingBind::new(pod(name), "n".to_owned(), Vec::new(), None);
    start.devices = Some(DeviceWait {
        since: Duration::ZERO,
        is_reserved: false,
        reserved: Vec::new(),
        told: None,
    });
    start
}

fn kinds(effects: &[SchedulerEffect]) -> Vec<String> {
    let kind = |effect: &SchedulerEffect| match effect {
        SchedulerEffect::ReserveClaims { pod, .. } => format!("reserve {}", pod.name),
        SchedulerEffect::ReleaseClaims { pod, .. } => format!("release {}", pod.name),
        SchedulerEffect::AskAgent { request, .. } => match request {
            AgentRequest::Allocate { pod, .. } => format!("ask {}", pod.name),
            AgentRequest::Release { id } => format!("give back {id}"),
            other => format!("{other:?}"),
        },
        SchedulerEffect::Bind { pod, .. } => format!("bind {}", pod.name),
        other => format!("{other:?}"),
    };
    effects.iter().map(kind).collect()
}

#[test]
fn agents_are_asked_once_all_devices_of_a_unit_are_ready() {
    let mut binds = PendingBinds::default();
    let unit = vec![with_devices("a"), with_devices("b"), start("c", "n")];
    assert_eq!(kinds(&binds.begin(unit)), ["reserve a", "reserve b"]);
    for pod in ["a", "b"] {
        assert_eq!(binds.reserved(pod, &[]), None);
    }
    assert_eq!(binds.attaching().count(), 2);
    assert_eq!(kinds(&binds.attached("a")), [""; 0]);
    assert_eq!(kinds(&binds.attached("b")), ["ask c"]);
    let bound = binds.accepted("c", "1".to_owned());
    assert_eq!(kinds(&bound), ["bind a", "bind b", "bind c"]);
}

#[test]
fn a_device_that_fails_ends_a_unit_and_frees_all_claims() {
    let mut binds = PendingBinds::default();
    let _ = binds.begin(vec![with_devices("a"), with_devices("b"), start("c", "n")]);
    let _ = binds.reserved("a", &[]);
    let ended = binds.not_attached("a");
    // The claims of the other are still being reserved.
    assert_eq!(kinds(&ended.effects), ["release a"]);
    assert!(binds.get("c").is_none(), "nobody has to answer about it");
    binds.released("a");
    assert!(binds.get("a").is_none());
    let late = binds.reserved("b", &[]);
    assert_eq!(kinds(late.as_slice()), ["release b"]);
    assert!(binds.is_withdrawn("b"), "it is not decided again yet");
    binds.released("b");
    assert!(binds.all().next().is_none());
}

#[test]
fn claims_that_cannot_be_reserved_end_a_unit() {
    let mut binds = PendingBinds::default();
    let _ = binds.begin(vec![with_devices("a"), with_devices("b")]);
    let _ = binds.reserved("a", &[]);
    assert_eq!(kinds(&binds.not_bound("b")), ["release a"]);
    assert!(binds.get("b").is_none());
    assert!(binds.is_withdrawn("a"));
}

#[test]
fn an_agent_that_refuses_frees_the_claims_of_its_unit() {
    let mut binds = PendingBinds::default();
    let mut both = start("a", "n");
    both.devices = with_devices("a").devices;
    let _ = binds.begin(vec![both, with_devices("b")]);
    for pod in ["a", "b"] {
        let _ = binds.reserved(pod, &[]);
        let _ = binds.attached(pod);
    }
    let refused = binds.refused("a");
    assert_eq!(kinds(&refused.effects), ["release a", "release b"]);
    for pod in ["a", "b"] {
        assert!(binds.is_withdrawn(pod));
        binds.released(pod);
    }
    assert!(binds.all().next().is_none());
}

#[test]
fn a_pod_that_goes_waits_for_both_answers() {
    let mut binds = PendingBinds::default();
    let mut both = start("a", "n");
    both.devices = with_devices("a").devices;
    let _ = binds.begin(vec![both]);
    let _ = binds.reserved("a", &[]);
    assert_eq!(kinds(&binds.attached("a")), ["ask a"]);
    assert_eq!(kinds(&binds.gone("a").effects), ["release a"]);
    binds.released("a");
    assert!(binds.is_withdrawn("a"), "its agent has yet to answer");
    let answered = binds.accepted("a", "1".to_owned());
    assert_eq!(kinds(&answered), ["give back 1"]);
    assert!(binds.all().next().is_none());
}

#[test]
fn a_pod_that_somebody_else_bound_keeps_its_claims() {
    let mut binds = PendingBinds::default();
    let _ = binds.begin(vec![with_devices("a")]);
    let _ = binds.reserved("a", &[]);
    assert_eq!(kinds(&binds.observed_on("a", "m").effects), [""; 0]);
    assert!(binds.all().next().is_none());
}

#[test]
fn one_refusal_ends_a_unit_and_gives_back_what_was_accepted() {
    let mut pending_binds = PendingBinds::default();
    let asked = pending_binds.begin(vec![start("a", "n"), start("b", "n"), start("c", "m")]);
    assert_eq!(asked.len(), 3);
    assert!(
        pending_binds.accepted("a", "1".to_owned()).is_empty(),
        "the others are awaited"
    );
    let outcome = pending_binds.refused("b");
    let (node, id) = ("n".to_owned(), "1".to_owned());
    assert_eq!(outcome.effects, [AgentRequest::Release { id }.to(node)]);
    let asked: Vec<String> = pending_binds
        .awaiting_agent("m")
        .into_iter()
        .map(|pod| pod.uid)
        .collect();
    assert_eq!(asked, ["c"], "it stays until its agent has answered");
    let released = pending_binds.accepted("c", "2".to_owned());
    let (node, id) = ("m".to_owned(), "2".to_owned());
    assert_eq!(released, [AgentRequest::Release { id }.to(node)]);
    assert!(pending_binds.all().next().is_none());
}
