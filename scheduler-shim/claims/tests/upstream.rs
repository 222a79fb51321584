//! Random claims beside Kubernetes' own allocator: the same devices, or no devices in both.
//!
//! It needs Go and the module proxy:
//! `cargo test --package apportion-claims --test upstream -- --ignored`. `CLAIMS_CASES` and `CLAIMS_SEED` choose the
//! clusters; a failure prints the seed and the smallest cluster that it found.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

#[path = "upstream/random_cluster.rs"]
mod random_cluster;
#[path = "upstream/read_cluster.rs"]
mod read_cluster;

use random_cluster::Random;

/// Kubernetes' allocator as a program: a cluster a line in, an answer a line out.
struct UpstreamAllocator {
    program: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl UpstreamAllocator {
    fn start() -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upstream");
        let built = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("upstream-allocator");
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&built).arg(".");
        let status = build
            .current_dir(&source)
            .status()
            .expect("Go is installed");
        assert!(status.success(), "Kubernetes' allocator can be built");
        let mut program = Command::new(&built);
        let program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut program = program.expect("the program that was built starts");
        Self {
            questions: program.stdin.take().expect("it was asked for"),
            answers: BufReader::new(program.stdout.take().expect("it was asked for")),
            program,
        }
    }

    fn ask(&mut self, cluster: &Value) -> Value {
        writeln!(self.questions, "{cluster}").expect("the program reads");
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .expect("the program answers");
        serde_json::from_str(&line).expect("the answer is JSON")
    }
}

impl Drop for UpstreamAllocator {
    fn drop(&mut self) {
        // It ends by itself too, with its input.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// What a comparison found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    SameDevices,
    NoneInBoth,
    /// Upstream ran out of time, or we out of steps while upstream gave nothing.
    GivenUp,
    Different,
}

fn compare(upstream: &mut UpstreamAllocator, cluster: &Value) -> (Comparison, Value, Value) {
    let theirs = upstream.ask(cluster);
    let ours = read_cluster::allocate_in(cluster);
    let is_empty = theirs["results"].is_null();
    let (result, ours) = match ours {
        Ok(results) => {
            let ours = json!(results);
            let is_same =
                without_share_ids(theirs["results"].clone()) == without_share_ids(ours.clone());
            let result = if theirs["timedOut"] == true {
                Comparison::GivenUp
            } else if is_same {
                Comparison::SameDevices
            } else {
                Comparison::Different
            };
            (result, ours)
        }
        Err(refusal) => {
            let is_hard = refusal.contains("steps");
            let result = match (is_empty, theirs["timedOut"] == true || is_hard) {
                (true, true) => Comparison::GivenUp,
                (true, false) => Comparison::NoneInBoth,
                (false, _) => Comparison::Different,
            };
            (result, json!(refusal))
        }
    };
    (result, theirs, ours)
}

/// Share IDs are random.
fn without_share_ids(mut results: Value) -> Value {
    for result in results.as_array_mut().into_iter().flatten() {
        let devices = result.pointer_mut("/devices/results");
        for device in devices.and_then(Value::as_array_mut).into_iter().flatten() {
            if device["shareID"].is_string() {
                device["shareID"] = json!("");
            }
        }
    }
    results
}

/// Leaves parts of a cluster out as long as the answers differ.
fn shrink(upstream: &mut UpstreamAllocator, mut cluster: Value) -> Value {
    let lists = [
        "/claims",
        "/allocated",
        "/slices",
        "/claims/0/spec/devices/requests",
        "/claims/0/spec/devices/constraints",
        "/claims/1/spec/devices/requests",
        "/slices/0/spec/devices",
        "/slices/1/spec/devices",
    ];
    loop {
        let mut is_smaller = false;
        for list in lists {
            let length = cluster
                .pointer(list)
                .and_then(Value::as_array)
                .map_or(0, Vec::len);
            for place in (0..length).rev() {
                let mut smaller = cluster.clone();
                let Some(found) = smaller.pointer_mut(list).and_then(Value::as_array_mut) else {
                    continue;
                };
                found.remove(place);
                if compare(upstream, &smaller).0 == Comparison::Different {
                    (cluster, is_smaller) = (smaller, true);
                }
            }
        }
        if !is_smaller {
            return cluster;
        }
    }
}

#[test]
#[ignore = "needs Go and the module proxy"]
fn gives_the_devices_that_kubernetes_gives() {
    let from_environment = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(1, |now| u64::from(now.subsec_nanos()));
    let seed = from_environment("CLAIMS_SEED").unwrap_or(now);
    let cases = from_environment("CLAIMS_CASES").unwrap_or(2_000);
    let mut upstream = UpstreamAllocator::start();
    let (mut same, mut none, mut given_up) = (0, 0, 0);
    for case in 0..cases {
        let cluster = random_cluster::draw(&mut Random::new(seed.wrapping_add(case)));
        match compare(&mut upstream, &cluster).0 {
            Comparison::SameDevices => same += 1,
            Comparison::NoneInBoth => none += 1,
            Comparison::GivenUp => given_up += 1,
            Comparison::Different => {
                let smallest = shrink(&mut upstream, cluster);
                let (_, theirs, ours) = compare(&mut upstream, &smallest);
                let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("different.json");
                let report = json!({"cluster": smallest, "theirs": theirs, "ours": ours});
                fs::write(&file, format!("{report:#}")).expect("the target folder is writable");
                panic!(
                    "seed {}: the answers differ; see {}\ntheirs: {theirs}\nours: {ours}",
                    seed.wrapping_add(case),
                    file.display()
                );
            }
        }
    }
    println!("seed {seed}: {same} with the same devices, {none} with none, {given_up} given up");
    assert!(same * 5 > cases, "enough claims are allocated to compare");
    assert!(given_up * 50 <= cases, "few searches are given up");
}
