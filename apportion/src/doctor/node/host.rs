//! A node's file system, below a root that may differ from ours.
//!
//! A missing file is a fact about the node. An unreadable file is not, and is recorded separately.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use apportion_exit::CommandFailure;

/// Folders that every node has.
const OF_A_NODE: [&str; 4] = ["etc", "usr", "var", "proc"];

/// The node's file system.
pub(super) struct NodeFilesystem {
    root: PathBuf,
    /// What could not be read, and why.
    unreadable: RefCell<BTreeSet<String>>,
}

impl NodeFilesystem {
    pub(super) fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            unreadable: RefCell::default(),
        }
    }

    /// Whether the root is a node's file system that can be read.
    pub(super) fn check(&self) -> Result<(), CommandFailure> {
        let root = self.root.display();
        let what = format!("failed to read {root}, the root of the node's file system");
        match fs::read_dir(&self.root) {
            Ok(_) => {}
            Err(error) if is_absent(&error) => {
                return Err(CommandFailure::usage(what)
                    .because(error)
                    .hint("name it with --root; a pod with hostPID sees it as /proc/1/root"));
            }
            Err(error) => {
                return Err(CommandFailure::new(what).because(error).hint(
                    "run this as root; a pod also needs hostPID and the capability SYS_PTRACE for /proc/1/root, as the agent's pod has",
                ));
            }
        }
        if OF_A_NODE.iter().any(|folder| self.has(folder)) {
            return Ok(());
        }
        let what = format!(
            "{root} holds no file system of a node: it has none of {}",
            OF_A_NODE.join(", ")
        );
        Err(CommandFailure::usage(what).hint("name the root of one with --root"))
    }

    /// What could not be read so far, with the reasons.
    pub(super) fn unreadable(&self) -> Vec<String> {
        self.unreadable.borrow().iter().cloned().collect()
    }

    /// Returns what was read. If it exists but can't be read, records that.
    fn read<T>(&self, path: &str, read: io::Result<T>) -> Option<T> {
        let error = match read {
            Ok(read) => return Some(read),
            Err(error) => error,
        };
        let is_other = matches!(
            error.kind(),
            ErrorKind::IsADirectory | ErrorKind::InvalidData
        );
        if !is_absent(&error) && !is_other {
            let said = format!("{path}: {error}");
            self.unreadable.borrow_mut().insert(said);
        }
        None
    }

    /// The path of a node's file for this process.
    fn find(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether there is a file. A symbolic link that is broken here counts, because the node can resolve it.
    pub(super) fn has(&self, path: &str) -> bool {
        let found = fs::symlink_metadata(self.find(path));
        self.read(path, found).is_some()
    }

    pub(super) fn text(&self, path: &str) -> Option<String> {
        self.read(path, fs::read_to_string(self.find(path)))
    }

    /// The first of `paths` that exists.
    pub(super) fn first<'a>(&self, paths: &[&'a str]) -> Option<&'a str> {
        paths.iter().copied().find(|path| self.has(path))
    }

    /// The names in a folder, sorted.
    pub(super) fn names(&self, folder: &str) -> Vec<String> {
        let entries = self.read(folder, fs::read_dir(self.find(folder)));
        let entries = entries.into_iter().flatten();
        let mut names: Vec<_> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The version that a program of the node prints.
    pub(super) fn version(&self, programs: &[&str]) -> Option<String> {
        let program = self.find(self.first(programs)?);
        let mut command = Command::new(program);
        command.arg("--version").stdin(Stdio::null());
        let output = command.output().ok()?;
        let said = String::from_utf8(output.stdout).ok()?;
        said.split_whitespace().find_map(number)
    }
}

/// Whether the error means that there is no such file.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// A version, without its `v`: `v1.33.2+k3s1` is `1.33.2+k3s1`.
fn number(word: &str) -> Option<String> {
    let word = word.trim_start_matches('v').trim_end_matches(',');
    let mut parts = word.split('.');
    let major = parts.next()?.parse::<u32>();
    (major.is_ok() && parts.next()?.starts_with(|c: char| c.is_ascii_digit()))
        .then(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_first_word_that_looks_like_one() {
        let said = "containerd github.com/containerd/containerd v1.7.24 88bf19b2105c8b17560993bee28a01ddc2f97182";
        assert_eq!(said.split_whitespace().find_map(number).unwrap(), "1.7.24");
        assert_eq!(number("v1.33.2+k3s1").unwrap(), "1.33.2+k3s1");
        assert_eq!(number("Kubernetes"), None);
    }
}
