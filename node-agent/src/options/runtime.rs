//! Settings about the container runtime, for what the agent cannot detect.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "The container runtime")]
pub(crate) struct RuntimeOptions {
    /// Whether the container runtime resolves CDI devices; if off, containers get variables, mounts and device files
    #[arg(
        long,
        env = "APPORTION_CDI",
        value_name = "SWITCH",
        default_value = "auto"
    )]
    cdi: CdiSupport,

    /// Socket of the container runtime; the agent asks it for its version and configuration
    /// [default: the usual sockets of containerd, CRI-O and k3s]
    #[arg(long, env = "APPORTION_CRI_SOCKET", value_name = "PATH")]
    pub(crate) cri_socket: Option<PathBuf>,

    /// Folder of static CDI specs; NVIDIA's spec is read from here and from --cdi-dir
    #[arg(
        long,
        env = "APPORTION_FIXED_CDI_DIR",
        value_name = "PATH",
        default_value = "/etc/cdi"
    )]
    pub(crate) fixed_cdi_dir: PathBuf,

    /// Folder of libcuda.so.1, the same on the host and for the agent, for nodes where neither NVIDIA's toolkit nor its
    /// runtime adds the driver to containers [default: NVIDIA's CDI spec or container runtime adds it]
    #[arg(long, env = "APPORTION_DRIVER_LIBRARIES", value_name = "PATH")]
    pub(crate) driver_libraries: Option<PathBuf>,

    /// Root of the driver's device files, the same on the host and for the agent, such as /run/nvidia/driver of NVIDIA's
    /// driver container; without dev/nvidiactl in it, /dev of the host is used [default: /dev of the host]
    #[arg(long, env = "APPORTION_DEV_ROOT", value_name = "PATH")]
    pub(crate) dev_root: Option<PathBuf>,
}

/// Whether the runtime resolves CDI devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CdiSupport {
    /// Ask the container runtime
    Auto,
    /// It does
    On,
    /// It does not
    Off,
}

impl RuntimeOptions {
    /// Whether the runtime resolves CDI devices; `None`: ask it.
    pub(crate) fn has_cdi(&self) -> Option<bool> {
        match self.cdi {
            CdiSupport::Auto => None,
            CdiSupport::On => Some(true),
            CdiSupport::Off => Some(false),
        }
    }
}
