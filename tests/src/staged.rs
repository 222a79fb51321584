//! The tree with the programs and libraries under test.

use std::env;
use std::path::{Path, PathBuf};

/// Names the tree. `cargo xtask test` sets it.
const STAGED: &str = "APPORTION_STAGED";

/// The staged tree: the path in `APPORTION_STAGED`, or `apportion` in Cargo's target folder.
///
/// # Panics
/// If it does not exist.
#[must_use]
pub fn staged() -> PathBuf {
    let tree = env::var_os(STAGED).map_or_else(|| target().join("apportion"), PathBuf::from);
    let is_there = tree.join("bin/apportion").exists();
    assert!(
        is_there,
        "no programs in {}: run `cargo xtask build` first, or name the tree in {STAGED}",
        tree.display()
    );
    tree
}

/// A program of this package, such as a victim.
#[must_use]
pub fn built(name: &str) -> PathBuf {
    target().join(profile()).join(name)
}

/// `target/debug/deps/suite-1234` is the running test.
fn target() -> PathBuf {
    ancestor(3)
}

fn profile() -> String {
    ancestor(2)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn ancestor(steps: usize) -> PathBuf {
    let test = env::current_exe().expect("a running program has a path");
    test.ancestors()
        .nth(steps)
        .map_or_else(PathBuf::new, Path::to_owned)
}
