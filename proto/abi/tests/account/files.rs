//! The account's files: what is not an account, what is truncated under its readers, and what an earlier version
//! wrote.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use apportion_abi::Bytes;
use apportion_abi::account::{AccountOpenError, ChargeOutcome, LimitsMap, UsageMap};

use crate::{account, c_path};

#[test]
fn refuses_files_that_are_not_whole_accounts() {
    let account = account(1);
    let limits = account.dir.join("limits");
    let usage = account.dir.join("usage");
    assert!(matches!(
        UsageMap::open(&c_path(&limits)),
        Err(AccountOpenError::NotAnAccount)
    ));
    assert!(matches!(
        LimitsMap::open(&c_path(&usage)),
        Err(AccountOpenError::NotAnAccount)
    ));
    assert!(matches!(
        UsageMap::create(&c_path(&usage), 1),
        Err(AccountOpenError::System("open", libc::EEXIST))
    ));
    let absent = account.dir.join("absent");
    assert!(matches!(
        LimitsMap::open(&c_path(&absent)),
        Err(AccountOpenError::System("open", libc::ENOENT))
    ));
    let whole = std::fs::read(&limits).unwrap();
    for (name, bytes) in [
        ("short", whole[..whole.len() - 1].to_vec()),
        ("empty", Vec::new()),
        ("many cards", [&whole[..12], &[200], &whole[13..]].concat()),
    ] {
        std::fs::write(account.dir.join(name), bytes).unwrap();
        let opened = LimitsMap::open(&c_path(&account.dir.join(name)));
        assert!(
            matches!(opened, Err(AccountOpenError::NotAnAccount)),
            "{name}"
        );
    }
    std::fs::write(
        account.dir.join("newer"),
        [&whole[..8], &[9], &whole[9..]].concat(),
    )
    .unwrap();
    let newer = LimitsMap::open(&c_path(&account.dir.join("newer")));
    assert!(matches!(newer, Err(AccountOpenError::Version(9))));
}

/// The truncated account reads as zero, and only that one is damaged.
#[test]
fn a_file_that_is_cut_under_a_guarded_mapping_reads_as_zero() {
    let (cut, whole) = (account(1), account(1));
    let owner = whole.enter(7);
    assert_eq!(whole.charge(owner, 3), ChargeOutcome::Granted);
    let held = UsageMap::adopt(&c_path(&cut.dir.join("usage"))).unwrap();
    assert_eq!(cut.charge(cut.enter(7), 5), ChargeOutcome::Granted);
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
        .args(["files::a_bus_error_elsewhere_is_what_it_was", "--exact"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}

/// Writes the account that is recorded in `tests/files`.
fn recorded(dir: &Path) {
    let text = include_str!("../files/account-v1.txt");
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
    // Only for its folder.
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
    // Charges continue from there.
    let charged = usage.usage().charge(owner, 0, Bytes::from_mib(616), card);
    assert!(matches!(charged, ChargeOutcome::Granted), "{charged:?}");
    let beyond = usage.usage().charge(owner, 0, Bytes(1), card);
    assert!(matches!(beyond, ChargeOutcome::Refused), "{beyond:?}");
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
