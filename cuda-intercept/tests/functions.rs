//! Every function of the driver is hooked, or listed as unhooked with a reason. So none bypasses the limit unnoticed.
//!
//! `functions.txt` lists what the headers declare: CUDA's whole driver API, and NVML's functions about memory and
//! processes. The table is compared with that list, and the list with the headers if they are available (`cargo xtask
//! test` gets them from PyPI). So a name in a new header fails here until somebody classifies it.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that panics has found something"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use apportion_intercept::table::{DriverLibrary, ROWS};
use apportion_intercept::unhooked::{UNHOOKED_FUNCTIONS, family, is_classified, is_of_interest};

/// One function per line, with the headers that declare it.
const LIST: &str = include_str!("functions.txt");
/// One symbol per line, with the driver branches that export it.
const EXPORTS: &str = include_str!("exports.txt");
/// The folder with the unpacked header packages.
const HEADERS: &str = "APPORTION_CUDA_HEADERS";

/// The names of a version's parts in the packages.
const VERSIONS: [(&str, &[&str]); 2] = [
    (
        "12.9",
        &[
            "nvidia/cuda_runtime/include/cuda.h",
            "nvidia/cuda_runtime/include/cudaGL.h",
            "nvidia/cuda_runtime/include/cudaEGL.h",
            "nvidia/cuda_runtime/include/cudaVDPAU.h",
            "nvidia/nvml_dev/include/nvml.h",
        ],
    ),
    (
        "13.5",
        &[
            "nvidia/cu13/include/cuda.h",
            "nvidia/cu13/include/cudaGL.h",
            "nvidia/cu13/include/cudaEGL.h",
            "nvidia/cu13/include/cudaVDPAU.h",
            "nvidia/cu13/include/nvml.h",
        ],
    ),
];

/// The functions that a header declares. A macro that renames a function to a version or a stream variant of it has
/// two names; other macros are followed by something else.
fn declared(header: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in without_comments(header).lines() {
        let names = || words(line).filter(|(word, _)| is_function(word));
        let is_macro = line.trim_start().starts_with('#');
        let stands_for_one = is_macro && names().count() == 2;
        for (name, next) in names() {
            if stands_for_one || !is_macro && next == Some('(') {
                found.insert(name.to_owned());
            }
            for (stream, suffix) in [("API_PTSZ(", "_ptsz"), ("API_PTDS(", "_ptds")] {
                if line.contains(&format!("{stream}{name})")) {
                    found.insert(format!("{name}{suffix}"));
                }
            }
        }
    }
    found
}

fn is_function(word: &str) -> bool {
    let rest = word
        .strip_prefix("cu")
        .or_else(|| word.strip_prefix("nvml"));
    !word.ends_with("_t")
        && rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()))
        && is_of_interest(word)
}

/// The words of a line, each with the character after it.
fn words(line: &str) -> impl Iterator<Item = (&str, Option<char>)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(|c| !is_part(c));
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at_checked(end)?;
        rest = after;
        (!word.is_empty()).then(|| (word, after.trim_start().chars().next()))
    })
}

fn without_comments(header: &str) -> String {
    let mut text = String::with_capacity(header.len());
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        text.push_str(before);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    text.lines()
        .map(|line| line.split("//").next().unwrap_or_default().to_owned())
        .collect::<Vec<_>>()
        .join("\n")
}

/// The functions that the list has for a version.
fn listed(version: &str) -> BTreeSet<String> {
    let names = LIST.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let name = words.next()?;
        words.any(|word| word == version).then(|| name.to_owned())
    });
    names.collect()
}

fn all_listed() -> BTreeSet<String> {
    VERSIONS.iter().flat_map(|(v, _)| listed(v)).collect()
}

/// The functions that drivers export without a header.
fn exported() -> BTreeSet<String> {
    let lines = EXPORTS.lines().filter(|line| !line.starts_with('#'));
    let names = lines.filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

fn hooked() -> BTreeSet<&'static str> {
    let symbols = ROWS.iter().map(|row| row.symbol.to_str());
    symbols.map(|symbol| symbol.expect("plain")).collect()
}

