//! The simulated driver as a folder like `/run/nvidia/driver`: libraries under the names that NVIDIA's installer gives
//! them, and device files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::LocalCluster;

/// Where the driver is on the node.
pub const ROOT: &str = "/run/apportion/nvidia-driver";
/// The same folder as seen from outside of the node's room.
const FOLDER: &str = "apportion/nvidia-driver";
/// What the simulated driver says of itself; NVIDIA's toolkit refuses libraries of another version.
const VERSION: &str = "580.105.08";
/// The kernel's number for NVIDIA's device files.
const MAJOR: &str = "195";
/// The file that all programs open, and its minor number.
const CONTROL: (&str, &str) = ("nvidiactl", "255");

/// The folder. It goes when this is dropped.
#[derive(Debug)]
pub struct InstalledDriver {
    folder: PathBuf,
}

impl InstalledDriver {
    /// Installs the simulated driver on the node of `cluster`.
    ///
    /// # Errors
    /// If a library is not there, or the machine allows no device files.
    ///
    /// # Panics
    /// If no staged tree is named.
    pub fn install(cluster: &LocalCluster) -> Result<Self> {
        let staged = std::env::var_os("APPORTION_STAGED").expect("it names the staged tree");
        let folder = cluster.folder().path().join(FOLDER);
        let _ = fs::remove_dir_all(&folder);
        let driver = Self { folder };
        driver.libraries(&Path::new(&staged).join("lib/apportion/sim"))?;
        driver.devices(cluster.gpus())?;
        Ok(driver)
    }

    fn libraries(&self, from: &Path) -> Result<()> {
        let libraries = self.folder.join("usr/lib64");
        fs::create_dir_all(&libraries).context("failed to make the driver's folder")?;
        for name in ["libcuda.so", "libnvidia-ml.so"] {
            let (versioned, soname) = (format!("{name}.{VERSION}"), format!("{name}.1"));
            let source = from.join(&soname);
            fs::copy(&source, libraries.join(&versioned))
                .with_context(|| format!("failed to copy {}", source.display()))?;
            symlink(&versioned, libraries.join(&soname))?;
            symlink(&soname, libraries.join(name))?;
        }
        Ok(())
    }

    fn devices(&self, gpus: u32) -> Result<()> {
        let devices = self.folder.join("dev");
        fs::create_dir_all(&devices)?;
        let cards = (0..gpus).map(|number| (format!("nvidia{number}"), number.to_string()));
        let control = [(CONTROL.0.to_owned(), CONTROL.1.to_owned())];
        for (name, minor) in cards.chain(control) {
            let path = devices.join(name);
            let mut make = Command::new("mknod");
            make.args(["-m", "666"]).arg(&path);
            let status = make.args(["c", MAJOR, &minor]).status();
            let is_made = status.context("failed to start mknod")?.success();
            ensure!(is_made, "failed to make {}", path.display());
        }
        Ok(())
    }
}

impl Drop for InstalledDriver {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
