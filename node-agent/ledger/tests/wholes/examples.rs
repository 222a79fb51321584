//! How shares and whole cards affect each other, one rule at a time.

use crate::*;

#[test]
fn a_shared_card_is_withdrawn_and_comes_back() {
    let mut node = WholeCardNode::new();
    let count = |node: &WholeCardNode| {
        let offers = node
            .wholes
            .offers(&node.ledger, &node.slots, &node.topology);
        offers.iter().filter(|offer| offer.is_offered).count()
    };
    assert_eq!(count(&node), 4);
    node.share(2, 10);
    assert_eq!(count(&node), 3);
    node.reserve_whole(3);
    assert_eq!(
        count(&node),
        3,
        "the pod that it is reserved for needs a device"
    );
    node.leave(0);
    assert_eq!(count(&node), 4);
}

#[test]
fn a_device_is_refused_with_who_has_the_cards() {
    let mut node = WholeCardNode::new();
    (0..4).for_each(|number| node.share(number, 10));
    let ids = [WholeCardId(1)];
    let refused = node
        .wholes
        .hand(node.now, &node.ledger, &node.slots, &node.topology, &ids);
    let said = refused.expect_err("no card is idle").to_string();
    assert_eq!(
        said,
        "asked for a whole GPU; 0 of 4 GPUs are idle; the others are held by share-1, share-2, share-3, share-4"
    );
    let ids = [WholeCardId(9)];
    let refused = node
        .wholes
        .hand(node.now, &node.ledger, &node.slots, &node.topology, &ids);
    assert!(
        refused
            .expect_err("there are four")
            .to_string()
            .contains("w-0009")
    );
}

#[test]
fn nothing_is_limited_on_a_whole_card_and_its_size_is_not_changed() {
    let mut node = WholeCardNode::new();
    node.admit(0, 1, false);
    node.look();
    let pod = node.held.values().next().expect("it was admitted").clone();
    let cards = node.give(&pod).expect("one is idle");
    let id = node
        .ledger
        .whole_with(&pod, cards[0])
        .expect("it has it")
        .clone();
    let process = apportion_ledger::ProcessId { pid: 7, start: 1 };
    let sample = apportion_ledger::NodeSample {
        generation: node.ledger.generation(),
        cards: vec![apportion_ledger::CardSample {
            card: cards[0],
            used: Bytes(ALL + 10),
            unlisted: Bytes::ZERO,
            leeway: Bytes::ZERO,
            processes: vec![apportion_ledger::ProcessSample {
                process,
                owner: Some(id.clone()),
                nvml: Some(Bytes(ALL + 10)),
                claimed: None,
                has_ended: false,
            }],
        }],
        accounts: vec![apportion_ledger::AccountSample {
            id: id.clone(),
            is_sound: false,
            claimed: Vec::new(),
        }],
    };
    let effects = node.ledger.apply(node.now, LedgerEvent::Sampled(sample));
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, LedgerEffect::Notice(_) | LedgerEffect::Kill(_))),
        "{effects:?}"
    );
    let grant = &node.ledger.allocation(&id).expect("it lives").grants[0];
    assert_eq!(grant.enforcement, LimitEnforcement::Whole);
    assert_eq!(grant.nvml, Bytes(ALL + 10));
    let ask = CardRequest {
        card: cards[0],
        bytes: Bytes(10),
    };
    let asks = vec![ask];
    let refused = node.apply(LedgerEvent::Resize {
        id: id.clone(),
        asks,
        ceilings: Vec::new(),
    });
    assert_eq!(refused, Err(AllocationRefusal::Whole(id)));
}

#[test]
fn a_card_that_another_plugin_gave_is_nobody_elses_and_no_device_of_ours() {
    let mut node = WholeCardNode::new();
    node.share(0, 100);
    let taken = |cards: &[usize]| LedgerEvent::TakenWhole {
        pod: "theirs".to_owned(),
        name: "team/theirs".to_owned(),
        cards: cards.iter().map(|number| card(*number)).collect(),
    };
    node.apply(taken(&[0]))
        .expect_err("somebody was there before");
    let id = node.apply(taken(&[0, 1])).expect("one is free");
    assert_eq!(node.apply(taken(&[1])), Ok(id.clone()), "nothing is new");
    assert_eq!(node.apply(taken(&[1, 2])), Ok(id.clone()));
    let allocation = node.ledger.allocation(&id).expect("it is there");
    let cards: Vec<_> = allocation.grants.iter().map(|grant| grant.card).collect();
    assert_eq!((cards, allocation.is_whole), (vec![card(1), card(2)], true));
    assert_eq!(node.ledger.free(card(1)), Bytes::ZERO);
    assert_eq!(node.reserve("late", &[card(2)], 1), None);
    let offers = node
        .wholes
        .offers(&node.ledger, &node.slots, &node.topology);
    let offered = offers.iter().filter(|offer| offer.is_offered);
    assert_eq!(offered.count(), 1, "only the last card is nobody's");
    assert!(node.ledger.cards_of("theirs").is_empty());
}
