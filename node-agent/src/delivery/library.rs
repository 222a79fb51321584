//! Installs the files that containers load, where the container runtime can mount them from.
//!
//! Their folder is named after their content, and its files never change: another version gets another folder, and a
//! program keeps the file that it has mapped. It is below the kubelet's folder, because that is on the host, also
//! for an agent in a container, and because programs can be executed from there, even on nodes that mount most of
//! the disk with `noexec`.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tracing::{info, warn};

/// The folder, below the kubelet's folder.
const FOLDER: &str = "plugins/apportion/lib";

/// Why the files cannot be installed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    #[error("failed to read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct InstalledLibraries {
    folder: PathBuf,
    files: Vec<(String, u64)>,
}

/// A problem of an installed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LibraryFault {
    /// It does not exist.
    Missing,
    /// Its size has changed.
    Damaged,
}

impl InstalledLibraries {
    /// Installs copies of `files` below the kubelet's folder, unless they are there.
    pub(crate) fn install(kubelet: &Path, files: &[PathBuf]) -> Result<Self, InstallError> {
        let mut read = Vec::new();
        let mut digest = Sha256::new();
        for path in files {
            let content = fs::read(path).map_err(|source| InstallError::Read {
                path: path.clone(),
                source,
            })?;
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            digest.update(name.as_bytes());
            digest.update(content.len().to_le_bytes());
            digest.update(&content);
            read.push((name, content));
        }
        let name: String = digest
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let folder = kubelet.join(FOLDER).join(name);
        let failed = |source| InstallError::Write {
            path: folder.clone(),
            source,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&folder)
            .map_err(failed)?;
        for (name, content) in &read {
            place(&folder.join(name), content).map_err(failed)?;
        }
        let sizes = read.into_iter();
        let files = sizes
            .map(|(name, content)| (name, content.len() as u64))
            .collect();
        Ok(Self { folder, files })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The first damaged file. The loader would only print that it cannot load the file, and start the program
    /// without it.
    pub(crate) fn fault(&self) -> Option<(PathBuf, LibraryFault)> {
        let mut files = self.files.iter();
        files.find_map(|(name, size)| {
            let path = self.folder.join(name);
            let fault = match fs::metadata(&path) {
                Err(_) => LibraryFault::Missing,
                Ok(found) if found.len() != *size => LibraryFault::Damaged,
                Ok(_) => return None,
            };
            Some((path, fault))
        })
    }

    /// Removes all other versions. Containers keep what they have mounted, and the grant of a container that
    /// restarts names this version.
    pub(crate) fn remove_others(&self) {
        let all = self.folder.parent().map(fs::read_dir);
        for entry in all.into_iter().flatten().flatten().flatten() {
            if entry.path() == self.folder {
                continue;
            }
            match fs::remove_dir_all(entry.path()) {
                Ok(()) => info!(folder = %entry.path().display(), "Old library removed"),
                Err(problem) => warn!(%problem, "Failed to remove an old library"),
            }
        }
    }
}

/// Writes the file and then renames it: under its final name it is always complete.
fn place(path: &Path, content: &[u8]) -> io::Result<()> {
    if is_same(path, content).unwrap_or(false) {
        return Ok(());
    }
    let new = path.with_extension("new");
    fs::write(&new, content)?;
    fs::set_permissions(&new, Permissions::from_mode(0o755))?;
    fs::rename(&new, path)
}

/// Compares in small pieces. A buffer for a whole library would stay allocated as long as the agent runs.
fn is_same(path: &Path, content: &[u8]) -> io::Result<bool> {
    let mut file = File::open(path)?;
    if file.metadata()?.len() != content.len() as u64 {
        return Ok(false);
    }
    let mut piece = [0; 8192];
    for wanted in content.chunks(piece.len()) {
        let found = &mut piece[..wanted.len()];
        file.read_exact(found)?;
        if found != wanted {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_another_folder_and_the_old_one_can_go() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("lib.so");
        let install = |content: &str| {
            fs::write(&source, content).unwrap();
            InstalledLibraries::install(&dir.path().join("kubelet"), std::slice::from_ref(&source))
                .unwrap()
        };
        let first = install("one");
        assert_eq!(install("one").folder(), first.folder());
        let second = install("two");
        assert_ne!(first.folder(), second.folder());
        second.remove_others();
        let of_first = first.folder().join("lib.so");
        assert_eq!(first.fault(), Some((of_first, LibraryFault::Missing)));
        assert_eq!(second.fault(), None);
    }

    #[test]
    fn a_file_that_was_cut_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("lib.so");
        fs::write(&source, "whole").unwrap();
        let library =
            InstalledLibraries::install(dir.path(), std::slice::from_ref(&source)).unwrap();
        let installed = library.folder().join("lib.so");
        fs::write(&installed, "").unwrap();
        assert_eq!(library.fault(), Some((installed, LibraryFault::Damaged)));
    }

    #[test]
    fn what_is_damaged_is_put_in_place_again_and_what_is_whole_stays() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("lib.so");
        let whole: Vec<u8> = (0..20_000_u32).map(|byte| byte as u8).collect();
        fs::write(&source, &whole).unwrap();
        let install =
            || InstalledLibraries::install(dir.path(), std::slice::from_ref(&source)).unwrap();
        let installed = install().folder().join("lib.so");
        let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&installed).unwrap());
        let first = inode();
        install();
        assert_eq!(inode(), first);
        let mut other = whole.clone();
        other[19_999] ^= 1;
        for damaged in [other, whole[..9000].to_vec(), [&whole[..], &whole].concat()] {
            fs::write(&installed, &damaged).unwrap();
            install();
            assert_eq!(fs::read(&installed).unwrap(), whole);
        }
    }
}
