//! The tree that runs: programs in `bin`, their libraries in `lib/apportion`.
//!
//! One row per file says which package builds it, how Cargo names it and where it goes. Files are replaced by renaming,
//! so that a running program keeps the file it was started from.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result};

use crate::steps::run;
use crate::workspace::Workspace;

mod runtime;

struct StagedFile {
    /// The workspace package that builds it.
    package: &'static str,
    /// Its name in Cargo's profile folder.
    made: &'static str,
    /// Its place in the staged tree.
    placed: &'static str,
}

const ROWS: &[StagedFile] = &[
    StagedFile {
        package: "apportion",
        made: "apportion",
        placed: "bin/apportion",
    },
    StagedFile {
        package: "apportion",
        made: "kubectl-apportion",
        placed: "bin/kubectl-apportion",
    },
    StagedFile {
        package: "apportion-agent",
        made: "apportion-agent",
        placed: "bin/apportion-agent",
    },
    StagedFile {
        package: "apportion-scheduler",
        made: "apportion-scheduler",
        placed: "bin/apportion-scheduler",
    },
    StagedFile {
        package: "apportion-probe",
        made: "apportion-probe",
        placed: "lib/apportion/apportion-probe",
    },
    StagedFile {
        package: "apportion-sim-daemon",
        made: "apportion-simd",
        placed: "lib/apportion/apportion-simd",
    },
    StagedFile {
        package: "apportion-sim-cuda",
        made: "libcuda.so",
        placed: "lib/apportion/sim/libcuda.so.1",
    },
    StagedFile {
        package: "apportion-sim-nvml",
        made: "libnvidia_ml.so",
        placed: "lib/apportion/sim/libnvidia-ml.so.1",
    },
];

/// Links without a version, which some programs try first. Without the links they would find the real driver on a
/// machine that has one, and not the simulated one.
const LINKS: &[(&str, &str)] = &[
    ("lib/apportion/sim/libcuda.so", "libcuda.so.1"),
    ("lib/apportion/sim/libnvidia-ml.so", "libnvidia-ml.so.1"),
];

/// The preloaded library: Cargo's name is its staged name.
pub(crate) const PRELOAD: &str = "libapportion_cuda.so";

/// Builds both workspaces and stages the results. Returns the staged tree.
pub(crate) fn build(workspace: &Workspace, release: bool) -> Result<PathBuf> {
    run(&mut programs(workspace, release))?;
    run(workspace.cargo_of_preload().args(["build", "--release"]))?;

    let profile = if release { "release" } else { "debug" };
    let made = workspace.built(&workspace.target, profile);
    let staged = workspace.staged(release);
    for row in ROWS {
        place(&made.join(row.made), &staged.join(row.placed))?;
    }
    for major in runtime::MAJORS {
        let library = runtime::link(workspace, &made, major)?;
        place(&library, &staged.join(runtime::placed(major)))?;
    }
    stage_preload(workspace, &staged)?;
    link(&staged)?;
    Ok(staged)
}

/// Builds and stages only the preloaded library and the simulated driver.
pub(crate) fn build_for_hooked_programs(workspace: &Workspace) -> Result<PathBuf> {
    let rows = || {
        ROWS.iter()
            .filter(|row| row.package.starts_with("apportion-sim"))
    };
    let mut cargo = workspace.cargo();
    cargo.arg("build");
    run(cargo.args(rows().flat_map(|row| ["--package", row.package])))?;
    run(workspace.cargo_of_preload().args(["build", "--release"]))?;
    let made = workspace.built(&workspace.target, "debug");
    let staged = workspace.staged(false);
    for row in rows() {
        place(&made.join(row.made), &staged.join(row.placed))?;
    }
    stage_preload(workspace, &staged)?;
    link(&staged)?;
    Ok(staged)
}

fn stage_preload(workspace: &Workspace, staged: &Path) -> Result<()> {
    let preload = workspace
        .built(&workspace.target.join("preload"), "release")
        .join(PRELOAD);
    place(&preload, &staged.join("lib/apportion").join(PRELOAD))
}

/// Builds the packages of the rows. Releases have no test-only features; builds for tests have all features.
fn programs(workspace: &Workspace, release: bool) -> process::Command {
    if release {
        let mut cargo = workspace.cargo();
        cargo.args(["build", "--release"]);
        cargo.args(ROWS.iter().flat_map(|row| ["--package", row.package]));
        cargo.args(["--package", runtime::PACKAGE]);
        return cargo;
    }
    let mut cargo = workspace.cargo_build_for_tests();
    cargo.arg("--lib");
    let programs = ROWS.iter().filter(|row| !row.made.ends_with(".so"));
    cargo.args(programs.flat_map(|row| ["--bin", row.made]));
    cargo
}

/// The packages of the staged programs and libraries whose place `is_wanted`.
pub(crate) fn packages(is_wanted: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let rows = ROWS.iter().filter(|row| is_wanted(row.placed));
    let runtime = is_wanted(&runtime::placed(runtime::MAJORS[0])).then_some(runtime::PACKAGE);
    rows.map(|row| row.package).chain(runtime).collect()
}

/// Copies the staged tree below `prefix`.
pub(crate) fn install(staged: &Path, prefix: &Path) -> Result<()> {
    let placed = ROWS.iter().map(|row| row.placed.to_owned());
    let placed = placed.chain(runtime::MAJORS.map(runtime::placed));
    for path in placed.chain([format!("lib/apportion/{PRELOAD}")]) {
        place(&staged.join(&path), &prefix.join(&path))?;
    }
    link(prefix)
}

/// Removes debug information, which is most of their size, from the programs below `tree`.
pub(crate) fn strip(workspace: &Workspace, tree: &Path) -> Result<()> {
    for row in ROWS {
        run(workspace
            .c_tool("strip")
            .arg("--strip-debug")
            .arg(tree.join(row.placed)))?;
    }
    Ok(())
}

/// Creates the links below `tree`.
fn link(tree: &Path) -> Result<()> {
    for (path, to) in LINKS {
        let path = tree.join(path);
        if fs::read_link(&path).is_ok_and(|present| present == Path::new(to)) {
            continue;
        }
        let _ = fs::remove_file(&path);
        symlink(to, &path).with_context(|| format!("failed to link {}", path.display()))?;
    }
    Ok(())
}

/// Replaces `to` by a copy of `from`, unless it has the same content already.
fn place(from: &Path, to: &Path) -> Result<()> {
    let wanted = fs::read(from).with_context(|| format!("failed to read {}", from.display()))?;
    if fs::read(to).is_ok_and(|present| present == wanted) {
        return Ok(());
    }
    let folder = to.parent().context("a staged file has a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let new = to.with_extension(format!("new-{}", process::id()));
    fs::copy(from, &new).with_context(|| format!("failed to write {}", new.display()))?;
    fs::rename(&new, to).with_context(|| format!("failed to replace {}", to.display()))
}
