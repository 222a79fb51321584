//! One folder for a machine with a card: programs without debug information, the libraries, and the script that runs
//! them. It needs no checkout, no network and no compiler there.
//!
//! Machines with cards are lent for minutes, and uploads are limited, so the folder must stay below a maximum size.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::stage;
use crate::steps::run;
use crate::workspace::Workspace;

/// The maximum size of a pack.
const MOST: u64 = 60 << 20;
/// Staged files that are not packed, because they are not used there.
const LEFT_BEHIND: &[&str] = &["bin/apportion-scheduler", "bin/kubectl-apportion"];
/// What is packed besides the staged tree, and the packages that build it.
const PROGRAMS: &[&str] = &[
    "apportion-conformance",
    "apportion-bench",
    "victim",
    "victim-linked",
];
const PACKAGES: &[&str] = &[
    "apportion-conformance",
    "apportion-benches",
    "apportion-tests",
];
/// The packed parts of `tests/gpu`: the script, its modules, its programs, and the manual.
const SCRIPTS: &[&str] = &["run", "README.md", "tier", "programs"];
/// The file that describes the pack's programs.
const ABOUT: &str = "pack.json";
/// The folder of the staged tree in the pack.
const STAGED: &str = "apportion";

/// Whether the programs are optimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuildProfile {
    /// Optimised, and the size is checked.
    Release,
    /// Not optimised, and the size is not checked: such a pack is for tests on this machine.
    Debug,
}

impl BuildProfile {
    fn folder(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Debug => "debug",
        }
    }
}

/// Builds everything and packs it into `out`, which is replaced if it is an earlier pack.
pub(crate) fn make(workspace: &Workspace, profile: BuildProfile, out: &Path) -> Result<()> {
    if out.exists() && !out.join(ABOUT).exists() {
        bail!(
            "{} is there and is no pack; hint: name another folder",
            out.display()
        );
    }
    let staged = stage::build(workspace, profile == BuildProfile::Release)?;
    run(&mut build(workspace, profile))?;

    // Fills another folder first, so that there is never half a pack.
    let new = out.with_extension("new");
    remove(&new)?;
    let programs = workspace.target.join(profile.folder());
    fill(workspace, &staged, &programs, profile, &new)?;
    let size = size(&new)?;
    if profile == BuildProfile::Release {
        refuse_above(MOST, size, &new)?;
    }
    remove(out)?;
    fs::rename(&new, out).with_context(|| format!("failed to make {}", out.display()))?;
    println!("{}  {:.1} MiB", out.display(), mib(size));
    Ok(())
}

/// Builds what is packed besides the staged tree.
fn build(workspace: &Workspace, profile: BuildProfile) -> Command {
    if profile == BuildProfile::Debug {
        let mut cargo = workspace.cargo_build_for_tests();
        cargo.args(PROGRAMS.iter().flat_map(|name| ["--bin", name]));
        return cargo;
    }
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--release", "--bins"]);
    cargo.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    cargo
}

fn fill(
    workspace: &Workspace,
    staged: &Path,
    programs: &Path,
    profile: BuildProfile,
    new: &Path,
) -> Result<()> {
    stage::install(staged, &new.join(STAGED))?;
    for path in LEFT_BEHIND {
        remove(&new.join(STAGED).join(path))?;
    }
    for name in PROGRAMS {
        copy(&programs.join(name), &new.join("bin").join(name))?;
    }
    strip(&new.join(STAGED))?;
    strip(&new.join("bin"))?;
    let scripts = workspace.root.join("tests/gpu");
    for name in SCRIPTS {
        copy(&scripts.join(name), &new.join(name))?;
    }
    let about = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": commit(workspace),
        "profile": profile.folder(),
    });
    write(&new.join(ABOUT), format!("{about:#}\n").as_bytes())?;
    write(&new.join("simulated.jsonl"), &simulated_facts(new)?)
}

