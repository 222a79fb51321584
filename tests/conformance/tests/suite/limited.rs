//! Under a limit, a program sees a smaller card and no other difference, so all documented facts still hold.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;

use apportion_abi::Bytes;
use apportion_abi::account::{LimitsMap, NewCard, UsageMap};

use crate::machine::{CARD, ConformanceMachine, end_of};

const LIMIT: Bytes = Bytes(4 << 30);

fn at(folder: &Path, name: &str) -> CString {
    CString::new(folder.join(name).as_os_str().as_bytes()).unwrap()
}

/// An account as the agent creates it.
fn account(machine: &ConformanceMachine) -> PathBuf {
    let folder = machine.folder().join("account");
    std::fs::create_dir(&folder).unwrap();
    let card = NewCard {
        uuid: CARD.parse().unwrap(),
        total: Bytes(16 << 30),
        limit: LIMIT,
        context_reserve: Bytes::from_mib(384),
    };
    LimitsMap::create(&at(&folder, "limits"), &[card]).unwrap();
    UsageMap::create(&at(&folder, "usage"), 1).unwrap();
    folder
}

/// What the agent does when a process has ended.
fn retire_the_dead(usage: &UsageMap) {
    let usage = usage.usage();
    for process in usage.processes() {
        let alive = Path::new("/proc").join(process.registration.pid.to_string());
        if !alive.exists() {
            let _ = usage.retire(process.owner);
        }
    }
}

#[test]
fn a_limit_changes_nothing_that_cuda_documents() {
    let machine = ConformanceMachine::start();
    let account = account(&machine);
    let mut program = machine.program(&[]);
    program
        .env("LD_PRELOAD", machine.library("libapportion_cuda.so"))
        .env("APPORTION_ACCOUNT", &account);
    let usage = UsageMap::open(&at(&account, "usage")).unwrap();
    let (held, out, err) = thread::scope(|scope| {
        let running = scope.spawn(|| end_of(&mut program));
        while !running.is_finished() {
            retire_the_dead(&usage);
            thread::yield_now();
        }
        running.join().unwrap()
    });
    assert!(held, "{err}");
    let total = format!("\"cuda_total\":{}", LIMIT.0);
    assert!(out.contains(&total), "the limit was not in force");

    let used = usage.usage().used(0);
    assert!(used.peak > Bytes::ZERO && used.peak <= LIMIT, "{used:?}");
    assert!(used.denied > 0, "{used:?}");
}
