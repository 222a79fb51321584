//! Everything that can be said about the sources without running them.

use anyhow::Result;

use crate::steps::{run, succeeds};
use crate::workspace::Workspace;

/// Checks both workspaces, and the form of the fuzz targets; the first complaint ends it.
///
/// What clippy and rustdoc make lies in a folder of its own, so that nobody who builds or tests waits for them.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let target = workspace.target.join("lint");
    let cargo = || workspace.cargo_in(&workspace.root, &target);
    let preload = workspace.root.join("cuda-intercept/preload");
    let cargo_of_preload = || workspace.cargo_in(&preload, &target);
    run(cargo().args(["fmt", "--all", "--check"]))?;
    run(cargo_of_preload().args(["fmt", "--all", "--check"]))?;
    let targets = workspace.root.join("tests/fuzz");
    run(workspace
        .cargo_in(&targets, &target)
        .args(["fmt", "--check"]))?;
    let deny = ["--", "--deny", "warnings"];
    run(cargo()
        .args(["clippy", "--workspace", "--all-targets"])
        .args(deny))?;
    // The preloaded library has no tests and brings its own panic handler: only the library is checked.
    run(cargo_of_preload().args(["clippy", "--release"]).args(deny))?;
    run(cargo()
        .args(["doc", "--workspace", "--no-deps", "--quiet"])
        .env("RUSTDOCFLAGS", "--deny warnings"))?;
    run(cargo().args([
        "deny",
        "--all-features",
        "check",
        "bans",
        "licenses",
        "sources",
    ]))?;
    // The database of advisories is a git repository, which a machine may not reach.
    if !succeeds(cargo().args(["deny", "fetch", "db"])) {
        println!("left out: the advisories (their database cannot be reached)");
        return Ok(());
    }
    run(cargo().args(["deny", "--all-features", "check", "advisories"]))
}
