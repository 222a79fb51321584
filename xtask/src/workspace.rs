//! Where things are: the sources, and the folder for build results.
//!
//! Cargo's own choices are followed (`CARGO_TARGET_DIR`, the cargo that runs us). So several checkouts or several
//! people on one machine do not build into each other's folders.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use apportion_image::Platform;

use crate::cross::CrossBuild;

/// The prefixes of the variables in which `cargo run` describes the crate that it runs.
const DESCRIBED: [&str; 2] = ["CARGO_MANIFEST_", "CARGO_PKG_"];

/// The checkout that this program was built from.
pub(crate) struct Workspace {
    /// The folder of the root manifest.
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
    /// How to build for another platform; `None` for this machine's.
    cross: Option<CrossBuild>,
}

impl Workspace {
    /// Finds the checkout from the manifest of this crate and the target folder from Cargo's environment.
    pub(crate) fn find() -> Result<Self> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR").context("start this as `cargo xtask`")?;
        let root = Path::new(&manifest)
            .parent()
            .context("xtask has no parent folder")?;
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
        // Like Cargo, take a relative target folder from the current directory.
        let base = if target == Path::new("target") {
            root.into()
        } else {
            env::current_dir()?
        };
        Ok(Self {
            root: root.into(),
            target: base.join(target),
            cross: None,
        })
    }

    /// The same checkout, building for a platform. Another platform has its own target folder, because its compiler may
    /// be another one.
    pub(crate) fn for_platform(&self, platform: Platform) -> Result<Self> {
        let cross = CrossBuild::find(self, platform)?;
        let target = match cross {
            Some(_) => self.target.join("cross"),
            None => self.target.clone(),
        };
        Ok(Self {
            root: self.root.clone(),
            target,
            cross,
        })
    }

    /// The platform that is built for.
    pub(crate) fn platform(&self) -> Platform {
        let cross = self.cross.as_ref();
        cross.map_or(Platform::HOST, |cross| cross.platform)
    }

    /// A program of the C toolchain for the platform: `cc`, `strip`.
    pub(crate) fn c_tool(&self, name: &str) -> Command {
        match &self.cross {
            None => Command::new(name),
            Some(cross) => {
                let name = if name == "cc" { "gcc" } else { name };
                Command::new(format!("{}-{name}", cross.platform.gnu()))
            }
        }
    }

    /// Where Cargo puts what it builds into `target` in a profile (`debug`, `release`).
    pub(crate) fn built(&self, target: &Path, profile: &str) -> PathBuf {
        match &self.cross {
            None => target.join(profile),
            Some(cross) => target.join(cross.platform.triple()).join(profile),
        }
    }

    /// The folder with the staged programs and libraries. Optimised ones have their own, so that they can be built
    /// while tests use the other.
    pub(crate) fn staged(&self, release: bool) -> PathBuf {
        self.target.join(if release {
            "apportion-release"
        } else {
            "apportion"
        })
    }

    /// Cargo on the workspace itself.
    pub(crate) fn cargo(&self) -> Command {
        self.cargo_in(&self.root, &self.target)
    }

    /// `cargo build` of programs and libraries for tests, with the features of `cargo test --workspace`.
    ///
    /// Cargo resolves features for the packages and target kinds that a command names. The workspace and one test make
    /// it choose as for all tests, so no dependency is compiled twice.
    pub(crate) fn cargo_build_for_tests(&self) -> Command {
        let mut cargo = self.cargo();
        cargo.args(["build", "--workspace", "--test", "functions"]);
        cargo
    }

    /// Cargo on the preloaded library, which is its own workspace.
    pub(crate) fn cargo_of_preload(&self) -> Command {
        self.cargo_in(
            &self.root.join("cuda-intercept/preload"),
            &self.target.join("preload"),
        )
    }

    /// Cargo in `folder`, building into `target`.
    pub(crate) fn cargo_in(&self, folder: &Path, target: &Path) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(folder).env("CARGO_TARGET_DIR", target);
        // `cargo run` describes this crate in the environment. The crates built below must not see that: those that
        // read such a variable (ring) would be rebuilt, with everything that depends on them.
        let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let of_this_crate = names.filter(|name| {
            DESCRIBED
                .iter()
                .any(|described| name.starts_with(described))
        });
        of_this_crate.for_each(|name| {
            cargo.env_remove(name);
        });
        let cross = self.cross.iter().flat_map(|cross| &cross.environment);
        cargo.envs(cross.map(|(name, value)| (name, value)));
        cargo
    }
}
