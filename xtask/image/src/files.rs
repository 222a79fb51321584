//! The files of an image, by path. A program brings every library that the machine's loader would map for it, at the
//! path where the loader looks for it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// Where one file's bytes come from.
#[derive(Clone, Debug)]
pub(crate) enum FileSource {
    Copy(PathBuf),
    Text(&'static str),
    Script(&'static str),
    Link(PathBuf),
}

/// A root file system under construction.
#[derive(Clone, Debug, Default)]
pub struct ImageFiles(pub(crate) BTreeMap<PathBuf, FileSource>);

impl ImageFiles {
    /// The files that are copies: their paths in the image, and their sources.
    pub fn copies(&self) -> impl Iterator<Item = (&Path, &Path)> {
        self.0.iter().filter_map(|(place, source)| match source {
            FileSource::Copy(from) => Some((place.as_path(), from.as_path())),
            FileSource::Text(_) | FileSource::Script(_) | FileSource::Link(_) => None,
        })
    }

    /// Puts the program or library `from` at `to`, and its libraries at their own paths.
    ///
    /// # Errors
    /// If it or one of its libraries does not exist.
    pub fn program(&mut self, from: &Path, to: &Path) -> Result<()> {
        let real =
            fs::canonicalize(from).with_context(|| format!("failed to find {}", from.display()))?;
        for library in linked(&real)? {
            let real = fs::canonicalize(&library).with_context(|| {
                format!(
                    "failed to find {}, which {} needs",
                    library.display(),
                    from.display()
                )
            })?;
            self.0.insert(library, FileSource::Copy(real));
        }
        self.0.insert(to.into(), FileSource::Copy(real));
        Ok(())
    }

    /// Puts those of these libraries that the machine has beside the C library.
    ///
    /// # Errors
    /// If the C library is not in the image yet.
    pub(crate) fn beside_libc(&mut self, names: &[&str]) -> Result<()> {
        let mut paths = self.0.keys();
        let libc = paths.find(|path| path.ends_with("libc.so.6"));
        let folder = libc.and_then(|path| path.parent());
        let folder = folder
            .context("no program brought the C library")?
            .to_owned();
        for path in names.iter().map(|name| folder.join(name)) {
            if let Ok(real) = fs::canonicalize(&path) {
                self.0.insert(path, FileSource::Copy(real));
            }
        }
        Ok(())
    }

    /// Puts `text` at `to`.
    pub fn text(&mut self, to: &Path, text: &'static str) {
        self.0.insert(to.into(), FileSource::Text(text));
    }

    /// Puts a program at `to` that is one line of shell.
    pub fn script(&mut self, to: &Path, text: &'static str) {
        self.0.insert(to.into(), FileSource::Script(text));
    }

    /// Puts everything below `from` below `to`, and keeps links.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn tree(&mut self, from: &Path, to: &Path) -> Result<()> {
        let reading = || format!("failed to read {}", from.display());
        for entry in fs::read_dir(from).with_context(reading)? {
            let entry = entry.with_context(reading)?;
            let (path, to) = (entry.path(), to.join(entry.file_name()));
            let kind = entry.file_type().with_context(reading)?;
            if kind.is_dir() {
                self.tree(&path, &to)?;
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).with_context(reading)?;
                self.0.insert(to, FileSource::Link(target));
            } else {
                self.program(&path, &to)?;
            }
        }
        Ok(())
    }
}

/// The libraries of `program`, as the machine's own loader finds them. None for a static program.
fn linked(program: &Path) -> Result<Vec<PathBuf>> {
    let told = Command::new("ldd")
        .arg(program)
        .output()
        .context("failed to start ldd")?;
    Ok(read(&String::from_utf8_lossy(&told.stdout)))
}

/// `libc.so.6 => /lib/…/libc.so.6 (0x…)`, or for the loader `/lib64/ld-linux-x86-64.so.2 (0x…)`.
fn read(told: &str) -> Vec<PathBuf> {
    let lines = told
        .lines()
        .map(|line| line.split("=> ").last().unwrap_or(line).trim());
    let paths = lines.filter_map(|line| line.split_once(" (").map(|(path, _)| path));
    paths
        .filter(|path| path.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_loader_tells() {
        let told = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x2)\n\t/lib64/ld.so.2 (0x3)\n";
        let paths = ["/lib/x/libc.so.6", "/lib64/ld.so.2"].map(PathBuf::from);
        assert_eq!(read(told), paths);
        assert!(read("\tstatically linked\n").is_empty());
    }

    #[test]
    fn a_program_brings_its_libraries() {
        let mut files = ImageFiles::default();
        files
            .program(Path::new("/bin/sh"), Path::new("/bin/sh"))
            .unwrap();
        let has = |end: &str| {
            files
                .0
                .keys()
                .any(|path| path.to_string_lossy().contains(end))
        };
        assert!(has("/libc.so") && has("/ld-linux"), "{files:?}");
    }
}
