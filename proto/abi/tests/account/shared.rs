//! Memory that several processes hold counts once, for as long as one of them holds it.

use apportion_abi::Bytes;
use apportion_abi::account::{ChargeOutcome, JoinOutcome, SlotOwner};

use crate::{TestAccount, account};

fn join(account: &TestAccount, owner: SlotOwner, key: u64) -> JoinOutcome {
    let usage = account.usage.usage();
    usage.join(owner, key, |place| account.limits.cards().get(place))
}

#[test]
fn memory_that_two_processes_hold_counts_once() {
    let account = account(1);
    let usage = account.usage.usage();
    let (maker, taker) = (account.enter(11), account.enter(12));
    assert_eq!(account.charge(maker, 60), ChargeOutcome::Granted);
    assert_eq!(join(&account, taker, 5), JoinOutcome::Unknown);
    let offered = usage.offer(maker, 0, 5, Bytes::from_mib(60)).unwrap();
    let JoinOutcome::Joined(held) = join(&account, taker, 5) else {
        unreachable!("it is offered and paid for");
    };
    assert_eq!(account.claimed(), 60);
    // The maker releases it and the other holds it, so it counts for the other.
    usage.leave(offered);
    usage.uncharge(maker, 0, Bytes::from_mib(60));
    assert_eq!(account.claimed(), 60);
    assert_eq!(usage.claimed_by(taker, 0).0, Bytes::from_mib(60));
    assert_eq!(account.charge(maker, 41), ChargeOutcome::Refused);
    usage.leave(held);
    assert_eq!(account.claimed(), 0);
    assert_eq!(account.charge(maker, 100), ChargeOutcome::Granted);
}

#[test]
fn what_the_dead_held_with_others_counts_until_all_are_gone() {
    let account = account(1);
    let usage = account.usage.usage();
    let [maker, one, two] = [11, 12, 13].map(|pid| account.enter(pid));
    assert_eq!(account.charge(maker, 60), ChargeOutcome::Granted);
    let _ = usage.offer(maker, 0, 5, Bytes::from_mib(60)).unwrap();
    for taker in [one, two] {
        assert!(matches!(join(&account, taker, 5), JoinOutcome::Joined(_)));
    }
    usage.retire(maker);
    assert_eq!(account.claimed(), 60, "once for both");
    usage.retire(one);
    assert_eq!(account.claimed(), 60);
    usage.retire(two);
    assert_eq!(account.claimed(), 0);
    // The places of dead holders are reused without limit.
    for _ in 0..3000 {
        let maker = account.enter(14);
        let _ = usage.offer(maker, 0, 6, Bytes::from_mib(60)).unwrap();
        usage.retire(maker);
    }
}

#[test]
fn who_joins_after_the_maker_left_needs_room() {
    let account = account(1);
    let usage = account.usage.usage();
    let [maker, one, two] = [11, 12, 13].map(|pid| account.enter(pid));
    assert_eq!(account.charge(maker, 60), ChargeOutcome::Granted);
    let offered = usage.offer(maker, 0, 5, Bytes::from_mib(60)).unwrap();
    assert!(matches!(join(&account, one, 5), JoinOutcome::Joined(_)));
    usage.leave(offered);
    usage.uncharge(maker, 0, Bytes::from_mib(60));
    assert!(
        matches!(join(&account, two, 5), JoinOutcome::Joined(_)),
        "it is counted already"
    );
    account.card().set_limit(Bytes::from_mib(50));
    assert_eq!(join(&account, maker, 5), JoinOutcome::Refused);
    assert_eq!(account.claimed(), 60);
}

#[test]
fn who_may_count_on_a_card_is_who_claims_there_or_anyone_while_memory_is_shared() {
    let account = account(2);
    let usage = account.usage.usage();
    let [one, two] = [11, 12].map(|pid| account.enter(pid));
    assert_eq!(account.charge(one, 1), ChargeOutcome::Granted);
    let counting = || [one, two].map(|owner| [0, 1].map(|card| usage.may_count(owner, card)));
    assert_eq!(counting(), [[true, false], [false, false]]);
    let _ = usage.offer(one, 0, 5, Bytes::from_mib(1)).unwrap();
    assert_eq!(counting(), [[true, false], [true, false]]);
    assert!(!usage.may_count(one, 2), "there is no such card");
}
