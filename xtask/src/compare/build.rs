//! Compiles the programs of the comparison.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::steps::{run, succeeds};
use crate::workspace::Workspace;

/// Their folder, below the root of the sources.
const SOURCES: &str = "tests/compare/programs";
/// The sources of `ways`.
const WAYS: [&str; 8] = [
    "ways.c",
    "doors.c",
    "symbol_table.c",
    "memory.c",
    "pools.c",
    "physical.c",
    "graphs.c",
    "code.c",
];
/// The compiler options of all programs.
const OPTIONS: [&str; 5] = ["-std=c17", "-O1", "-Wall", "-Wextra", "-Werror"];

/// The folder with the programs.
#[derive(Debug)]
pub(crate) struct ComparePrograms {
    folder: PathBuf,
}

impl ComparePrograms {
    /// The path of one program.
    pub(crate) fn named(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

pub(crate) fn programs(
    workspace: &Workspace,
    staged: &Path,
    folder: &Path,
) -> Result<ComparePrograms> {
    let programs = ComparePrograms {
        folder: folder.join("programs"),
    };
    fs::create_dir_all(&programs.folder)
        .with_context(|| format!("failed to make {}", programs.folder.display()))?;
    let driver = staged.join("lib/apportion/sim/libcuda.so.1");
    let driver = driver
        .to_str()
        .context("the target folder has a plain name")?;
    let cc = |to: &str, options: &[&str], sources: &[&str]| {
        let mut cc = Command::new("cc");
        cc.current_dir(workspace.root.join(SOURCES))
            .args(OPTIONS)
            .arg("-o")
            .arg(programs.named(to))
            .args(sources)
            .args(options)
            .args(["-ldl", "-lpthread"]);
        cc
    };
    let library = ["-shared", "-fPIC"];
    let linked: Vec<&str> = WAYS.into_iter().chain(["linked.c"]).collect();
    run(&mut cc("ways", &[], &WAYS))?;
    run(&mut cc("ways-linked", &["-DLINKED", driver], &linked))?;
    run(&mut cc("plugin.so", &library, &["plugin.c"]))?;
    run(&mut cc(
        "plugin-linked.so",
        &["-shared", "-fPIC", driver],
        &["linked.c"],
    ))?;
    run(&mut cc("harm", &[], &["harm.c"]))?;
    run(&mut cc("kill", &[], &["kill.c"]))?;
    run(&mut cc("costs", &[], &["costs.c"]))?;
    run(&mut cc("manners", &[], &["manners.c"]))?;
    // Everything that the driver exports, except what the test double answers itself.
    let answered = [
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuMemGetInfo_v2",
        "cuLaunchKernel",
    ];
    let exports = super::invalid_arguments::exports(staged)?;
    let forwarded = exports
        .iter()
        .filter(|name| !answered.contains(&name.as_str()));
    let lines: String = forwarded.map(|name| format!("FORWARD({name})\n")).collect();
    let names = programs.named("names.h");
    fs::write(&names, lines).context("failed to write the names")?;
    let names = format!("-DNAMES=\"{}\"", names.display());
    fs::create_dir_all(programs.named("double"))?;
    let options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", &names];
    run(&mut cc(
        "double/libcuda.so.1",
        &options,
        &["double.c", "symbol_table.c"],
    ))?;
    // glibc warns that a static program which opens libraries needs the same glibc at run time. Here it has it.
    if !succeeds(&mut cc("ways-static", &["-static"], &WAYS)) {
        println!("left out: the static program (no static C library)");
    }
    Ok(programs)
}
