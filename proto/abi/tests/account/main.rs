//! The account as its two sides use it: through files, by several processes.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may")]

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use apportion_abi::account::{
    ApiFamily, CardLimit, ChargeOutcome, LimitsMap, NewCard, ProcessRegistration, SlotOwner,
    UsageMap,
};
use apportion_abi::{Bytes, CardUuid};

mod damage;
mod files;
mod shared;

const CARD: CardUuid = CardUuid([3; 16]);
const LIMIT: Bytes = Bytes::from_mib(100);

struct TestAccount {
    dir: PathBuf,
    limits: LimitsMap,
    usage: UsageMap,
}

impl Drop for TestAccount {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

fn account(cards: usize) -> TestAccount {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!(
        "apportion-abi-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let new = NewCard {
        uuid: CARD,
        total: Bytes(Bytes::GIB),
        limit: LIMIT,
        context_reserve: Bytes::from_mib(7),
    };
    let limits = LimitsMap::create(&c_path(&dir.join("limits")), &vec![new; cards]).unwrap();
    let usage = UsageMap::create(&c_path(&dir.join("usage")), cards).unwrap();
    TestAccount { dir, limits, usage }
}

impl TestAccount {
    fn card(&self) -> &CardLimit {
        &self.limits.cards()[0]
    }

    fn enter(&self, pid: u32) -> SlotOwner {
        let who = ProcessRegistration {
            pid,
            start_time: u64::from(pid) * 10,
            pid_namespace: 1,
        };
        self.usage.usage().register(who).unwrap()
    }

    fn charge(&self, owner: SlotOwner, mib: u64) -> ChargeOutcome {
        self.usage
            .usage()
            .charge(owner, 0, Bytes::from_mib(mib), self.card())
    }

