//! What is lent and what is not, one rule at a time.

use crate::*;

/// An idle pod that has all but 200 units, and one that may burst.
fn idle_beside(mut node: LendingNode) -> (LendingNode, AllocationId, AllocationId) {
    let idle = node.arrive(800, 800).expect("there is room");
    let bursts = node.arrive_wakeful(100, 1000).expect("there is room");
    assert!(node.use_up_to(&idle, 800));
    node.becomes_idle(&idle);
    node.sample();
    (node, idle, bursts)
}

#[test]
fn what_an_idle_pod_is_guaranteed_is_lent_to_bursts_and_promised_to_nobody() {
    let (mut node, idle, bursts) = idle_beside(LendingNode::new());
    assert_eq!(node.ledger.granted(CARD), units(900));
    assert_eq!(node.ledger.free(CARD), units(100));
    let reachable = node.ledger.reachable(&bursts, CARD);
    assert_eq!(reachable, Some(units(1000)));
    assert!(node.use_up_to(&bursts, 1000));
    node.sample();
    assert_eq!(node.ledger.free(CARD), Bytes::ZERO);
    assert!(node.arrive(101, 101).is_none());

    node.is_called(&idle);
    node.act().unwrap();
    assert!(!node.is_awake(&bursts), "it goes to sleep for the call");
    node.act().unwrap();
    assert!(node.is_awake(&idle));
    assert_eq!(node.on_card(), 800);
    node.becomes_idle(&idle);
    node.sample();
    node.act().unwrap();
    assert!(node.is_awake(&bursts), "it borrows again");
    assert_eq!(node.on_card(), 1000);
}

#[test]
fn what_is_lent_and_not_used_is_only_withdrawn() {
    let (mut node, idle, bursts) = idle_beside(LendingNode::new());
    assert!(node.use_up_to(&bursts, 900));
    assert!(node.use_up_to(&bursts, 150));
    node.is_called(&idle);
    node.act().unwrap();
    assert!(node.is_awake(&idle) && node.is_awake(&bursts));
    assert!(!node.use_up_to(&bursts, 201), "nothing is lent any more");
}

#[test]
fn a_pod_that_needs_only_its_guarantee_waits_for_no_other_call() {
    let mut node = LendingNode::new();
    let large = node.arrive(100, 1000).expect("there is room");
    assert!(node.use_up_to(&large, 700));
    let small = node.arrive(200, 200).expect("there is room");
    assert!(node.use_up_to(&small, 200));
    node.becomes_idle(&large);
    node.becomes_idle(&small);
    node.sample();
    node.arrive(600, 600).expect("the rest is free");
    node.is_called(&large);
    node.act().unwrap();
    assert!(!node.is_awake(&large), "others were promised what it used");
    node.is_called(&small);
    node.act().unwrap();
    assert!(node.is_awake(&small));
}

#[test]
fn an_idle_pod_does_not_wait_for_a_call_that_needs_its_end() {
    for mut node in [LendingNode::new(), LendingNode::refusing()] {
        let large = node.arrive(100, 900).expect("there is room");
        assert!(node.use_up_to(&large, 900));
        node.becomes_idle(&large);
        node.sample();
        let other = node.arrive(400, 900).expect("the rest is free");
        assert!(node.use_up_to(&other, 500));
        node.becomes_idle(&other);
        node.sample();
        node.is_called(&large);
        node.act().unwrap();
        node.is_called(&other);
        node.act().unwrap();
        assert!(!node.is_awake(&large), "what the other keeps is in the way");
        assert!(node.is_awake(&other));
        node.end(&other);
        node.act().unwrap();
        assert!(node.is_awake(&large));
    }
}

#[test]
fn who_sleeps_when_it_is_idle_borrows_nothing() {
    let mut node = LendingNode::new();
    let idle = node.arrive(800, 800).expect("there is room");
    let other = node.arrive(100, 1000).expect("there is room");
    assert!(node.use_up_to(&idle, 800));
    node.becomes_idle(&idle);
    node.sample();
    assert!(!node.use_up_to(&other, 201));
    assert!(node.use_up_to(&other, 200));
}

#[test]
fn a_sleeper_does_not_wait_for_a_call_that_waits_for_its_end() {
    let mut node = LendingNode::new();
    let idle = node.arrive(100, 1000).expect("there is room");
    assert!(node.use_up_to(&idle, 900));
    node.becomes_idle(&idle);
    node.sample();
    let bursts = node.arrive_wakeful(300, 1000).expect("there is room");
    assert!(node.use_up_to(&bursts, 900));
    node.falls_asleep(&bursts, LedgerEvent::CallIn { id: bursts.clone() });
    node.is_called(&idle);
    node.act().unwrap();
    assert!(!node.is_awake(&idle), "its 900 do not fit beside 300");
    node.act().unwrap();
    assert!(node.is_awake(&bursts));
    node.end(&bursts);
    node.act().unwrap();
    assert!(node.is_awake(&idle));
}

#[test]
fn nothing_is_lent_where_nobody_is_suspended_for_a_guarantee() {
    let (mut node, idle, bursts) = idle_beside(LendingNode::refusing());
    assert!(!node.use_up_to(&bursts, 201));
    assert!(node.use_up_to(&bursts, 200));
    node.is_called(&idle);
    node.act().unwrap();
    assert!(node.is_awake(&idle) && node.is_awake(&bursts));
}

#[test]
fn nothing_is_lent_before_a_sample_shows_that_it_is_free_nor_after_a_call() {
    let mut node = LendingNode::new();
    let idle = node.arrive(800, 800).expect("there is room");
    let bursts = node.arrive_wakeful(100, 1000).expect("there is room");
    assert!(node.use_up_to(&idle, 800));
    node.sample();
    node.becomes_idle(&idle);
    assert!(
        !node.use_up_to(&bursts, 201),
        "the driver may still have it"
    );
    node.sample();
    let found = node.ledger.allocation(&idle).expect("it is there");
    let call = GuaranteeCall {
        claimant: found.claimant(),
        name: found.name.clone(),
        asks: vec![request(0)],
    };
    node.apply(LedgerEvent::CallOpened(call));
    assert!(!node.use_up_to(&bursts, 201), "it is wanted back");
}
