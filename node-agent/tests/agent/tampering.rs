//! Account files that somebody corrupts while the agent reads them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use apportion_proto::AgentClient;
use apportion_proto::v1::{EnforcementState, EventKind, WatchRequest, watch_reply};

use crate::host::{Host, KillOnDrop, MIB, allocate, commit, eventually, find, list};
use crate::reconcile::{claim, context_cost};

/// How long the files are corrupted.
const LONG: Duration = Duration::from_secs(3);

/// A pseudo-random sequence that is the same in every run.
struct TamperRandom(u64);

impl TamperRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 27)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

/// Corrupts a file until told to stop: random bytes and small numbers anywhere behind its header, truncations, and
/// replacement files.
fn ruin(path: PathBuf, stop: Arc<AtomicBool>) -> thread::JoinHandle<u64> {
    thread::spawn(move || {
        let (mut random, mut rounds) = (TamperRandom(7), 0);
        let whole = fs::read(&path).expect("the agent made it");
        let size = whole.len() as u64;
        let open = || File::options().write(true).open(&path).expect("it is ours");
        let mut file = open();
        while !stop.load(Ordering::Relaxed) {
            rounds += 1;
            match random.below(12) {
                0 => drop(file.set_len(0)),
                1 => drop(file.set_len(random.below(2 * size))),
                2..=4 => {
                    let _ = file.set_len(size);
                    let _ = file.write_at(&whole, 0);
                }
                5 if rounds % 64 == 0 => {
                    let other = path.with_extension("other");
                    let bytes: Vec<u8> = (0..size / 8)
                        .flat_map(|_| random.next().to_ne_bytes())
                        .collect();
                    fs::write(&other, bytes).expect("the folder is ours");
                    fs::rename(&other, &path).expect("the folder is ours");
                    file = open();
                }
                _ => {
                    let shift = random.below(64);
                    let word = (random.next() >> shift).to_ne_bytes();
                    let at = 64 + random.below(size - 64) / 8 * 8;
                    let _ = file.write_at(&word, at);
                }
            }
        }
        rounds
    })
}

/// The CPU time that a process has used.
fn processor_time(process: &KillOnDrop) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).expect("it runs");
    let fields = stat.rsplit_once(')').expect("a name in parentheses").1;
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

async fn state(client: &mut AgentClient, id: &str) -> Option<EnforcementState> {
    find(client, id).await.map(|found| found.enforcement())
}

#[tokio::test]
async fn an_account_that_is_ruined_costs_nobody_else_anything() {
    let host = Host::new(1);
    let (agent, mut client) = host.agent(&[]).await;
    let honest = allocate(&mut client, "honest", 4000).await.unwrap();
    let cost = context_cost(&mut client).await;
    let program = host.context(Some(Path::new(&honest.account_dir)), "0");
    let (_usage, _slot) = claim(&honest.account_dir, &program, cost + 7 * MIB);
    commit(&mut client, &honest.id, program.pid()).await;
    let hostile = allocate(&mut client, "hostile", 4000).await.unwrap();
    let other = host.context(Some(Path::new(&hostile.account_dir)), "0");
    commit(&mut client, &hostile.id, other.pid()).await;

    eventually("both are seen", async || {
        let seen = state(&mut client, &honest.id).await == Some(EnforcementState::Attached);
        seen.then_some(())
    })
    .await;

    let stop = Arc::new(AtomicBool::new(false));
    let ruiner = ruin(Path::new(&hostile.account_dir).join("usage"), stop.clone());
    let (begun, before) = (Instant::now(), processor_time(&agent));
    while begun.elapsed() < LONG {
        let held = find(&mut client, &honest.id).await.expect("it stands");
        assert_eq!(held.grants[0].claimed_bytes, cost + 7 * MIB);
        assert_eq!(held.enforcement(), EnforcementState::Attached);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (took, used) = (begun.elapsed(), processor_time(&agent) - before);
    stop.store(true, Ordering::Relaxed);
    assert!(ruiner.join().expect("it only writes") > 100);
    // This is a debug build with five times the usual tick rate.
    assert!(used < took / 2, "{used:?} of {took:?}");
    let found = find(&mut client, &hostile.id).await.unwrap();
    assert_eq!(found.grants[0].nvml_bytes, cost, "the driver tells");
    assert_eq!(list(&mut client).await.allocations.len(), 2);
}

#[tokio::test]
async fn who_cuts_an_account_is_told_of_and_held_to_what_nvml_shows() {
    let host = Host::new(1);
    let (mut agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "cutter", 100).await.unwrap();
    let mut watched = client.watch(WatchRequest {}).await.unwrap().into_inner();
    let program = host.context(Some(Path::new(&allocation.account_dir)), "0");
    commit(&mut client, &allocation.id, program.pid()).await;
    let usage = Path::new(&allocation.account_dir).join("usage");
    let file = File::options().write(true).open(&usage).unwrap();
    let size = file.metadata().unwrap().len();
    file.set_len(0).unwrap();
    let mut missing = vec![
        EventKind::Damaged,
        EventKind::Overlimit,
        EventKind::Bypassed,
    ];
    while !missing.is_empty() {
        let item = watched.message().await.unwrap().unwrap().item;
        if let Some(watch_reply::Item::Event(event)) = item {
            assert_eq!(event.name, "cutter");
            missing.retain(|kind| *kind != event.kind());
        }
    }
    eventually("it is missing", async || {
        let state = state(&mut client, &allocation.id).await;
        (state == Some(EnforcementState::Missing)).then_some(())
    })
    .await;
    assert_eq!(host.log().matches("Account missing or damaged").count(), 1);
    // Restoring the size does not help: the content is lost.
    file.set_len(size).unwrap();
    let cost = context_cost(&mut client).await;
    let found = find(&mut client, &allocation.id).await.unwrap();
    assert_eq!(found.grants[0].nvml_bytes, cost);
    agent.kill();
    let (_agent, mut client) = host.agent(&[]).await;
    assert!(
        find(&mut client, &allocation.id).await.is_some(),
        "it is known to the next agent"
    );
}

#[tokio::test]
async fn who_grows_an_account_is_told_of_and_the_host_gets_its_memory_back() {
    let host = Host::new(1);
    let (_agent, mut client) = host.agent(&[]).await;
    let allocation = allocate(&mut client, "grower", 4000).await.unwrap();
    let mut watched = client.watch(WatchRequest {}).await.unwrap().into_inner();
    let cost = context_cost(&mut client).await;
    let program = host.context(Some(Path::new(&allocation.account_dir)), "0");
    let (_usage, _slot) = claim(&allocation.account_dir, &program, cost);
    commit(&mut client, &allocation.id, program.pid()).await;
    let usage = Path::new(&allocation.account_dir).join("usage");
    let file = File::options().write(true).open(&usage).unwrap();
    let size = file.metadata().unwrap().len();
    file.write_all_at(&[1; 1 << 16], size + MIB).unwrap();
    loop {
        let item = watched.message().await.unwrap().unwrap().item;
        match item {
            Some(watch_reply::Item::Event(event)) if event.kind() == EventKind::Damaged => break,
            _ => {}
        }
    }
    eventually("it is cut and as good as before", async || {
        let state = state(&mut client, &allocation.id).await;
        let is_cut = file.metadata().unwrap().len() == size;
        (is_cut && state == Some(EnforcementState::Attached)).then_some(())
    })
    .await;
}
