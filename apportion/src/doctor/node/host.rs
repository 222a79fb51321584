//! A node's file system, seen from a root that may not be ours.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The node's file system.
pub(super) struct Host {
    root: PathBuf,
}

impl Host {
    pub(super) fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Where `path` of the node is for us.
    fn find(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether there is something; a link that leads nowhere from here is there for the node.
    pub(super) fn has(&self, path: &str) -> bool {
        fs::symlink_metadata(self.find(path)).is_ok()
    }

    pub(super) fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.find(path)).ok()
    }

    /// The first of `paths` that is there.
    pub(super) fn first<'a>(&self, paths: &[&'a str]) -> Option<&'a str> {
        paths.iter().copied().find(|path| self.has(path))
    }

    /// The names in a folder, in order.
    pub(super) fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.find(folder)).into_iter().flatten();
        let mut names: Vec<_> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// What one of the node's programs says of its version.
    pub(super) fn version(&self, programs: &[&str]) -> Option<String> {
        let program = self.find(self.first(programs)?);
        let mut command = Command::new(program);
        command.arg("--version").stdin(Stdio::null());
        let output = command.output().ok()?;
        let said = String::from_utf8(output.stdout).ok()?;
        said.split_whitespace().find_map(number)
    }
}

/// A word that is a version, without its `v`: `v1.33.2+k3s1` is `1.33.2+k3s1`.
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