/// The results of the conformance cases on the simulated driver, to compare a card's answers with.
fn simulated_facts(pack: &Path) -> Result<Vec<u8>> {
    let instance = pack.with_extension("instance");
    remove(&instance)?;
    let conformance = pack.join("bin/apportion-conformance");
    let daemon = pack.join(STAGED).join("lib/apportion/apportion-simd");
    let socket = instance.join("driver.sock");
    fs::create_dir_all(&instance).context("failed to make a folder for the simulated machine")?;
    let mut daemon = Command::new(daemon)
        .arg("--socket")
        .arg(&socket)
        .stdin(Stdio::null())
        .spawn()
        .context("failed to start the simulated machine")?;
    let output = wait_for(&socket).and_then(|()| {
        Command::new(conformance)
            .env(
                "LD_LIBRARY_PATH",
                pack.join(STAGED).join("lib/apportion/sim"),
            )
            .env("APPORTION_SIM_SOCKET", &socket)
            .stdin(Stdio::null())
            .output()
            .context("failed to ask the simulated machine")
    });
    // A process that has ended already needs no kill.
    let _ = daemon.kill();
    let _ = daemon.wait();
    remove(&instance)?;
    let output = output?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!(
            "the simulated driver is not as documented: {}",
            message.trim()
        );
    }
    Ok(output.stdout)
}

fn wait_for(socket: &Path) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(20);
    while UnixStream::connect(socket).is_err() {
        if Instant::now() > end {
            bail!("the simulated machine does not serve");
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The commit of the checkout, if Git knows it.
fn commit(workspace: &Workspace) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(&workspace.root);
    let output = git
        .args(["describe", "--always", "--dirty"])
        .output()
        .ok()?;
    let commit = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| commit.trim().to_owned())
}

/// Refuses a pack that is too large, and lists the largest files.
fn refuse_above(most: u64, size: u64, pack: &Path) -> Result<()> {
    if size <= most {
        return Ok(());
    }
    let mut files: Vec<(u64, PathBuf)> = files(pack)?;
    files.sort();
    let largest = files.iter().rev().take(5);
    let named: Vec<String> = largest
        .map(|(size, path)| format!("{} {:.1} MiB", path.display(), mib(*size)))
        .collect();
    bail!(
        "the pack has {:.1} MiB and may have {:.1}; the largest: {}",
        mib(size),
        mib(most),
        named.join(", ")
    )
}

#[expect(clippy::cast_precision_loss, reason = "it is printed with one decimal")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn size(pack: &Path) -> Result<u64> {
    Ok(files(pack)?.iter().map(|(size, _)| size).sum())
}

/// The files below a folder with their sizes; links are skipped.
fn files(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    let failed = || format!("failed to read {}", folder.display());
    for entry in fs::read_dir(folder).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let about = entry.metadata().with_context(failed)?;
        if about.is_dir() {
            found.extend(files(&entry.path())?);
        } else if about.is_file() {
            found.push((about.len(), entry.path()));
        }
    }
    Ok(found)
}

/// Copies a file, or a folder without Python's caches.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("failed to copy {}", from.display());
    if from.is_dir() {
        for entry in fs::read_dir(from).with_context(failed)? {
            let name = entry.with_context(failed)?.file_name();
            if name != "__pycache__" {
                copy(&from.join(&name), &to.join(&name))?;
            }
        }
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(failed)?;
    }
    fs::copy(from, to).map(drop).with_context(failed)
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).with_context(|| format!("failed to write {}", path.display()))
}

/// Strips every program and library.
fn strip(folder: &Path) -> Result<()> {
    for (_, path) in files(folder)? {
        let mut program = Command::new("strip");
        run(program.arg("--strip-unneeded").arg(&path))?;
    }
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    let done = match fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(about) if about.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    done.with_context(|| format!("failed to remove {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pack_above_its_size_is_refused_by_name_of_what_is_large() {
        let pack = std::env::temp_dir().join(format!("gpu-pack-size-{}", std::process::id()));
        fs::create_dir_all(pack.join("bin")).unwrap();
        fs::write(pack.join("bin/large"), vec![0; 3000]).unwrap();
        fs::write(pack.join("small"), [0; 10]).unwrap();
        let size = size(&pack).unwrap();
        let (fits, above) = (
            refuse_above(3010, size, &pack),
            refuse_above(3009, size, &pack),
        );
        fs::remove_dir_all(&pack).unwrap();
        assert_eq!(size, 3010);
        assert!(fits.is_ok());
        assert!(above.unwrap_err().to_string().contains("bin/large"));
    }
}
