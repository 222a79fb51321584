//! Images without a registry: root file systems with programs of this machine, loaded into containerd.
//!
//! One row per image lists its contents. Programs bring the libraries that they are linked to, as this machine's loader
//! finds them, so an image runs wherever the machine's own programs do. Pods that use them need `imagePullPolicy:
//! Never` or `IfNotPresent`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cluster::{LocalCluster, output};
use crate::up::ClusterSpec;

mod archive;
mod files;
mod stand_ins;

pub use archive::{ImageArchive, digests, pack};
pub use files::ImageFiles;

/// Holds a pod's namespaces open.
pub const PAUSE: &str = "apportion.test/pause:latest";
/// A small userland with a shell, and the victim programs.
pub const VICTIM: &str = "apportion.test/victim:latest";
/// The userland with the environment of NVIDIA's own images, which asks for every card.
pub const ALL_CARDS: &str = "apportion.test/all-cards:latest";
/// The agent with its libraries, and the command line.
pub const AGENT: &str = "apportion.test/agent:latest";
/// The images that people install: the agent without a userland, and the scheduler, which is also the webhook.
pub const RELEASED: [&str; 2] = [
    concat!("docker.io/apportion/agent:", env!("CARGO_PKG_VERSION")),
    concat!("docker.io/apportion/scheduler:", env!("CARGO_PKG_VERSION")),
];

/// The tools that a person expects in a container's shell.
const USERLAND: &[&str] = &[
    "sh", "cat", "chmod", "cp", "date", "dd", "env", "grep", "head", "id", "kill", "ln", "ls",
    "mkdir", "mount", "mv", "nproc", "ps", "readlink", "rm", "sed", "setpriv", "sleep", "sort",
    "stat", "tail", "test", "touch", "true", "umount", "uname", "unshare", "wc",
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

const ENV: &[&str] = &["PATH=/usr/bin:/bin"];
const TITLE_OF_AGENT: (&str, &str) = ("org.opencontainers.image.title", "Apportion agent");
const TITLE_OF_SCHEDULER: (&str, &str) = ("org.opencontainers.image.title", "Apportion scheduler");
const LICENCE: (&str, &str) = ("org.opencontainers.image.licenses", "Apache-2.0");
/// The libraries that the driver's libraries are linked to. The runtime or a mount brings the driver's libraries into
/// the agent's container without them. The agent itself needs none of them.
const NVMLS: &[&str] = &["libpthread.so.0", "libdl.so.2", "libm.so.6", "librt.so.1"];

/// Loads every image of the cluster into its containerd.
pub(crate) fn load(cluster: &LocalCluster, wanted: &ClusterSpec) -> Result<()> {
    for image in images(&wanted.staged, &wanted.victims)? {
        import(cluster, &image)?;
    }
    Ok(())
}

/// The images of the repository. `staged` is the tree of `cargo xtask build`, `victims` the folder with the victim
/// programs.
///
/// # Errors
/// If a program is not there.
pub fn images(staged: &Path, victims: &Path) -> Result<Vec<ContainerImage>> {
    let mut pause = ImageFiles::default();
    pause.program(&installed("sleep")?, Path::new("/bin/sleep"))?;

    let mut victim = userland()?;
    for name in ["victim", "victim-linked"] {
        let program = victims.join(name);
        if program.exists() {
            victim.program(&program, &Path::new("/usr/bin").join(name))?;
        }
    }

    let stand_ins = stand_ins::images(victim.clone());
    let mut agent = userland()?;
    for name in ["apportion-agent", "apportion"] {
        agent.program(
            &staged.join("bin").join(name),
            &Path::new("/usr/bin").join(name),
        )?;
    }
    agent.tree(&staged.join("lib"), Path::new("/usr/lib"))?;
    let mut all = vec![
        ContainerImage {
            name: PAUSE,
            entrypoint: &["/bin/sleep", "infinity"],
            env: ENV,
            labels: &[],
            files: pause,
        },
        ContainerImage {
            name: VICTIM,
            entrypoint: &["/bin/sh"],
            env: ENV,
            labels: &[],
            files: victim,
        },
        ContainerImage {
            name: ALL_CARDS,
            entrypoint: &["/bin/sh"],
            env: &["PATH=/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES=all"],
            labels: &[],
            files: userland()?,
        },
        ContainerImage {
            name: AGENT,
            entrypoint: &["/usr/bin/apportion-agent"],
            env: ENV,
            labels: &[],
            files: agent,
        },
    ];
    all.extend(stand_ins);
    Ok(all)
}

/// The images that people install, from the tree of `cargo xtask build`.
///
/// # Errors
/// If a program is not there.
pub fn released(staged: &Path) -> Result<[ContainerImage; 2]> {
    let mut agent = ImageFiles::default();
    for name in ["apportion-agent", "apportion"] {
        let place = Path::new("/usr/bin").join(name);
        agent.program(&staged.join("bin").join(name), &place)?;
    }
    agent.tree(&staged.join("lib"), Path::new("/usr/lib"))?;
    agent.beside_libc(NVMLS)?;
    let mut scheduler = ImageFiles::default();
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

/// Packs `image` and loads it into the cluster's containerd, replacing one of the same name.
///
/// # Errors
/// If it cannot be packed or containerd refuses it.
pub fn import(cluster: &LocalCluster, image: &ContainerImage) -> Result<()> {
    let ImageArchive { path, .. } = pack(image, &cluster.folder().path().join("images"))?;
    let loading = || format!("failed to load {}", image.name);
    let import = || {
        let mut ctr = cluster.ctr_command();
        ctr.args(["images", "import"]);
        ctr
    };
    let mut ctr = import();
    // From 1.7 on, containerd's transfer service would unpack for its own snapshotter. 1.6 has no such service.
    if output(import().arg("--help"), "")?.contains("--local") {
        ctr.arg("--local");
    }
    ctr.args(["--snapshotter", cluster.snapshotter()]).arg(path);
    output(&mut ctr, "").with_context(loading)?;
    Ok(())
}

fn userland() -> Result<ImageFiles> {
    let mut files = ImageFiles::default();
    for name in USERLAND {
        // A small machine may lack some tools. A shell without `ps` is still useful.
        if let Ok(program) = installed(name) {
            files.program(&program, &Path::new("/bin").join(name))?;
        }
    }
    files.text(
        Path::new("/etc/passwd"),
        "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    );
    files.text(Path::new("/etc/group"), "root:x:0:\nnogroup:x:65534:\n");
    Ok(files)
}

/// A program of this machine.
fn installed(name: &str) -> Result<PathBuf> {
    let folders = ["/bin", "/usr/bin", "/usr/local/bin"];
    let mut paths = folders.iter().map(|folder| Path::new(folder).join(name));
    match paths.find(|path| path.exists()) {
        Some(path) => Ok(path),
        None => bail!("no {name} in {}", folders.join(", ")),
    }
}
