//! All checks of the sources that do not run them.

use anyhow::Result;

use crate::steps::{run, succeeds};
use crate::workspace::Workspace;

/// Checks both workspaces, and the format of the fuzz targets. Stops at the first error.
///
/// clippy and rustdoc build into their own folder, so that other builds and tests do not wait for them.
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
    // The preloaded library has no tests and its own panic handler, so only the library is checked.
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
    // The advisory database is a git repository, which may not be reachable.
    if !succeeds(cargo().args(["deny", "fetch", "db"])) {
        println!("left out: the advisories (their database cannot be reached)");
        return Ok(());
    }
    run(cargo().args(["deny", "--all-features", "check", "advisories"]))
}
