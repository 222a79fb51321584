//! The functions that frameworks look up in the driver, in NVML and in the CUDA runtime, and those that the simulated
//! ones still lack. The list of missing ones must be exact. `tests/names/collect.py` collects a framework's names.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::process::Command;

use apportion_tests::{CommandOutput, staged};

const FRAMEWORKS: [&str; 3] = ["jax", "pytorch", "tensorflow"];

/// The functions of a staged library. A runtime function that only returns "not supported" is a weak symbol, and does
/// not count.
fn functions(library: &str) -> HashSet<String> {
    let folder = if library.starts_with("libcudart") {
        "lib/apportion/sim/runtime"
    } else {
        "lib/apportion/sim"
    };
    let path = staged().join(folder).join(library);
    let mut list = Command::new("nm");
    let said = CommandOutput::by(list.args(["-D", "--defined-only"]).arg(path)).well();
    let mut names = HashSet::new();
    for line in said.out.lines() {
        let mut words = line.split_whitespace().skip(1);
        let (kind, name) = (words.next(), words.next().unwrap_or_default());
        let name = name.split('@').next().unwrap_or_default();
        if kind != Some("W") {
            // Programs look up driver functions by names without version suffixes.
            if let Some((base, version)) = name.rsplit_once("_v")
                && library == "libcuda.so.1"
                && version.chars().all(|letter| letter.is_ascii_digit())
            {
                names.insert(base.to_owned());
            }
            names.insert(name.to_owned());
        }
    }
    names
}

fn lines(file: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(format!("names/{file}.txt")).expect("the list is there");
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

#[test]
fn what_frameworks_ask_for_and_the_simulated_driver_lacks_is_listed() {
    let mut known = HashMap::new();
    let mut missing = BTreeSet::new();
    for line in FRAMEWORKS.iter().flat_map(|framework| lines(framework)) {
        let (library, name) = line.split_once(' ').expect("a library and a name");
        let there = known
            .entry(library.to_owned())
            .or_insert_with(|| functions(library));
        assert!(!there.is_empty(), "{library} has no functions");
        if !there.contains(name) {
            missing.insert(line);
        }
    }
    let listed = lines("missing");
    let new: Vec<_> = missing.difference(&listed).collect();
    assert!(
        new.is_empty(),
        "missing, and not in tests/names/missing.txt: {new:#?}"
    );
    let stale: Vec<_> = listed.difference(&missing).collect();
    assert!(
        stale.is_empty(),
        "in tests/names/missing.txt, and not missing: {stale:#?}"
    );
}
