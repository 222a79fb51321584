//! The folder with everything of one cluster, and the name that distinguishes it from other clusters.
//!
//! The name depends only on the folder's path, so that `down` finds the cluster's node, control groups and processes
//! even if its record is lost.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

/// The kernel's limit for the bytes of a socket's path, including the terminating zero.
const SOCKET_BYTES: usize = 108;
/// The longest path of a socket below the folder.
const LONGEST: &str = "kubelet/device-plugins/apportion-whole-cards.sock";

/// The folder of one cluster.
#[derive(Clone, Debug)]
pub struct ClusterFolder {
    path: PathBuf,
    name: String,
}

impl ClusterFolder {
    /// The cluster of `path`, which need not exist yet.
    ///
    /// # Errors
    /// If the path cannot be made absolute, or is too long for the sockets below it.
    pub fn new(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path)
            .with_context(|| format!("failed to find {}", path.display()))?;
        let longest = path.join(LONGEST).as_os_str().len();
        ensure!(
            longest < SOCKET_BYTES,
            "{} is too long: its sockets would have paths of {longest} bytes, and {} is the most; hint: \
             name a shorter folder in APPORTION_CLUSTER_DIR",
            path.display(),
            SOCKET_BYTES - 1,
        );
        let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
        let name = format!(
            "apportion-{:02x}{:02x}{:02x}",
            digest[0], digest[1], digest[2]
        );
        Ok(Self { path, name })
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the cluster, of its node and of its control group.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.path.join("kubeconfig")
    }

    /// containerd's socket (in `/run/containerd` on the node).
    #[must_use]
    pub fn containerd_socket(&self) -> PathBuf {
        self.path.join("containerd/containerd.sock")
    }

    /// The socket that NRI plugins connect to (in `/run/nri` on the node).
    #[must_use]
    pub fn nri_socket(&self) -> PathBuf {
        self.path.join("nri/nri.sock")
    }

    /// Where containerd looks for CDI files (`/run/cdi` on the node).
    #[must_use]
    pub fn cdi(&self) -> PathBuf {
        self.path.join("cdi")
    }

    /// The kubelet's own folder (`/var/lib/kubelet` on the node), with `device-plugins`, `pod-resources` and `pods`.
    #[must_use]
    pub fn kubelet(&self) -> PathBuf {
        self.path.join("kubelet")
    }

    /// The socket of the simulated cards (in `/run/apportion` on the node).
    #[must_use]
    pub fn cards(&self) -> PathBuf {
        self.path.join("apportion/sim/driver.sock")
    }

    /// The log of the server `name`.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.path.join("logs").join(format!("{name}.log"))
    }

    /// The record of what runs.
    pub(crate) fn record(&self) -> PathBuf {
        self.path.join("cluster.json")
    }

    /// The configuration by which `crictl` finds containerd.
    pub(crate) fn crictl(&self) -> PathBuf {
        self.path.join("settings/crictl.yaml")
    }

    pub(crate) fn certificate(&self, name: &str) -> PathBuf {
        self.path.join("certificates").join(format!("{name}.crt"))
    }

    pub(crate) fn key(&self, name: &str) -> PathBuf {
        self.path.join("certificates").join(format!("{name}.key"))
    }

    /// Writes `text` to `path` below the folder and creates missing parent folders.
    pub(crate) fn write(&self, path: &Path, text: &str) -> Result<()> {
        let path = self.path.join(path);
        let above = path.parent().context("a file has a folder")?;
        fs::create_dir_all(above).with_context(|| format!("failed to make {}", above.display()))?;
        fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_have_names_of_their_own() {
        let of = |path| {
            ClusterFolder::new(Path::new(path))
                .unwrap()
                .name()
                .to_owned()
        };
        assert_ne!(of("/a/cluster"), of("/b/cluster"));
        assert_eq!(of("/a/cluster"), of("/a/cluster"));
    }

    #[test]
    fn refuses_a_folder_whose_sockets_would_not_fit() {
        let error = ClusterFolder::new(Path::new(&format!("/{}", "x".repeat(90)))).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }
}
