//! The grants on disk: one CDI spec for each, in the folder where the container runtime reads CDI specs.
//!
//! A file is written under another extension and then renamed, because the runtime reads every file there with the
//! extension of CDI specs.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use apportion_runtime_class::cdi::{self, CdiSpecLabel};
use serde_json::Value;
use tracing::warn;

/// The folder of the files.
#[derive(Clone, Debug)]
pub(crate) struct CdiSpecDir {
    folder: PathBuf,
}

impl CdiSpecDir {
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// Writes the CDI spec of a slot.
    pub(crate) fn write(&self, slot: &str, file: &Value) -> io::Result<()> {
        let path = self.path(slot);
        let temporary = path.with_extension("tmp");
        fs::write(&temporary, file.to_string())?;
        fs::set_permissions(&temporary, Permissions::from_mode(0o644))?;
        fs::rename(&temporary, &path)
    }

    /// Removes the CDI spec of a slot.
    pub(crate) fn remove(&self, slot: &str) {
        match fs::remove_file(self.path(slot)) {
            Err(problem) if problem.kind() != io::ErrorKind::NotFound => {
                warn!(slot, %problem, "Failed to remove a grant");
            }
            _ => {}
        }
    }

    /// Whether the CDI spec of a slot exists.
    #[cfg(test)]
    fn exists(&self, slot: &str) -> bool {
        self.path(slot).exists()
    }

    /// The labels of the specs that earlier agents left. Removes specs with our name that cannot be read.
    pub(crate) fn found(&self) -> Vec<CdiSpecLabel> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| self.label(&entry.path()))
            .collect()
    }

    fn label(&self, path: &Path) -> Option<CdiSpecLabel> {
        let name = path.file_name()?.to_str()?;
        let is_ours = name.starts_with(cdi::file_name("").trim_end_matches(".json"));
        if !is_ours {
            return None;
        }
        let label = fs::read(path).ok().and_then(|text| cdi::read(&text).ok());
        let label = label.filter(|label| cdi::file_name(&label.slot) == name);
        if label.is_none() {
            let _ = fs::remove_file(path);
        }
        label
    }

    fn path(&self, slot: &str) -> PathBuf {
        self.folder.join(cdi::file_name(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_runtime_class::ContainerEdits;

    #[test]
    fn an_agent_finds_the_grants_of_the_one_before_and_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let specs = CdiSpecDir::new(dir.path()).unwrap();
        let label = CdiSpecLabel {
            slot: "s-0001".into(),
            pod: "u1".into(),
            allocation: "1-1".into(),
        };
        let file = cdi::render(
            &label,
            &ContainerEdits::default(),
            cdi::PassthroughEdits::default(),
        );
        specs.write("s-0001", &file).unwrap();
        fs::write(dir.path().join("nvidia.json"), "{}").unwrap();
        let half = dir.path().join("apportion.dev-grant-s-0002.tmp");
        fs::write(&half, "{").unwrap();
        assert_eq!(specs.found(), [label]);
        assert!(!half.exists() && dir.path().join("nvidia.json").exists());
        specs.remove("s-0001");
        specs.remove("s-0001");
        assert!(!specs.exists("s-0001"));
    }
}
