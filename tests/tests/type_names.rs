//! Type names say what a type is without its module: most have two words or more, and few occur twice.
//! `docs/development/style.md` has the rule.
#![expect(clippy::expect_used, reason = "a test may")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders without program sources.
const SKIPPED: &[&str] = &["target", "gen", ".git", "tests"];
/// The allowed percentage of types with a one-word name, and with a name that occurs twice. The current values are 3
/// and 1.
const MOST_ONE_WORD: usize = 8;
const MOST_SHARED: usize = 4;

/// The types that a source defines outside of its tests.
fn defined_types(source: &str) -> impl Iterator<Item = &str> {
    let program = source
        .split("#[cfg(test)]\nmod ")
        .next()
        .unwrap_or_default();
    program.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = match line.strip_prefix("pub") {
            Some(rest) => rest.split_once(' ')?.1.trim_start(),
            None => line,
        };
        let mut words = line.split_whitespace();
        let is_type = matches!(words.next()?, "struct" | "enum" | "trait");
        let name = words.next().filter(|_| is_type)?;
        let end = name
            .find(|c: char| !c.is_alphanumeric())
            .unwrap_or(name.len());
        Some(&name[..end])
    })
}

fn sources(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder)
        .expect("a folder is readable")
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() {
            if !SKIPPED.contains(&&*name) {
                sources(&entry.path(), all);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            all.push(entry.path());
        }
    }
}

/// The files of each name.
fn files_by_type() -> BTreeMap<String, BTreeSet<PathBuf>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut types: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for file in files {
        let source = fs::read_to_string(&file).expect("a source is readable");
        for name in defined_types(&source) {
            let files = types.entry(name.to_owned()).or_default();
            files.insert(file.clone());
        }
    }
    types
}

fn is_one_word(name: &str) -> bool {
    name.chars().filter(char::is_ascii_uppercase).count() == 1
}

#[test]
fn a_type_is_known_by_its_name_alone() {
    let types = files_by_type();
    let total: usize = types.values().map(BTreeSet::len).sum();
    assert!(total > 500, "only {total} types were found");
    let percent = |count: usize| count * 100 / total;

    let one_word: Vec<&String> = types.keys().filter(|name| is_one_word(name)).collect();
    assert!(
        percent(one_word.len()) <= MOST_ONE_WORD,
        "too many types have a name of one word; say what they are: {one_word:?}"
    );
    let shared = types.iter().filter(|(_, files)| files.len() > 1);
    let shared: Vec<_> = shared.collect();
    let count: usize = shared.iter().map(|(_, files)| files.len()).sum();
    assert!(
        percent(count) <= MOST_SHARED,
        "too many types share their name with another: {shared:?}"
    );
}

#[test]
fn types_are_found_whatever_stands_before_them() {
    let source = "pub(crate) struct OneType<T> {\n    enum TwoKinds {\ntrait ThreeParts: Sized {}\nlet structure = 1;\n\
        #[cfg(test)]\nmod tests {\nstruct Fake;";
    let found: Vec<&str> = defined_types(source).collect();
    assert_eq!(found, ["OneType", "TwoKinds", "ThreeParts"]);
}