    fn claimed(&self) -> u64 {
        self.usage.usage().claimed(0).as_mib()
    }
}

#[test]
fn what_the_agent_writes_is_what_the_program_reads() {
    let agent = account(2);
    let program = LimitsMap::open(&c_path(&agent.dir.join("limits"))).unwrap();
    let seen = program.cards()[1].limits();
    assert_eq!(
        (seen.limit, seen.overhead, seen.context_reserve),
        (LIMIT, Bytes::ZERO, Bytes::from_mib(7))
    );
    assert_eq!(program.cards()[0].card(), CARD);
    let generation = program.cards()[0].generation();
    agent.card().set_limit(Bytes::from_mib(50));
    assert_eq!(program.cards()[0].limits().limit, Bytes::from_mib(50));
    assert!(program.cards()[0].generation() > generation);
}

#[test]
fn a_further_context_costs_as_much_as_the_first_until_somebody_knows_better() {
    let agent = account(1);
    let seen = || agent.card().limits().further_reserve;
    assert_eq!(seen(), Bytes::from_mib(7));
    agent.card().set_further_reserve(Some(Bytes::from_mib(2)));
    assert_eq!(seen(), Bytes::from_mib(2));
    agent.card().set_further_reserve(None);
    assert_eq!(seen(), Bytes::from_mib(7));
}

#[test]
fn grants_the_last_byte_and_refuses_the_next() {
    let account = account(1);
    let owner = account.enter(11);
    let usage = account.usage.usage();
    assert_eq!(account.charge(owner, 100), ChargeOutcome::Granted);
    assert_eq!(
        usage.charge(owner, 0, Bytes(1), account.card()),
        ChargeOutcome::Refused
    );
    usage.uncharge(owner, 0, Bytes(1));
    assert_eq!(
        usage.charge(owner, 0, Bytes(1), account.card()),
        ChargeOutcome::Granted
    );
    assert_eq!(usage.used(0).peak, LIMIT);
}

#[test]
fn counts_all_processes_and_the_overhead_together() {
    let account = account(1);
    let (one, two) = (account.enter(11), account.enter(12));
    account.card().set_overhead(Bytes::from_mib(30));
    assert_eq!(account.charge(one, 40), ChargeOutcome::Granted);
    assert_eq!(account.charge(two, 31), ChargeOutcome::Refused);
    assert_eq!(account.charge(two, 30), ChargeOutcome::Granted);
    assert_eq!(account.claimed(), 70);
}

#[test]
fn a_limit_below_use_refuses_and_keeps_what_is_held() {
    let account = account(1);
    let owner = account.enter(11);
    assert_eq!(account.charge(owner, 80), ChargeOutcome::Granted);
    account.card().set_limit(Bytes::from_mib(10));
    assert_eq!(account.charge(owner, 1), ChargeOutcome::Refused);
    assert_eq!(account.claimed(), 80);
    account.card().set_limit(Bytes::from_mib(82));
    assert_eq!(account.charge(owner, 1), ChargeOutcome::Granted);
}

/// Agents of earlier releases wrote such limits for a fraction.
#[test]
fn a_limit_that_is_no_whole_number_of_units_holds_as_one() {
    let account = account(1);
    let owner = account.enter(11);
    account.card().set_limit(Bytes(51 * Bytes::MIB + 409));
    assert_eq!(account.card().limits().limit, Bytes::from_mib(50));
    assert_eq!(account.charge(owner, 50), ChargeOutcome::Granted);
    let one = account
        .usage
        .usage()
        .charge(owner, 0, Bytes(1), account.card());
    assert_eq!(one, ChargeOutcome::Refused);
}

#[test]
fn the_dead_are_taken_out_once_and_their_slot_is_used_again() {
    let account = account(2);
    let usage = account.usage.usage();
    let dead = account.enter(11);
    assert_eq!(account.charge(dead, 60), ChargeOutcome::Granted);
    let processes: Vec<_> = usage.processes().collect();
    assert_eq!(processes.len(), 1);
    assert_eq!(
        (
            processes[0].registration.pid,
            processes[0].registration.start_time
        ),
        (11, 110)
    );
    assert_eq!(usage.retire(processes[0].owner), Bytes::from_mib(60));
    assert_eq!(usage.retire(processes[0].owner), Bytes::ZERO);
    assert!(!usage.holds(dead));
    assert_eq!(
        account.charge(dead, 5),
        ChargeOutcome::Lost,
        "a retired owner holds nothing"
    );
    let next = account.enter(12);
    assert_eq!(next.slot(), dead.slot());
    assert_eq!(account.charge(next, 5), ChargeOutcome::Granted);
    assert_eq!(
        account.charge(dead, 5),
        ChargeOutcome::Lost,
        "a retired owner must enter again"
    );
    usage.uncharge(dead, 0, Bytes::from_mib(5));
    assert_eq!(
        account.claimed(),
        5,
        "a retired owner takes nothing from its successor"
    );
}

#[test]
fn what_the_dead_had_reserved_is_taken_out_with_the_rest() {
    let account = account(1);
    let owner = account.enter(7);
    assert_eq!(account.charge(owner, 20), ChargeOutcome::Granted);
    let usage = account.usage.usage();
    usage.set_reserve(owner, 0, Bytes::from_mib(15));
    assert_eq!(usage.used(0).reserve, Bytes::from_mib(15));
    usage.retire(owner);
    assert_eq!(usage.used(0).reserve, Bytes::ZERO);
}

#[test]
fn the_high_mark_is_of_the_period_since_the_last_look() {
    let account = account(1);
    let usage = account.usage.usage();
    let owner = account.enter(11);
    assert_eq!(account.charge(owner, 60), ChargeOutcome::Granted);
    usage.uncharge(owner, 0, Bytes::from_mib(50));
    assert_eq!(usage.take_high(owner, 0), Bytes::from_mib(60));
    assert_eq!(usage.take_high(owner, 0), Bytes::from_mib(10));
}

#[test]
fn takes_as_many_processes_as_there_are_slots_and_no_more() {
    let account = account(1);
    for pid in 1..=1024 {
        account.enter(pid);
    }
    let who = ProcessRegistration {
        pid: 2000,
        start_time: 1,
        pid_namespace: 1,
    };
    assert_eq!(account.usage.usage().register(who), None);
}

/// Threads charge and free at random, and stay within the limit by their own count.
#[test]
fn many_chargers_never_hold_more_than_the_limit() {
    let account = account(1);
    let held = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for pid in 1..=8_u32 {
            let (account, held) = (&account, &held);
            scope.spawn(move || {
                let owner = account.enter(pid);
                let mut seed = u64::from(pid);
                let mut mine = Vec::new();
                for _ in 0..20_000 {
                    seed = seed
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    let mib = (seed >> 33) % 40 + 1;
                    if seed >> 63 == 0 && account.charge(owner, mib) == ChargeOutcome::Granted {
                        assert!(held.fetch_add(mib, Ordering::SeqCst) + mib <= 100);
                        mine.push(mib);
                    } else if let Some(mib) = mine.pop() {
                        held.fetch_sub(mib, Ordering::SeqCst);
                        account
                            .usage
                            .usage()
                            .uncharge(owner, 0, Bytes::from_mib(mib));
                    }
                }
                for mib in mine {
                    held.fetch_sub(mib, Ordering::SeqCst);
                    account
                        .usage
                        .usage()
                        .uncharge(owner, 0, Bytes::from_mib(mib));
                }
            });
        }
    });
    assert_eq!(account.claimed(), 0);
}

#[test]
fn a_refusal_is_counted_for_its_family_and_others_are_what_is_left() {
    let account = account(1);
    let usage = account.usage.usage();
    for (times, api) in (1..).zip(ApiFamily::ALL) {
        (0..times).for_each(|_| usage.deny(0, api, Bytes(1)));
    }
    let used = usage.used(0);
    assert_eq!(used.denied_by, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(used.denied, 28);
}

#[test]
fn the_next_process_in_a_slot_has_no_code_of_the_one_before() {
    let account = account(1);
    let usage = account.usage.usage();
    let one = account.enter(1);
    assert!(usage.claim_anyway(one, 0, Bytes(50)));
    usage.set_modules(one, 0, Bytes(20));
    assert_eq!(usage.used(0).modules, Bytes(20));
    let _ = usage.retire(one);
    assert_eq!(usage.used(0).modules, Bytes::ZERO);
    let next = account.enter(2);
    assert_eq!(next.slot(), one.slot());
    assert!(usage.claim_anyway(next, 0, Bytes(50)));
    assert_eq!(usage.used(0).modules, Bytes::ZERO);
}
