//! The grants on disk for a runtime without CDI: a folder for each slot, which the answer to `Allocate` mounts.
//!
//! The runtime resolves the folder's links when it creates a container, and keeps their targets mounted. So a folder
//! can be removed while its container runs, and without the folder no container can be created. A folder is written
//! under another name and then renamed, so it is always complete.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use apportion_runtime_class::cdi::CdiSpecLabel;
use apportion_runtime_class::slot::SlotContent;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tracing::warn;

/// The file that says whom a folder is for.
const LABEL: &str = "grant.json";

/// The parent of all slot folders.
#[derive(Clone, Debug)]
pub(crate) struct SlotFolders {
    root: PathBuf,
}

/// Why a slot's folder cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SlotFolderError {
    #[error("failed to create {path}")]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to create {path} like {of}")]
    Same {
        path: PathBuf,
        of: String,
        #[source]
        source: io::Error,
    },
    #[error("{0} is missing")]
    Missing(String),
}

impl SlotFolders {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The parent of all slot folders.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of a slot.
    pub(crate) fn path(&self, slot: &str) -> PathBuf {
        self.root.join(slot)
    }

    /// Whether a slot has a folder.
    pub(crate) fn has(&self, slot: &str) -> bool {
        self.path(slot).exists()
    }

    /// Writes the folder of a slot, in place of an existing one.
    pub(crate) fn write(
        &self,
        label: &CdiSpecLabel,
        contents: &[SlotContent],
    ) -> Result<(), SlotFolderError> {
        let new = self.root.join(format!(".{}", label.slot));
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| SlotFolderError::Make { path, source }
        };
        let _ = fs::remove_dir_all(&new);
        make_folder(&new).map_err(failed(&new))?;
        contents.iter().try_for_each(|content| put(&new, content))?;
        let text = serde_json::json!(label).to_string();
        fs::write(new.join(LABEL), text).map_err(failed(&new))?;
        let path = self.path(&label.slot);
        self.remove(&label.slot);
        fs::rename(&new, &path).map_err(failed(&path))
    }

    /// Removes the folder of a slot.
    pub(crate) fn remove(&self, slot: &str) {
        match fs::remove_dir_all(self.path(slot)) {
            Err(problem) if problem.kind() != io::ErrorKind::NotFound => {
                warn!(slot, %problem, "Failed to remove a grant");
            }
            _ => {}
        }
    }

    /// The labels of the folders that earlier agents left. Removes folders without a valid label.
    pub(crate) fn found(&self) -> Vec<CdiSpecLabel> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let label = label(&entry.path());
                if label.is_none() {
                    let _ = fs::remove_dir_all(entry.path());
                }
                label
            })
            .collect()
    }
}

fn label(folder: &Path) -> Option<CdiSpecLabel> {
    let text = fs::read(folder.join(LABEL)).ok()?;
    let label: CdiSpecLabel = serde_json::from_slice(&text).ok()?;
    (folder.file_name()? == label.slot.as_str()).then_some(label)
}

fn put(folder: &Path, content: &SlotContent) -> Result<(), SlotFolderError> {
    let made = |path: PathBuf, outcome: io::Result<()>| {
        outcome.map_err(|source| SlotFolderError::Make { path, source })
    };
    match content {
        SlotContent::Folder(name) => {
            let path = folder.join(name);
            let outcome = make_folder(&path);
            made(path, outcome)
        }
        // For a missing link target a runtime would create a folder and mount that.
        SlotContent::Link { to, .. } if !Path::new(to).exists() => {
            Err(SlotFolderError::Missing(to.clone()))
        }
        SlotContent::Link { path, to } => {
            let path = folder.join(path);
            let outcome = symlink(to, &path);
            made(path, outcome)
        }
        SlotContent::Device { path, of } => same(folder, path, of, make_device),
        SlotContent::Socket { path, of } => {
            same(folder, path, of, |of, path| fs::hard_link(of, path))
        }
    }
}

fn same(
    folder: &Path,
    path: &str,
    of: &str,
    make: impl FnOnce(&Path, &Path) -> io::Result<()>,
) -> Result<(), SlotFolderError> {
    let path = folder.join(path);
    let outcome = path.parent().map_or(Ok(()), make_folder);
    let outcome = outcome.and_then(|()| make(Path::new(of), &path));
    outcome.map_err(|source| SlotFolderError::Same {
        path,
        of: of.to_owned(),
        source,
    })
}

fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

fn make_device(of: &Path, path: &Path) -> io::Result<()> {
    let found = fs::metadata(of)?;
    let mode = Mode::from_raw_mode(found.mode() & 0o777);
    mknodat(CWD, path, FileType::CharacterDevice, mode, found.rdev())?;
    fs::set_permissions(path, Permissions::from_mode(found.mode() & 0o777))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileTypeExt;

    fn label() -> CdiSpecLabel {
        CdiSpecLabel {
            slot: "s-0001".into(),
            pod: "u1".into(),
            allocation: "1-1".into(),
        }
    }

    #[test]
    fn a_folder_is_there_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let folders = SlotFolders::new(dir.path().join("slots"));
        let link = |to: &Path| SlotContent::Link {
            path: "limits".into(),
            to: to.display().to_string(),
        };
        let missing = folders.write(&label(), &[link(&dir.path().join("limits"))]);
        assert!(matches!(missing, Err(SlotFolderError::Missing(_))));
        assert!(!folders.has("s-0001"));

        fs::write(dir.path().join("limits"), "one").unwrap();
        folders
            .write(&label(), &[link(&dir.path().join("limits"))])
            .unwrap();
        let read = || fs::read_to_string(folders.path("s-0001").join("limits")).unwrap();
        assert_eq!(read(), "one");
        fs::write(dir.path().join("other"), "two").unwrap();
        folders
            .write(&label(), &[link(&dir.path().join("other"))])
            .unwrap();
        assert_eq!(read(), "two");
        assert_eq!(folders.found(), [label()]);
        folders.remove("s-0001");
        assert!(!folders.has("s-0001") && folders.found().is_empty());
    }

    #[test]
    fn what_an_agent_left_half_done_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        let folders = SlotFolders::new(dir.path().to_owned());
        fs::create_dir(dir.path().join(".s-0001")).unwrap();
        fs::create_dir(dir.path().join("s-0002")).unwrap();
        assert!(folders.found().is_empty());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_device_file_is_the_same_device() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("null");
        match make_device(Path::new("/dev/null"), &path) {
            // Only root may create device files.
            Err(problem) if problem.kind() == io::ErrorKind::PermissionDenied => return,
            made => made.unwrap(),
        }
        let (made, null) = (
            fs::metadata(&path).unwrap(),
            fs::metadata("/dev/null").unwrap(),
        );
        assert!(made.file_type().is_char_device());
        assert_eq!((made.rdev(), made.mode()), (null.rdev(), null.mode()));
    }
}
