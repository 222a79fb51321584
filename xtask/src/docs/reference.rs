//! The generated parts of the reference. The programs' tests compare them with the code, and write them here.

use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::test_programs;
use crate::workspace::Workspace;

/// If this is set, the tests write the reference and do not compare it.
const UPDATE: &str = "APPORTION_UPDATE_REFERENCE";
/// Parts of the names of those tests.
const TESTS: &[&str] = &["the_reference_has", "the_pages_show"];

/// Writes the generated parts of the reference.
pub(crate) fn update(workspace: &Workspace) -> Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args([
        "test",
        "--workspace",
        "--lib",
        "--bins",
        "--test",
        "reference",
        "--test",
        "pages",
    ]);
    for program in test_programs::build(&mut cargo)? {
        let mut command = program.command();
        command.args(TESTS).env(UPDATE, "1").stdin(Stdio::null());
        let output = command
            .output()
            .with_context(|| format!("failed to start the tests of {}", program.package))?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stdout));
        }
    }
    Ok(())
}
