//! Container images without a registry and without a container engine: a root file system made of built programs, as
//! one archive that every container tool reads.
//!
//! [`released`] lists what is in the images that people install. The local cluster makes its own images in the same way.
//! Programs bring the libraries that they are linked to, as the loader finds them, so an image runs wherever the
//! machine's own programs do.

#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::Result;

mod archive;
mod files;
mod platform;

pub use archive::{ImageArchive, digests, index, pack};
pub use files::ImageFiles;
pub use platform::Platform;

/// The images that people install: the agent without a userland, and the scheduler, which is also the webhook.
pub const RELEASED: [&str; 2] = [
    concat!("docker.io/apportion/agent:", env!("CARGO_PKG_VERSION")),
    concat!("docker.io/apportion/scheduler:", env!("CARGO_PKG_VERSION")),
];

/// An image before it is packed.
pub struct ContainerImage {
    /// Its full name, with registry and tag.
    pub name: &'static str,
    /// What a container runs unless its pod says otherwise.
    pub entrypoint: &'static [&'static str],
    /// Its environment.
    pub env: &'static [&'static str],
    /// Its labels besides its version.
    pub labels: &'static [(&'static str, &'static str)],
    /// Its root file system.
    pub files: ImageFiles,
}

/// The environment of images that set nothing else.
pub const ENV: &[&str] = &["PATH=/usr/bin:/bin"];
const TITLE_OF_AGENT: (&str, &str) = ("org.opencontainers.image.title", "Apportion agent");
const TITLE_OF_SCHEDULER: (&str, &str) = ("org.opencontainers.image.title", "Apportion scheduler");
const LICENCE: (&str, &str) = ("org.opencontainers.image.licenses", "Apache-2.0");
/// The libraries that the driver's libraries are linked to. The runtime or a mount brings the driver's libraries into
/// the agent's container without them. The agent itself needs none of them.
const NVMLS: &[&str] = &["libpthread.so.0", "libdl.so.2", "libm.so.6", "librt.so.1"];

/// The images that people install, from the tree of `cargo xtask build`, for this machine.
///
/// # Errors
/// If a program is not there.
pub fn released(staged: &Path) -> Result<[ContainerImage; 2]> {
    released_for(Platform::HOST, staged)
}

/// The same for a platform. `staged` is the tree of `cargo xtask build --target`.
///
/// # Errors
/// If a program, or a library that it needs, is not there.
pub fn released_for(platform: Platform, staged: &Path) -> Result<[ContainerImage; 2]> {
    let mut agent = ImageFiles::of(platform);
    for name in ["apportion-agent", "apportion"] {
        let place = Path::new("/usr/bin").join(name);
        agent.program(&staged.join("bin").join(name), &place)?;
    }
    agent.tree(&staged.join("lib"), Path::new("/usr/lib"))?;
    agent.beside_libc(NVMLS)?;
    let mut scheduler = ImageFiles::of(platform);
    let name = "bin/apportion-scheduler";
    scheduler.program(&staged.join(name), &Path::new("/usr").join(name))?;
    let [agent_name, scheduler_name] = RELEASED;
    Ok([
        ContainerImage {
            name: agent_name,
            entrypoint: &["/usr/bin/apportion-agent"],
            env: ENV,
            labels: &[TITLE_OF_AGENT, LICENCE],
            files: agent,
        },
        ContainerImage {
            name: scheduler_name,
            entrypoint: &["/usr/bin/apportion-scheduler"],
            env: ENV,
            labels: &[TITLE_OF_SCHEDULER, LICENCE],
            files: scheduler,
        },
    ])
}
