//! Atomic file replacement: after a crash the file has either its old or its new content.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces the file at `path`.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let replaced = write_and_rename(&temporary, path, content);
    if replaced.is_err() {
        // On a full file system a partial file would only take up space.
        let _ = fs::remove_file(&temporary);
    }
    replaced
}

fn write_and_rename(temporary: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    // The rename is durable only after an fsync of the folder.
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
