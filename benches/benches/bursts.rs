//! How long the agent takes to answer a program that asks for a larger allowance.
//!
//! Elastic shares have limits of all that nobody is guaranteed, and none uses anything. They ask in turns for all of it.
//! So each request makes the agent withdraw another's allowance and raise this one: the longest way to an answer that
//! does not wait for a sample. The requests go through the accounts, as those of the library, on the simulated driver.
//! The time is from before the request until after the wake of the program.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use apportion_abi::account::{BurstMap, LimitsMap};
use apportion_abi::{Bytes, paths};
use apportion_tests::{PATIENCE, TestHost, eventually};
use serde_json::Value;

/// The budget of the 99th percentile.
const BUDGET: Duration = Duration::from_millis(2);
/// How many shares there are, with the guarantee and the limit of each in MiB.
const CASES: [(usize, u64, u64); 2] = [(2, 1000, 9000), (64, 100, 3700)];
/// How many requests are measured, and how many come before.
const REQUESTS: usize = 2000;
const FIRST: usize = 100;
/// The pause between requests, with which the agent does not bound their rate.
const PAUSE: Duration = Duration::from_millis(2);

/// A share with its account, as the library sees it.
struct ElasticShare {
    program: Child,
    limits: LimitsMap,
    burst: BurstMap,
    wake: PathBuf,
}

impl ElasticShare {
    fn new(host: &TestHost, name: &str, sizes: [u64; 2]) -> Self {
        let [guarantee, limit] = &sizes.map(|mib| mib.to_string());
        let options = ["--gpu-memory", guarantee, "--gpu-memory-limit", limit];
        let options = [&options[..], &["--name", name]].concat();
        let program = host.limited(&options, "/bin/sleep").arg("600").spawn();
        let mut own = Value::Null;
        eventually(PATIENCE, "the share is there", || {
            let top = host.top();
            let all = top["allocations"].as_array().expect("a list");
            own = all
                .iter()
                .find(|of| of["name"] == name && of["state"] == "allocated")
                .cloned()
                .unwrap_or_default();
            !own.is_null()
        });
        let folder = Path::new(own["account_dir"].as_str().expect("a path"));
        let path = |file: &str| {
            CString::new(folder.join(file).as_os_str().as_bytes()).expect("paths hold no zero")
        };
        Self {
            program: program.expect("the command is staged"),
            limits: LimitsMap::open(&path(paths::LIMITS_FILE)).expect("it has limits"),
            burst: BurstMap::open(&path(paths::BURST_FILE)).expect("it is elastic"),
            wake: folder.join(paths::WAKE_FIFO),
        }
    }

    /// Asks for the whole limit. Returns the time to the answer.
    fn ask(&self) -> Duration {
        let words = &self.burst.cards()[0];
        let begun = Instant::now();
        let ticket = words.ask(words.ceiling());
        let mut fifo = OpenOptions::new();
        let fifo = fifo.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let mut fifo = fifo.open(&self.wake).expect("it is a FIFO");
        fifo.write_all(&[0]).expect("it is empty");
        while !words.is_answered(ticket) {
            words.wait(ticket, 100_000_000);
        }
        let took = begun.elapsed();
        words.end();
        let limit = self.limits.cards()[0].limits().limit;
        assert_eq!(limit, words.ceiling(), "the request was met");
        took
    }
}

impl Drop for ElasticShare {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// The value below which this part of the sorted times is.
fn quantile(times: &[Duration], part: f64) -> Duration {
    times[((times.len() - 1) as f64 * part) as usize]
}

/// Measures with this many shares. Returns the sorted times.
fn answers(count: usize, sizes: [u64; 2]) -> Vec<Duration> {
    let host = TestHost::new();
    let _agent = host.agent(&["--gpu-memory-overcommit", "32"]);
    let shares: Vec<_> = (0..count)
        .map(|number| ElasticShare::new(&host, &format!("share-{number}"), sizes))
        .collect();
    assert_eq!(
        shares[0].burst.cards()[0].ceiling(),
        Bytes::from_mib(sizes[1])
    );
    let mut times = Vec::new();
    for turn in 0..FIRST + REQUESTS {
        let took = shares[turn % count].ask();
        if turn >= FIRST {
            times.push(took);
        }
        std::thread::sleep(PAUSE);
    }
    times.sort();
    times
}

fn main() {
    for (count, guarantee, limit) in CASES {
        let times = answers(count, [guarantee, limit]);
        let [middle, high] = [0.5, 0.99].map(|part| quantile(&times, part));
        let verdict = if high <= BUDGET { "kept" } else { "missed" };
        println!(
            "{count} shares, answer to a request for more: median {middle:?}, p99 {high:?}, most {:?} of {REQUESTS}; \
             budget {BUDGET:?} for p99: {verdict}",
            times[times.len() - 1]
        );
    }
}
