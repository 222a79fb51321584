//! The files of an image, by path. A program brings every library that the loader would map for it, at the path where the
//! loader looks for it.
//!
//! On this machine's own platform the loader says which libraries these are. For another platform, the program's own
//! tables say it, and the libraries are those of Debian's cross compiler.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::platform::Platform;

/// Where one file's bytes come from.
#[derive(Clone, Debug)]
pub(crate) enum FileSource {
    Copy(PathBuf),
    Text(&'static str),
    Script(&'static str),
    Link(PathBuf),
}

/// A root file system under construction.
#[derive(Clone, Debug)]
pub struct ImageFiles {
    pub(crate) platform: Platform,
    pub(crate) entries: BTreeMap<PathBuf, FileSource>,
}

impl Default for ImageFiles {
    fn default() -> Self {
        Self::of(Platform::HOST)
    }
}

impl ImageFiles {
    /// An empty file system for a platform.
    #[must_use]
    pub const fn of(platform: Platform) -> Self {
        let entries = BTreeMap::new();
        Self { platform, entries }
    }

    /// The files that are copies: their paths in the image, and their sources.
    pub fn copies(&self) -> impl Iterator<Item = (&Path, &Path)> {
        self.entries
            .iter()
            .filter_map(|(place, source)| match source {
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
        let libraries = if self.platform == Platform::HOST {
            linked(&real)?
                .into_iter()
                .map(|path| (path.clone(), path))
                .collect()
        } else {
            linked_elsewhere(self.platform, &real)?
        };
        for (place, library) in libraries {
            let real = fs::canonicalize(&library).with_context(|| {
                format!(
                    "failed to find {}, which {} needs",
                    library.display(),
                    from.display()
                )
            })?;
            self.entries.insert(place, FileSource::Copy(real));
        }
        self.entries.insert(to.into(), FileSource::Copy(real));
        Ok(())
    }

    /// Puts those of these libraries that the machine has beside the C library.
    ///
    /// # Errors
    /// If the C library is not in the image yet.
    pub(crate) fn beside_libc(&mut self, names: &[&str]) -> Result<()> {
        let mut paths = self.entries.keys();
        let libc = paths.find(|path| path.ends_with("libc.so.6"));
        let folder = libc.and_then(|path| path.parent());
        let folder = folder
            .context("no program brought the C library")?
            .to_owned();
        let sources = if self.platform == Platform::HOST {
            folder.clone()
        } else {
            self.platform.cross_libraries()
        };
        for name in names {
            if let Ok(real) = fs::canonicalize(sources.join(name)) {
                self.entries
                    .insert(folder.join(name), FileSource::Copy(real));
            }
        }
        Ok(())
    }

    /// Puts `text` at `to`.
    pub fn text(&mut self, to: &Path, text: &'static str) {
        self.entries.insert(to.into(), FileSource::Text(text));
    }

    /// Puts a program at `to` that is one line of shell.
    pub fn script(&mut self, to: &Path, text: &'static str) {
        self.entries.insert(to.into(), FileSource::Script(text));
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
                self.entries.insert(to, FileSource::Link(target));
            } else {
                self.program(&path, &to)?;
            }
        }
        Ok(())
    }
}

/// The libraries of `program`, as the machine's own loader finds them. None for a static program.
fn linked(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("failed to start ldd")?;
    Ok(read(&String::from_utf8_lossy(&output.stdout)))
}

/// The libraries of a program of another platform: their places on such a machine, and the files of the cross compiler.
fn linked_elsewhere(platform: Platform, program: &Path) -> Result<BTreeMap<PathBuf, PathBuf>> {
    let (mut found, mut unread) = (BTreeMap::new(), vec![program.to_owned()]);
    while let Some(file) = unread.pop() {
        let output = Command::new("readelf")
            .args(["--dynamic", "--program-headers", "--wide"])
            .arg(&file)
            .output()
            .context("failed to start readelf")?;
        ensure!(
            output.status.success(),
            "readelf does not read {}",
            file.display()
        );
        for (name, place) in needs(&String::from_utf8_lossy(&output.stdout)) {
            let place = place.unwrap_or_else(|| platform.library(&name));
            let library = platform.cross_libraries().join(&name);
            // The loader is named twice: as the program's interpreter, at its own place, and as a library.
            let is_known = found.values().any(|known| *known == library);
            if !is_known {
                unread.push(library.clone());
                found.insert(place, library);
            }
        }
    }
    Ok(found)
}

/// The names that `readelf` lists as needed, the loader first with its place.
fn needs(output: &str) -> Vec<(String, Option<PathBuf>)> {
    let between = |line: &str, start: &str| {
        let (_, rest) = line.split_once(start)?;
        Some(rest.split(']').next()?.to_owned())
    };
    let loader = output
        .lines()
        .find_map(|line| between(line, "[Requesting program interpreter: "));
    let loader = loader.map(PathBuf::from).and_then(|path| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some((name, Some(path)))
    });
    let needed = output
        .lines()
        .filter_map(|line| between(line, "Shared library: ["));
    loader
        .into_iter()
        .chain(needed.map(|name| (name, None)))
        .collect()
}

/// `libc.so.6 => /lib/…/libc.so.6 (0x…)`, or for the loader `/lib64/ld-linux-x86-64.so.2 (0x…)`.
fn read(output: &str) -> Vec<PathBuf> {
    let lines = output
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
        let output = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x2)\n\t/lib64/ld.so.2 (0x3)\n";
        let paths = ["/lib/x/libc.so.6", "/lib64/ld.so.2"].map(PathBuf::from);
        assert_eq!(read(output), paths);
        assert!(read("\tstatically linked\n").is_empty());
    }

    #[test]
    fn reads_what_a_program_of_another_platform_needs() {
        let output = "  INTERP 0x1\n      [Requesting program interpreter: /lib/ld-linux-aarch64.so.1]\n \
                     0x1 (NEEDED)  Shared library: [libgcc_s.so.1]\n 0x1 (NEEDED)  Shared library: [libc.so.6]\n";
        let loader = PathBuf::from("/lib/ld-linux-aarch64.so.1");
        let wanted = [
            ("ld-linux-aarch64.so.1".to_owned(), Some(loader)),
            ("libgcc_s.so.1".to_owned(), None),
            ("libc.so.6".to_owned(), None),
        ];
        assert_eq!(needs(output), wanted);
    }

    #[test]
    fn a_program_brings_its_libraries() {
        let mut files = ImageFiles::default();
        files
            .program(Path::new("/bin/sh"), Path::new("/bin/sh"))
            .unwrap();
        let has = |end: &str| {
            files
                .entries
                .keys()
                .any(|path| path.to_string_lossy().contains(end))
        };
        assert!(has("/libc.so") && has("/ld-linux"), "{files:?}");
    }
}
