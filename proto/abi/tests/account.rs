//! The account as its two sides use it: through files, from several processes' points of view.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may")]

use std::ffi::CString;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use apportion_abi::account::{
    Api, CardLimit, Charge, Join, LimitsMap, NewCard, OpenError, Owner, Registration, UsageMap,
};
use apportion_abi::{Bytes, CardUuid};

const CARD: CardUuid = CardUuid([3; 16]);
const LIMIT: Bytes = Bytes::from_mib(100);

struct Account {
    dir: PathBuf,
    limits: LimitsMap,
    usage: UsageMap,
}

impl Drop for Account {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

fn account(cards: usize) -> Account {
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
    Account { dir, limits, usage }
}

impl Account {
    fn card(&self) -> &CardLimit {
        &self.limits.cards()[0]
    }

    fn enter(&self, pid: u32) -> Owner {
        let who = Registration {
            pid,
            start_time: u64::from(pid) * 10,
            pid_namespace: 1,
        };
        self.usage.usage().register(who).unwrap()
    }

    fn charge(&self, owner: Owner, mib: u64) -> Charge {
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
    assert_eq!(account.charge(owner, 100), Charge::Granted);
    assert_eq!(
        usage.charge(owner, 0, Bytes(1), account.card()),
        Charge::Refused
    );
    usage.uncharge(owner, 0, Bytes(1));
    assert_eq!(
        usage.charge(owner, 0, Bytes(1), account.card()),
        Charge::Granted
    );
    assert_eq!(usage.used(0).peak, LIMIT);
}

#[test]
fn counts_all_processes_and_the_overhead_together() {
    let account = account(1);
    let (one, two) = (account.enter(11), account.enter(12));
    account.card().set_overhead(Bytes::from_mib(30));
    assert_eq!(account.charge(one, 40), Charge::Granted);
    assert_eq!(account.charge(two, 31), Charge::Refused);
    assert_eq!(account.charge(two, 30), Charge::Granted);
    assert_eq!(account.claimed(), 70);
}

#[test]
fn a_limit_below_use_refuses_and_keeps_what_is_held() {
    let account = account(1);
    let owner = account.enter(11);
    assert_eq!(account.charge(owner, 80), Charge::Granted);
    account.card().set_limit(Bytes::from_mib(10));
    assert_eq!(account.charge(owner, 1), Charge::Refused);
    assert_eq!(account.claimed(), 80);
    account.card().set_limit(Bytes::from_mib(81));
    assert_eq!(account.charge(owner, 1), Charge::Granted);
}

#[test]
fn the_dead_are_taken_out_once_and_their_slot_is_used_again() {
    let account = account(2);
    let usage = account.usage.usage();
    let dead = account.enter(11);
    assert_eq!(account.charge(dead, 60), Charge::Granted);
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
        Charge::Lost,
        "a retired owner holds nothing"
    );
    let next = account.enter(12);
    assert_eq!(next.slot(), dead.slot());
    assert_eq!(account.charge(next, 5), Charge::Granted);
    assert_eq!(
        account.charge(dead, 5),
        Charge::Lost,
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
    assert_eq!(account.charge(owner, 20), Charge::Granted);
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
    assert_eq!(account.charge(owner, 60), Charge::Granted);
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
    let who = Registration {
        pid: 2000,
        start_time: 1,
        pid_namespace: 1,
    };
    assert_eq!(account.usage.usage().register(who), None);
}

#[test]
fn refuses_files_that_are_not_whole_accounts() {
    let account = account(1);
    let limits = account.dir.join("limits");
    let usage = account.dir.join("usage");
    assert!(matches!(
        UsageMap::open(&c_path(&limits)),
        Err(OpenError::NotAnAccount)
    ));
    assert!(matches!(
        LimitsMap::open(&c_path(&usage)),
        Err(OpenError::NotAnAccount)
    ));
    assert!(matches!(
        UsageMap::create(&c_path(&usage), 1),
        Err(OpenError::System("open", libc::EEXIST))
    ));
    let absent = account.dir.join("absent");
    assert!(matches!(
        LimitsMap::open(&c_path(&absent)),
        Err(OpenError::System("open", libc::ENOENT))
    ));
    let whole = std::fs::read(&limits).unwrap();
    for (name, bytes) in [
        ("short", whole[..whole.len() - 1].to_vec()),
        ("empty", Vec::new()),
        ("many cards", [&whole[..12], &[200], &whole[13..]].concat()),
    ] {
        std::fs::write(account.dir.join(name), bytes).unwrap();
        let opened = LimitsMap::open(&c_path(&account.dir.join(name)));
        assert!(matches!(opened, Err(OpenError::NotAnAccount)), "{name}");
    }
    std::fs::write(
        account.dir.join("newer"),
        [&whole[..8], &[9], &whole[9..]].concat(),
    )
    .unwrap();
    let newer = LimitsMap::open(&c_path(&account.dir.join("newer")));
    assert!(matches!(newer, Err(OpenError::Version(9))));
}

/// Threads that charge and free at random, never above the limit as seen by a ledger of their own.
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
                    if seed >> 63 == 0 && account.charge(owner, mib) == Charge::Granted {
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

/// What was read is zero, and the account that was cut is the only one that is damaged.
#[test]
fn a_file_that_is_cut_under_a_guarded_mapping_reads_as_zero() {
    let (cut, whole) = (account(1), account(1));
    let owner = whole.enter(7);
    assert_eq!(whole.charge(owner, 3), Charge::Granted);
    let held = UsageMap::adopt(&c_path(&cut.dir.join("usage"))).unwrap();
    assert_eq!(cut.charge(cut.enter(7), 5), Charge::Granted);
    assert_eq!(held.usage().claimed(0), Bytes::from_mib(5));
    let file = File::options().write(true).open(cut.dir.join("usage"));
    file.unwrap().set_len(0).unwrap();
    assert!(!held.is_damaged());
    assert_eq!(held.usage().claimed(0), Bytes::ZERO);
    assert_eq!(held.usage().processes().count(), 0);
    assert!(held.is_damaged());
    assert!(!whole.usage.is_damaged());
    assert_eq!(whole.claimed(), 3);
}

#[test]
fn a_bus_error_elsewhere_is_what_it_was() {
    const INSIDE: &str = "APPORTION_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        let guarded = account(1);
        let other = UsageMap::open(&c_path(&guarded.dir.join("usage"))).unwrap();
        let file = File::options().write(true).open(guarded.dir.join("usage"));
        file.unwrap().set_len(0).unwrap();
        let _ = other.usage().claimed(0);
        unreachable!("an unguarded mapping of nothing was read");
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["a_bus_error_elsewhere_is_what_it_was", "--exact"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}

/// Writes the account that is recorded in `tests/files`.
fn recorded(dir: &Path) {
    let text = include_str!("files/account-v1.txt");
    let mut file: Option<(PathBuf, Vec<u8>)> = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let first = words.next().unwrap();
        let Ok(offset) = first.parse::<usize>() else {
            let size: usize = words.next().unwrap().parse().unwrap();
            let next = (dir.join(first), vec![0; size]);
            if let Some((path, bytes)) = file.replace(next) {
                std::fs::write(path, bytes).unwrap();
            }
            continue;
        };
        let (_, bytes) = file.as_mut().unwrap();
        for (place, word) in words.enumerate() {
            let word = u64::from_str_radix(word, 16).unwrap();
            let at = offset + place * 8;
            bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        }
    }
    let (path, bytes) = file.unwrap();
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn an_account_of_version_1_is_read_for_ever() {
    // For its folder alone.
    let other = account(1);
    recorded(&other.dir);
    let limits = LimitsMap::adopt(&c_path(&other.dir.join("limits"))).unwrap();
    let usage = UsageMap::adopt(&c_path(&other.dir.join("usage"))).unwrap();
    let card = &limits.cards()[0];
    let uuid = "GPU-ad70fc77-0089-d4ce-6b3c-b55fc859e4b5";
    assert_eq!(card.card(), uuid.parse().unwrap());
    let words = card.limits();
    assert_eq!(words.limit, Bytes::from_mib(2000));
    assert_eq!(words.total, Bytes::from_mib(16384));
    assert_eq!(words.context_reserve, Bytes::from_mib(384));
    assert_eq!(words.further_reserve, Bytes::from_mib(128));
    let used = usage.usage().used(0);
    assert_eq!(used.claimed, Bytes::from_mib(1384));
    assert_eq!(used.reserve, Bytes::from_mib(384));
    assert_eq!((used.peak, used.denied), (Bytes::from_mib(1384), 1));
    assert_eq!(used.denied_bytes, Bytes::from_mib(3000));
    let processes: Vec<_> = usage.usage().processes().collect();
    assert_eq!(processes.len(), 1);
    let owner = processes[0].owner;
    assert_eq!(owner.pid(), 18359);
    // And it goes on from there.
    let charged = usage.usage().charge(owner, 0, Bytes::from_mib(616), card);
    assert!(matches!(charged, Charge::Granted), "{charged:?}");
    let beyond = usage.usage().charge(owner, 0, Bytes(1), card);
    assert!(matches!(beyond, Charge::Refused), "{beyond:?}");
    assert_eq!(usage.usage().retire(owner), Bytes::from_mib(2000));
}

#[test]
fn nothing_of_who_made_an_account_is_in_it() {
    let account = account(1);
    for name in ["limits", "usage"] {
        let bytes = std::fs::read(account.dir.join(name)).unwrap();
        assert_eq!(bytes[24..64], [0; 40], "{name}");
    }
}

fn join(account: &Account, owner: Owner, key: u64) -> Join {
    let usage = account.usage.usage();
    usage.join(owner, key, |place| account.limits.cards().get(place))
}

#[test]
fn memory_that_two_processes_hold_counts_once() {
    let account = account(1);
    let usage = account.usage.usage();
    let (maker, taker) = (account.enter(11), account.enter(12));
    assert_eq!(account.charge(maker, 60), Charge::Granted);
    assert_eq!(join(&account, taker, 5), Join::Unknown);
    let offered = usage.offer(maker, 0, 5, Bytes::from_mib(60)).unwrap();
    let Join::Joined(held) = join(&account, taker, 5) else {
        unreachable!("it is offered and paid for");
    };
    assert_eq!(account.claimed(), 60);
    // The maker gives it up, the other holds it: it counts, for the other.
    usage.leave(offered);
    usage.uncharge(maker, 0, Bytes::from_mib(60));
    assert_eq!(account.claimed(), 60);
    assert_eq!(usage.claimed_by(taker, 0).0, Bytes::from_mib(60));
    assert_eq!(account.charge(maker, 41), Charge::Refused);
    usage.leave(held);
    assert_eq!(account.claimed(), 0);
    assert_eq!(account.charge(maker, 100), Charge::Granted);
}

#[test]
fn what_the_dead_held_with_others_counts_until_all_are_gone() {
    let account = account(1);
    let usage = account.usage.usage();
    let [maker, one, two] = [11, 12, 13].map(|pid| account.enter(pid));
    assert_eq!(account.charge(maker, 60), Charge::Granted);
    let _ = usage.offer(maker, 0, 5, Bytes::from_mib(60)).unwrap();
    for taker in [one, two] {
        assert!(matches!(join(&account, taker, 5), Join::Joined(_)));
    }
    usage.retire(maker);
    assert_eq!(account.claimed(), 60, "once for both");
    usage.retire(one);
    assert_eq!(account.claimed(), 60);
    usage.retire(two);
    assert_eq!(account.claimed(), 0);
    // The places of the dead are taken again, as often as one likes.
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
    assert_eq!(account.charge(maker, 60), Charge::Granted);
    let offered = usage.offer(maker, 0, 5, Bytes::from_mib(60)).unwrap();
    assert!(matches!(join(&account, one, 5), Join::Joined(_)));
    usage.leave(offered);
    usage.uncharge(maker, 0, Bytes::from_mib(60));
    assert!(
        matches!(join(&account, two, 5), Join::Joined(_)),
        "it is counted already"
    );
    account.card().set_limit(Bytes::from_mib(50));
    assert_eq!(join(&account, maker, 5), Join::Refused);
    assert_eq!(account.claimed(), 60);
}

#[test]
fn a_refusal_is_counted_for_its_family_and_others_are_what_is_left() {
    let account = account(1);
    let usage = account.usage.usage();
    for (times, api) in (1..).zip(Api::ALL) {
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