fn unhooked() -> BTreeSet<&'static str> {
    UNHOOKED_FUNCTIONS
        .iter()
        .flat_map(|group| group.names())
        .collect()
}

/// The folder with the headers. `None` if they are not available, which is a failure in CI.
fn headers() -> Option<PathBuf> {
    let folder = env::var_os(HEADERS).map(PathBuf::from);
    let is_ci = env::var_os("CI").is_some_and(|value| value == "true" || value == "1");
    assert!(folder.is_some() || !is_ci, "{HEADERS} is not set");
    folder
}

fn in_headers(folder: &Path, files: &[&str]) -> BTreeSet<String> {
    files
        .iter()
        .flat_map(|file| {
            let path = folder.join(file);
            let text =
                fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            declared(&String::from_utf8_lossy(&text))
        })
        .collect()
}

#[test]
fn every_function_is_hooked_or_left_alone_for_a_reason() {
    let forgotten: Vec<_> = all_listed()
        .union(&exported())
        .filter(|name| !is_classified(name))
        .cloned()
        .collect();
    assert!(
        forgotten.is_empty(),
        "neither hooked nor left alone: {forgotten:?}"
    );
}

#[test]
fn only_functions_that_there_are_are_hooked_or_left_alone() {
    let (listed, exported) = (all_listed(), exported());
    let all = listed.union(&exported);
    let families: BTreeSet<_> = all.map(|name| family(name)).collect();
    for name in unhooked() {
        assert!(families.contains(name), "nothing has {name}");
    }
    for symbol in hooked() {
        assert!(listed.contains(symbol), "no header has {symbol}");
    }
}

#[test]
fn what_only_drivers_have_is_of_interest_and_in_no_header() {
    let listed = all_listed();
    for name in exported() {
        assert!(is_of_interest(&name), "{name}");
        assert!(!listed.contains(&name), "a header has {name}");
    }
}

#[test]
fn no_function_stands_twice() {
    let hooked: BTreeSet<_> = hooked().into_iter().map(family).collect();
    let mut reasons = BTreeMap::new();
    for group in UNHOOKED_FUNCTIONS {
        let prefix = match group.library {
            DriverLibrary::Cuda => "cu",
            DriverLibrary::Nvml => "nvml",
        };
        assert!(!group.reason.is_empty());
        for name in group.names() {
            assert!(name.starts_with(prefix) && family(name) == name, "{name}");
            assert!(!hooked.contains(name), "{name} is hooked and left alone");
            let before = reasons.insert(name, group.reason);
            assert_eq!(before, None, "{name} is left alone twice");
        }
    }
}

#[test]
fn the_list_has_what_the_headers_declare() {
    let Some(folder) = headers() else {
        println!("left out: {HEADERS} is not set");
        return;
    };
    for (version, files) in VERSIONS {
        let (declared, listed) = (in_headers(&folder, files), listed(version));
        let new: Vec<_> = declared.difference(&listed).collect();
        assert!(
            new.is_empty(),
            "functions.txt lacks, for {version}: {new:?}"
        );
        let gone: Vec<_> = listed.difference(&declared).collect();
        assert!(gone.is_empty(), "the headers of {version} lack: {gone:?}");
    }
}

#[test]
fn declarations_and_their_versions_are_found() {
    let header = "/* cuOld( */ // cuOlder(\n\
                  #define cuNew __CUDA_API_PTSZ(cuNew_v2)\n\
                  #define nvmlOne_t nvmlMemory_t\n\
                  #define nvmlMemory_v2 VERSION(2)\n\
                  CUresult CUDAAPI cuPlain (int);\n\
                  nvmlReturn_t nvmlDeviceGetMemory(cuType x);\n\
                  nvmlReturn_t nvmlDeviceGetClock(int);\n";
    let found = declared(header);
    let expected = [
        "cuNew",
        "cuNew_v2",
        "cuNew_v2_ptsz",
        "cuPlain",
        "nvmlDeviceGetMemory",
    ];
    assert!(found.iter().eq(expected), "{found:?}");
}
