//! The cost of a charge alone: the account's pages, without a driver and without a hook.
//!
//! A charge adds up the claims of all processes that ever shared the account, so their number is the parameter. The
//! others are idle here. `apportion-bench contention` measures them while they contend.

use std::ffi::CString;
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use apportion_abi::account::{ChargeOutcome, LimitsMap, NewCard, ProcessRegistration, UsageMap};
use apportion_abi::{Bytes, CardUuid};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

const ASK: Bytes = Bytes(2 << 20);

fn path(folder: &Path, name: &str) -> CString {
    CString::new(folder.join(name).as_os_str().as_bytes()).expect("paths have no NUL")
}

fn account(folder: &Path) -> (LimitsMap, UsageMap) {
    let card = NewCard {
        uuid: CardUuid([7; 16]),
        total: Bytes(1 << 40),
        limit: Bytes(1 << 39),
        context_reserve: Bytes(0),
    };
    let limits = LimitsMap::create(&path(folder, "limits"), &[card]);
    let usage = UsageMap::create(&path(folder, "usage"), 1);
    (
        limits.expect("the folder is new and writable"),
        usage.expect("the folder is new and writable"),
    )
}

fn charge(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("charge+uncharge");
    for processes in [1, 8, 64, 512] {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let (limits, usage) = account(folder.path());
        let (usage, card) = (usage.usage(), &limits.cards()[0]);
        let owners: Vec<_> = (1..=processes)
            .filter_map(|pid| {
                usage.register(ProcessRegistration {
                    pid,
                    start_time: 0,
                    pid_namespace: 0,
                })
            })
            .collect();
        let last = owners[owners.len() - 1];
        group.bench_function(BenchmarkId::from_parameter(processes), |bencher| {
            bencher.iter(|| {
                let answer = usage.charge(last, 0, black_box(ASK), card);
                assert_eq!(answer, ChargeOutcome::Granted);
                usage.uncharge(last, 0, black_box(ASK));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, charge);
criterion_main!(benches);
