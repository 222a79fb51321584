//! The images of the cluster: root file systems with programs of this machine, loaded into containerd.
//!
//! One row per image lists its contents. `apportion-image` packs them. Pods that use them need `imagePullPolicy: Never`
//! or `IfNotPresent`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use apportion_image::{ContainerImage, ENV, ImageArchive, ImageFiles, pack};

use crate::cluster::{LocalCluster, output};
use crate::up::ClusterSpec;

mod stand_ins;

pub use apportion_image::released;

/// Holds a pod's namespaces open.
pub const PAUSE: &str = "apportion.test/pause:latest";
/// A small userland with a shell, and the victim programs.
pub const VICTIM: &str = "apportion.test/victim:latest";
/// The userland with the environment of NVIDIA's own images, which asks for every card.
pub const ALL_CARDS: &str = "apportion.test/all-cards:latest";
/// The agent with its libraries, and the command line.
pub const AGENT: &str = "apportion.test/agent:latest";
/// The tools that a person expects in a container's shell.
const USERLAND: &[&str] = &[
    "sh", "bash", "cat", "chmod", "cp", "date", "dd", "env", "grep", "head", "id", "kill", "ln",
    "ls", "mkdir", "mkfifo", "mount", "mv", "nproc", "ps", "readlink", "rm", "sed", "setpriv",
    "sleep", "sort", "stat", "tail", "test", "touch", "true", "umount", "uname", "unshare", "wc",
];

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

pub(crate) fn userland() -> Result<ImageFiles> {
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
