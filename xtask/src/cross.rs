//! Builds for another platform than this machine's.
//!
//! The C compiler is the distribution's cross compiler. Rust's standard library for the platform comes from rustup
//! (`rustup target add`). Where rustup reaches no server, Debian's compiler of the same or a newer release is unpacked
//! with the standard library that belongs to it (`xtask/debian-rust`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use apportion_image::Platform;

use crate::steps::{run, succeeds};
use crate::workspace::Workspace;

/// How to build for a platform.
#[derive(Debug)]
pub(crate) struct CrossBuild {
    pub(crate) platform: Platform,
    /// What Cargo's environment gets.
    pub(crate) environment: Vec<(String, OsString)>,
}

impl CrossBuild {
    /// Finds the compilers for a platform; `None` for this machine's own.
    pub(crate) fn find(workspace: &Workspace, platform: Platform) -> Result<Option<Self>> {
        if platform == Platform::HOST {
            return Ok(None);
        }
        let (triple, compiler) = (platform.triple(), format!("{}-gcc", platform.gnu()));
        if !succeeds(Command::new(&compiler).arg("--version")) {
            bail!(
                "{compiler} is missing; hint: apt-get install gcc-{} libc6-dev-{platform}-cross",
                platform.gnu()
            );
        }
        let name = triple.replace('-', "_");
        let mut environment = vec![
            ("CARGO_BUILD_TARGET".to_owned(), triple.into()),
            (
                format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()),
                compiler.clone().into(),
            ),
            (format!("CC_{name}"), compiler.into()),
        ];
        if !has_standard_library(&workspace.root, triple)? {
            let folder = workspace.target.join("cross/rust");
            let rustc = folder.join("rustc");
            if !rustc.exists() {
                run(Command::new(workspace.root.join("xtask/debian-rust"))
                    .arg(&folder)
                    .arg(platform.architecture()))
                .context("there is no Rust for the platform; hint: rustup target add")?;
            }
            environment.push(("RUSTC".to_owned(), rustc.into()));
        }
        Ok(Some(Self {
            platform,
            environment,
        }))
    }
}

/// Whether the compiler of this checkout has the standard library of a target.
fn has_standard_library(root: &Path, triple: &str) -> Result<bool> {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", triple])
        .current_dir(root)
        .output()
        .context("failed to start rustc")?;
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    Ok(output.status.success() && folder.is_dir())
}
