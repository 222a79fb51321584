//! Settings of the NRI plugin.

use std::path::PathBuf;

use apportion_nri::VerdictMode;

use super::AgentSetting;

/// The namespaces whose containers may reach a GPU without a grant by default.
const INFRASTRUCTURE: [&str; 3] = ["kube-system", "gpu-operator", "nvidia-gpu-operator"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NriOptions {
    /// The runtime's NRI socket; `None`: no plugin.
    pub(crate) socket: Option<PathBuf>,
    pub(crate) mode: VerdictMode,
    /// Namespaces whose containers may reach a GPU without a grant.
    pub(crate) exempt: Vec<String>,
}

impl Default for NriOptions {
    fn default() -> Self {
        Self {
            socket: None,
            mode: VerdictMode::Audit,
            exempt: INFRASTRUCTURE.map(str::to_owned).to_vec(),
        }
    }
}

pub(super) const ROWS: &[AgentSetting] = &[
    AgentSetting {
        flag: "--nri-socket",
        env: "APPORTION_NRI_SOCKET",
        form: "PATH",
        default: "none: no NRI plugin",
        help: "NRI socket of the container runtime, such as /var/run/nri/nri.sock",
        set: |options, text| {
            options.second_lock.socket = Some(PathBuf::from(text));
            !text.is_empty()
        },
    },
    AgentSetting {
        flag: "--nri-policy",
        env: "APPORTION_NRI_POLICY",
        form: "audit or enforce",
        default: "audit",
        help: "What to do with a container that would reach a GPU without a share: log it, or refuse it",
        set: |options, text| {
            options.second_lock.mode = match text {
                "audit" => VerdictMode::Audit,
                "enforce" => VerdictMode::Enforce,
                _ => return false,
            };
            true
        },
    },
    AgentSetting {
        flag: "--nri-exempt-namespaces",
        env: "APPORTION_NRI_EXEMPT_NAMESPACES",
        form: "names, separated by commas, or none",
        default: "kube-system,gpu-operator,nvidia-gpu-operator",
        help: "Namespaces whose containers may reach a GPU without a share",
        set: |options, text| {
            options.second_lock.exempt = match text {
                "none" => Vec::new(),
                names => names.split(',').map(str::to_owned).collect(),
            };
            let exempt = &options.second_lock.exempt;
            exempt.iter().all(|name| !name.is_empty())
        },
    },
];
