//! How containerd builds a container's root file system: as an overlay if the kernel and the folder's file system allow
//! it, else as a copy. A copy works everywhere but costs the image's size each time.

use std::fs;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::folder::ClusterFolder;

const OVERLAY: &str = "overlayfs";
const COPY: &str = "native";

/// The better snapshotter that works below `folder`, found by trying.
pub(crate) fn choose(folder: &ClusterFolder) -> &'static str {
    let place = folder.path().join("overlay");
    let works = try_overlay(&place).is_ok();
    let _ = fs::remove_dir_all(&place);
    if works { OVERLAY } else { COPY }
}

fn try_overlay(place: &Path) -> std::io::Result<()> {
    let made = |name: &str| {
        let path = place.join(name);
        fs::create_dir_all(&path)?;
        Ok::<_, std::io::Error>(path)
    };
    let (lower, upper) = (made("lower")?, made("upper")?);
    let (work, merged) = (made("work")?, made("merged")?);
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display(),
    );
    let kind = Some("overlay");
    mount(
        kind,
        &merged,
        kind,
        MsFlags::empty(),
        Some(options.as_str()),
    )?;
    Ok(umount2(&merged, MntFlags::MNT_DETACH)?)
}
