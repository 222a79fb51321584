//! How to run a program under each library.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A library that limits memory, or none.
#[derive(Clone, Debug)]
pub(crate) enum MemoryLimiter {
    Plain,
    /// `apportion run`.
    Apportion,
    /// HAMi-core in `LD_PRELOAD`, as its documentation runs it beside Docker.
    HamiCore {
        /// `libvgpu.so`.
        library: PathBuf,
    },
    /// vgpu-manager's library in `LD_PRELOAD` in its mode for the host.
    VgpuManager {
        /// A copy of `/etc` that contains the library's folder.
        etc: PathBuf,
        /// The `unshare` command that gives the program its own `/etc`.
        unshare: Vec<&'static str>,
    },
}

/// The path of vgpu-manager's library below `/etc`.
pub(crate) const VGPU_MANAGER_LIBRARY: &str = "vgpu-manager/driver/libvgpu-control.so";

impl MemoryLimiter {
    /// Its name in the tables.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Plain => "no library",
            Self::Apportion => "Apportion",
            Self::HamiCore { .. } => "HAMi-core",
            Self::VgpuManager { .. } => "vgpu-manager",
        }
    }

    /// Whether it is the program without a limit that the others are compared with.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }

    /// Whether it is Apportion.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::Apportion)
    }

    /// The command prefix that runs a program under this limit in MiB. `folder` is the machine's own.
    pub(crate) fn words(
        &self,
        staged: &Path,
        folder: &Path,
        uuid: &str,
        limit: u64,
    ) -> Vec<OsString> {
        let setting = |name: &str, value: &Path| {
            let mut word = OsString::from(format!("{name}="));
            word.push(value);
            word
        };
        match self {
            Self::Plain => vec!["env".into()],
            Self::Apportion => {
                let limit = limit.to_string();
                let words = ["run", "--sim", "--gpu-memory", &limit, "--", "env"];
                let program = staged.join("bin/apportion").into_os_string();
                std::iter::once(program)
                    .chain(words.map(OsString::from))
                    .collect()
            }
            Self::HamiCore { library } => vec![
                "env".into(),
                setting("LD_PRELOAD", library),
                setting("CUDA_REDIRECT", library),
                format!("CUDA_DEVICE_MEMORY_LIMIT={limit}m").into(),
                setting(
                    "CUDA_DEVICE_MEMORY_SHARED_CACHE",
                    &folder.join("hami-core.cache"),
                ),
                "LIBCUDA_LOG_LEVEL=0".into(),
            ],
            Self::VgpuManager { etc, unshare } => {
                let script = r#"mount --bind "$0" /etc && exec env "$@""#;
                let first = unshare.iter().map(OsString::from);
                first
                    .chain(["sh".into(), "-c".into(), script.into(), etc.into()])
                    .chain([
                        setting("LD_PRELOAD", &Path::new("/etc").join(VGPU_MANAGER_LIBRARY)),
                        format!("CUDA_MEM_LIMIT={limit}m").into(),
                        format!("MANAGER_VISIBLE_DEVICES={uuid}").into(),
                        "MANAGER_COMPATIBILITY_MODE=0".into(),
                    ])
                    .collect()
            }
        }
    }

    /// Whether the first program writes a file that the others read, and keeps them waiting while it lives. On a node
    /// the agent has written that file before.
    pub(crate) fn is_set_up_by_first_program(&self) -> bool {
        matches!(self, Self::VgpuManager { .. })
    }

    /// Removes what earlier programs left, so that the next one starts fresh.
    pub(crate) fn forget(&self, folder: &Path) {
        // A missing file needs no removal.
        let _ = match self {
            Self::Plain | Self::Apportion => Ok(()),
            Self::HamiCore { .. } => std::fs::remove_file(folder.join("hami-core.cache")),
            Self::VgpuManager { etc, .. } => {
                let config = etc.join("vgpu-manager/config");
                std::fs::remove_dir_all(&config).and_then(|()| std::fs::create_dir(config))
            }
        };
    }
}
