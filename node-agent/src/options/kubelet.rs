//! Settings of an agent that serves a kubelet.

use std::path::PathBuf;

use super::{AgentSetting, UnplacedPolicy};

pub(super) const ROWS: &[AgentSetting] = &[
    AgentSetting {
        flag: "--kubelet-dir",
        env: "APPORTION_KUBELET_DIR",
        form: "PATH",
        default: "none: no device plugin",
        help: "The kubelet's folder, usually /var/lib/kubelet; the agent offers GPU slots there as a device plugin",
        set: |options, text| {
            options.kubelet_dir = Some(PathBuf::from(text));
            !text.is_empty()
        },
    },
    AgentSetting {
        flag: "--cdi-dir",
        env: "APPORTION_CDI_DIR",
        form: "PATH",
        default: "/var/run/cdi",
        help: "Folder for the agent's CDI specs; the container runtime must read it",
        set: |options, text| {
            options.cdi_dir = PathBuf::from(text);
            !text.is_empty()
        },
    },
    AgentSetting {
        flag: "--slots",
        env: "APPORTION_SLOTS",
        form: "number, 1 to 4096",
        default: "128",
        help: "Maximum number of containers of this node that have a share at the same time",
        set: |options, text| {
            let count = text.parse().ok().filter(|count| (1..=4096).contains(count));
            options.slots = count.unwrap_or_default();
            count.is_some()
        },
    },
    AgentSetting {
        flag: "--unplaced",
        env: "APPORTION_UNPLACED",
        form: "deny or local-fit",
        default: "deny",
        help: "What to do with a pod that has a slot but no allocation from a scheduler: refuse it, or grant its request on this node",
        set: |options, text| {
            options.unplaced = match text {
                "deny" => UnplacedPolicy::Deny,
                "local-fit" => UnplacedPolicy::LocalFit,
                _ => return false,
            };
            true
        },
    },
    AgentSetting {
        flag: "--whole-cards",
        env: "APPORTION_WHOLE_CARDS",
        form: "on or off",
        default: "off",
        help: "Whether to offer whole GPUs to the kubelet as nvidia.com/gpu, from the same ledger as the shares",
        set: |options, text| {
            options.has_whole_cards = text == "on";
            matches!(text, "on" | "off")
        },
    },
    AgentSetting {
        flag: "--preload-file",
        env: "APPORTION_PRELOAD_FILE",
        form: "on or off",
        default: "on",
        help: "Whether containers also get /etc/ld.so.preload; set it off on nodes with pods that mount a read-only volume at /etc",
        set: |options, text| {
            options.has_preload_list = text == "on";
            matches!(text, "on" | "off")
        },
    },
];
