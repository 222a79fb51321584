//! An image as one tar that every container tool reads: a layer, its digest, a configuration and a list.
//!
//! The same files give the same bytes: the order is that of the paths, times and owners are zero.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::Image;
use super::files::{Files, Source};

/// Folders that programs expect, even empty; the last is for everybody.
const FOLDERS: [&str; 5] = ["dev", "proc", "sys", "run", "tmp"];

/// Packs `image` into a file in `folder`; returns the file.
pub(super) fn pack(image: &Image, folder: &Path) -> Result<PathBuf> {
    let packing = || format!("failed to pack {}", image.name);
    let layer = layer(&image.files).with_context(packing)?;
    let digest: String = Sha256::digest(&layer)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": image.entrypoint, "Env": image.env, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    let list =
        json!([{"Config": "config.json", "RepoTags": [image.name], "Layers": ["layer.tar"]}]);

    fs::create_dir_all(folder).with_context(packing)?;
    let name = image.name.replace(['/', ':'], "_");
    let path = folder.join(format!("{name}.tar"));
    let mut tar = Builder::new(File::create(&path).with_context(packing)?);
    for (name, bytes) in [
        ("layer.tar", layer),
        ("config.json", config.to_string().into_bytes()),
        ("manifest.json", list.to_string().into_bytes()),
    ] {
        append(&mut tar, Path::new(name), 0o644, &bytes).with_context(packing)?;
    }
    tar.into_inner().with_context(packing)?;
    Ok(path)
}

fn layer(files: &Files) -> Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    for folder in folders(files) {
        let mode = if folder == Path::new("tmp") {
            0o1777
        } else {
            0o755
        };
        let mut header = header(EntryType::Directory, mode, 0);
        tar.append_data(&mut header, folder, std::io::empty())?;
    }
    for (path, source) in &files.0 {
        let path = below_root(path);
        match source {
            Source::Text(text) => append(&mut tar, path, 0o644, text.as_bytes())?,
            Source::Script(text) => append(
                &mut tar,
                path,
                0o755,
                format!("#!/bin/sh\n{text}\n").as_bytes(),
            )?,
            Source::Link(to) => {
                tar.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, to)?;
            }
            Source::Copy(from) => {
                let mode = fs::metadata(from)?.permissions().mode() & 0o777;
                append(&mut tar, path, mode | 0o444, &fs::read(from)?)?;
            }
        }
    }
    Ok(tar.into_inner()?)
}

/// Every folder above a file, outer ones first.
fn folders(files: &Files) -> BTreeSet<PathBuf> {
    let above = files
        .0
        .keys()
        .flat_map(|path| below_root(path).ancestors().skip(1));
    let above = above.filter(|path| !path.as_os_str().is_empty());
    above
        .map(Path::to_owned)
        .chain(FOLDERS.map(PathBuf::from))
        .collect()
}

fn below_root(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn append<W: std::io::Write>(
    tar: &mut Builder<W>,
    path: &Path,
    mode: u32,
    bytes: &[u8],
) -> Result<()> {
    let size = u64::try_from(bytes.len())?;
    tar.append_data(&mut header(EntryType::Regular, mode, size), path, bytes)?;
    Ok(())
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header
}
