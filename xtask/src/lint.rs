//! Everything that can be said about the sources without running them.

use anyhow::Result;

use crate::steps::{run, succeeds};
use crate::workspace::Workspace;

/// Checks both workspaces; the first complaint ends it.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    run(workspace.cargo().args(["fmt", "--all", "--check"]))?;
    run(workspace
        .cargo_of_preload()
        .args(["fmt", "--all", "--check"]))?;
    let deny = ["--", "--deny", "warnings"];
    run(workspace
        .cargo()
        .args(["clippy", "--workspace", "--all-targets"])
        .args(deny))?;
    // The preloaded library has no tests and brings its own panic handler: only the library is checked.
    run(workspace
        .cargo_of_preload()
        .args(["clippy", "--release"])
        .args(deny))?;
    run(workspace
        .cargo()
        .args(["doc", "--workspace", "--no-deps", "--quiet"])
        .env("RUSTDOCFLAGS", "--deny warnings"))?;
    run(workspace.cargo().args([
        "deny",
        "--all-features",
        "check",
        "bans",
        "licenses",
        "sources",
    ]))?;
    // The database of advisories is a git repository, which a machine may not reach.
    if !succeeds(workspace.cargo().args(["deny", "fetch", "db"])) {
        println!("left out: the advisories (their database cannot be reached)");
        return Ok(());
    }
    run(workspace
        .cargo()
        .args(["deny", "--all-features", "check", "advisories"]))
}
