//! The library as a file: what it imports and what it exports.

use std::collections::BTreeSet;
use std::process::Command;

use apportion_intercept::ROWS;

use crate::stage::preload;

fn readelf(what: &str) -> String {
    let output = Command::new("readelf")
        .args(["-W", what])
        .arg(preload())
        .output()
        .expect("readelf comes with the linker");
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The dynamic symbols that are (or are not) defined here.
fn symbols(defined: bool) -> BTreeSet<String> {
    let table = readelf("--dyn-syms");
    let rows = table
        .lines()
        .map(|row| row.split_whitespace().collect::<Vec<_>>());
    let rows =
        rows.filter(|row| row.len() > 7 && row[4] == "GLOBAL" && (row[6] != "UND") == defined);
    rows.map(|row| row[7].to_owned()).collect()
}

#[test]
fn it_needs_no_library_no_symbol_version_and_runs_nothing_at_load() {
    let dynamic = readelf("-d");
    for tag in [
        "NEEDED", "VERNEED", "VERDEF", "INIT", "FINI", "TEXTREL", "RPATH", "RUNPATH",
    ] {
        assert!(!dynamic.contains(&format!("({tag}")), "{tag} in\n{dynamic}");
    }
}

#[test]
fn it_exports_the_table_and_the_loader_s_doors() {
    let mut expected: BTreeSet<String> = ROWS
        .iter()
        .map(|row| row.symbol.to_string_lossy().into_owned())
        .collect();
    expected.extend(["dlopen", "dlmopen", "dlsym", "dlvsym"].map(str::to_owned));
    assert_eq!(symbols(true), expected);
}

/// All of these are in glibc 2.17 and in musl, with the same name.
#[test]
fn it_asks_only_for_what_every_c_library_has() {
    let everywhere = [
        "__errno_location",
        "access",
        "bcmp",
        "clock_gettime",
        "close",
        "dl_iterate_phdr",
        "free",
        "getenv",
        "getpid",
        "getrusage",
        "kill",
        "madvise",
        "memchr",
        "memcmp",
        "memcpy",
        "memmove",
        "memset",
        "mmap",
        "munmap",
        "nanosleep",
        "open",
        "pause",
        "posix_memalign",
        "read",
        "sched_yield",
        "strlen",
        "syscall",
    ];
    for symbol in symbols(false) {
        assert!(everywhere.contains(&symbol.as_str()), "{symbol}");
    }
}

/// The remaining symbol is a guard in the hash map around the hash function, which does not panic. On x86-64 the compiler
/// merges two functions with that body; on aarch64 both are left.
#[test]
fn nothing_in_it_can_panic() {
    let table = readelf("--syms");
    let panics: BTreeSet<&str> = table
        .lines()
        .filter_map(|row| row.split_whitespace().last())
        .filter(|name| name.contains("panic") && !name.contains("panic_nounwind"))
        .filter(|name| !name.ends_with(".rs"))
        .filter(|name| !(cfg!(target_arch = "aarch64") && name.ends_with("panicking9panic_fmt")))
        .collect();
    assert!(panics.is_empty(), "{panics:?}");
}
