//! Settings about the container runtime, for what the agent cannot detect.

use std::path::PathBuf;

use super::AgentSetting;

const FIXED_CDI_DIR: &str = "/etc/cdi";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuntimeOptions {
    /// Whether it resolves CDI devices; `None`: ask it.
    pub(crate) cdi: Option<bool>,
    /// Its socket; `None`: the default sockets.
    pub(crate) socket: Option<PathBuf>,
    /// Its folder of static CDI specs.
    pub(crate) fixed_cdi_dir: PathBuf,
    /// The folder of the driver's libraries, on the host and in the agent; `None`: NVIDIA's runtime or its toolkit
    /// adds them.
    pub(crate) driver_libraries: Option<PathBuf>,
    /// The root of the driver's device files, on the host and in the agent; `None`: the host's `/dev`.
    pub(crate) device_root: Option<PathBuf>,
}

impl Default for RuntimeOptions {
    fn default() -> Self {
        Self {
            cdi: None,
            socket: None,
            fixed_cdi_dir: PathBuf::from(FIXED_CDI_DIR),
            driver_libraries: None,
            device_root: None,
        }
    }
}

pub(super) const ROWS: &[AgentSetting] = &[
    AgentSetting {
        flag: "--cdi",
        env: "APPORTION_CDI",
        form: "auto, on or off",
        default: "auto: ask the container runtime",
        help: "Whether the container runtime resolves CDI devices; if off, containers get variables, mounts and device files",
        set: |options, text| {
            options.runtime.cdi = match text {
                "auto" => None,
                "on" => Some(true),
                "off" => Some(false),
                _ => return false,
            };
            true
        },
    },
    AgentSetting {
        flag: "--cri-socket",
        env: "APPORTION_CRI_SOCKET",
        form: "PATH",
        default: "the usual sockets of containerd, CRI-O and k3s",
        help: "Socket of the container runtime; the agent asks it for its version and configuration",
        set: |options, text| {
            options.runtime.socket = Some(PathBuf::from(text));
            !text.is_empty()
        },
    },
    AgentSetting {
        flag: "--fixed-cdi-dir",
        env: "APPORTION_FIXED_CDI_DIR",
        form: "PATH",
        default: FIXED_CDI_DIR,
        help: "Folder of static CDI specs; NVIDIA's spec is read from here and from --cdi-dir",
        set: |options, text| {
            options.runtime.fixed_cdi_dir = PathBuf::from(text);
            !text.is_empty()
        },
    },
    AgentSetting {
        flag: "--driver-libraries",
        env: "APPORTION_DRIVER_LIBRARIES",
        form: "PATH, the same on the host and for the agent",
        default: "none: NVIDIA's CDI spec or container runtime adds them",
        help: "Folder of libcuda.so.1, for nodes where neither NVIDIA's toolkit nor its runtime adds the driver to containers",
        set: |options, text| {
            options.runtime.driver_libraries = Some(PathBuf::from(text));
            !text.is_empty()
        },
    },
    AgentSetting {
        flag: "--dev-root",
        env: "APPORTION_DEV_ROOT",
        form: "PATH, the same on the host and for the agent",
        default: "none: device files are in /dev of the host",
        help: "Root of the driver's device files, such as /run/nvidia/driver of NVIDIA's driver container; without dev/nvidiactl in it, /dev of the host is used",
        set: |options, text| {
            options.runtime.device_root = Some(PathBuf::from(text));
            !text.is_empty()
        },
    },
];
