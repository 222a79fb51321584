//! Who sleeps, who wakes and who cannot, one rule at a time.

use crate::*;

/// Two that burst: one uses 900 of 1000 units, the other its guarantee.
fn crowded() -> (CallingNode, AllocationId, AllocationId) {
    let mut node = CallingNode::new();
    let large = node.arrive(100, 900).expect("there is room");
    let small = node.arrive(100, 900).expect("there is room");
    assert!(node.use_up_to(&large, 700));
    assert!(node.use_up_to(&small, 300));
    node.sample();
    (node, large, small)
}

#[test]
fn the_one_that_bursts_most_sleeps_and_keeps_its_guarantee() {
    let (mut node, large, small) = crowded();
    assert!(node.arrive(300, 300).is_none());
    node.act().unwrap();
    assert_eq!(node.phase(&large), SuspensionPhase::Suspended);
    assert!(
        !node.use_up_to(&small, 601),
        "what the call waits for is not lent again"
    );
    node.act().unwrap();
    assert!(node.waiting.is_empty(), "it was served");
    assert!(node.is_awake(&small));
    let sleeper = node.ledger.allocation(&large).unwrap();
    assert_eq!(sleeper.suspension_cause, SuspensionCause::Guarantee);
    assert_eq!(sleeper.grants[0].held, units(100));
    assert_eq!(node.ledger.granted(CARD), units(500));
    assert_eq!(sleeper.lacks(), [(CARD, units(600))]);
    node.end(&small);
    node.act().unwrap();
    assert!(node.is_awake(&large), "1000 less 300 is what it used");
}

#[test]
fn sleepers_and_others_that_burst_take_turns() {
    let (mut node, large, small) = crowded();
    assert!(node.arrive(300, 300).is_none());
    node.act().unwrap();
    node.act().unwrap();
    let guests: Vec<_> = node.programs.keys().cloned().collect();
    node.end(guests.last().expect("three are there"));
    assert!(node.use_up_to(&small, 500), "meanwhile it bursts more");
    node.act().unwrap();
    assert!(!node.is_awake(&large), "it needs 700 of 1000");
    for _ in 0..3 {
        node.now = node.now.after(TURN);
        node.act().unwrap();
        node.act().unwrap();
        assert_eq!(
            (node.is_awake(&large), node.is_awake(&small)),
            (true, false)
        );
        node.act().unwrap();
        assert!(node.is_awake(&large), "its turn has just begun");
        node.now = node.now.after(TURN);
        node.act().unwrap();
        node.act().unwrap();
        assert_eq!(
            (node.is_awake(&large), node.is_awake(&small)),
            (false, true)
        );
    }
}

#[test]
fn nobody_sleeps_for_a_newcomer_that_cannot_be_served() {
    let (mut node, large, small) = crowded();
    node.programs.get_mut(&large).unwrap().is_stuck = true;
    assert!(node.arrive(300, 300).is_none());
    node.act().unwrap();
    assert!(node.is_awake(&large), "the driver cannot move it");
    node.act().unwrap();
    assert!(node.waiting.is_empty(), "it was refused");
    assert!(node.is_awake(&small), "its 200 are not enough");
}

#[test]
fn what_cannot_sleep_says_why() {
    let mut node = CallingNode::new();
    let proposal = node.proposal(100, 900);
    let id = node.answer(LedgerEvent::Allocate(proposal)).unwrap();
    let program = ModelProgram {
        pid: 999,
        used: 0,
        is_stuck: false,
    };
    node.programs.insert(id.clone(), program);
    assert!(node.use_up_to(&id, 800));
    node.sample();
    let obstacle = |node: &CallingNode| node.ledger.burst_holdings(CARD)[0].obstacle;
    assert_eq!(obstacle(&node), Some(CallObstacle::Uncommitted));
    let owner = AllocationOwner::Pod("uid".into());
    let committed = LedgerEvent::Commit {
        id: id.clone(),
        owner,
    };
    node.answer(committed).unwrap();
    assert_eq!(obstacle(&node), None, "a pod can sleep");
    let suspended = node.answer(LedgerEvent::Suspend { id: id.clone() });
    assert_eq!(suspended, Err(AllocationRefusal::OfPod(id.clone())));
    assert_eq!(
        node.answer(LedgerEvent::CallIn { id: id.clone() }),
        Ok(id.clone())
    );
    let suspended = node.answer(LedgerEvent::Suspend { id: id.clone() });
    assert_eq!(
        suspended,
        Err(AllocationRefusal::OfPod(id.clone())),
        "a client does not take it over"
    );
    node.apply(LedgerEvent::Resumed { id: id.clone() });
    node.apply(LedgerEvent::Release { id });
    assert_eq!(obstacle(&node), Some(CallObstacle::Draining));
}

#[test]
fn a_client_takes_a_sleeper_over() {
    let (mut node, large, _small) = crowded();
    assert!(node.arrive(300, 300).is_none());
    node.act().unwrap();
    node.act().unwrap();
    node.answer(LedgerEvent::Suspend { id: large.clone() })
        .expect("it sleeps already");
    node.sample();
    assert!(
        node.ledger.sleepers().is_empty(),
        "the agent wakes it no more"
    );
    let held = node.ledger.allocation(&large).unwrap().grants[0].held;
    assert_eq!(held, Bytes::ZERO, "its guarantee is free, too");
}

#[test]
fn a_sleeper_does_not_wait_for_an_idle_share_that_waits_for_its_end() {
    let mut node = CallingNode::new();
    let idle = node.arrive(900, 900).expect("there is room");
    assert!(node.use_up_to(&idle, 900));
    node.sample();
    node.answer(LedgerEvent::Idle { id: idle.clone() })
        .expect("it runs");
    node.apply(LedgerEvent::Suspended { id: idle.clone() });
    node.sample();
    let bursts = node
        .arrive(300, 1000)
        .expect("an idle share gives all back");
    assert!(node.use_up_to(&bursts, 900));
    node.sample();
    node.put_to_sleep(&bursts);
    node.sample();
    let found = node.ledger.allocation(&idle).expect("it is there");
    let called = GuaranteeCall {
        claimant: found.claimant(),
        name: found.name.clone(),
        asks: vec![request(900)],
    };
    node.apply(LedgerEvent::CallOpened(called.clone()));
    assert_ne!(node.step(&called.claimant, &called.asks), CallStep::Ready);
    node.act().unwrap();
    assert!(node.is_awake(&bursts), "900 never fit beside its 300");
    node.end(&bursts);
    assert_eq!(node.step(&called.claimant, &called.asks), CallStep::Ready);
}
