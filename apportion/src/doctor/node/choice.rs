//! Derives from a node's facts how grants are delivered, and which chart values that needs. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::facts::{
    CdiSpecState, FIXED_CDI, FeatureSupport, KubernetesDistribution, NodeEnvironment, SelinuxMode,
};

/// How containers on a node get their limits.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct DeliveryChoice {
    /// The delivery mode: `cdi`, or `mounts` if the runtime has no CDI.
    pub(super) mode: &'static str,
    /// Why this mode was chosen.
    pub(super) reason: String,
    /// The chart's preset for such a node, if there is one.
    pub(super) preset: Option<&'static str>,
    /// The values to set beyond the preset.
    pub(super) values: BTreeMap<&'static str, String>,
}

/// The values that a preset of the chart sets. A test compares this with the files.
pub(super) struct ChartPreset {
    pub(super) name: &'static str,
    pub(super) runtime_class: &'static str,
    pub(super) driver_root: &'static str,
    pub(super) driver_libraries: &'static str,
    pub(super) privileged: bool,
    pub(super) se_linux_type: &'static str,
    pub(super) simulated_gpus: u32,
}

const NONE: ChartPreset = ChartPreset {
    name: "",
    runtime_class: "",
    driver_root: "",
    driver_libraries: "usr/lib64",
    privileged: false,
    se_linux_type: "",
    simulated_gpus: 0,
};

pub(super) const PRESETS: [ChartPreset; 5] = [
    ChartPreset {
        name: "gke",
        driver_root: "/home/kubernetes/bin/nvidia",
        driver_libraries: "lib64",
        privileged: true,
        ..NONE
    },
    ChartPreset {
        name: "eks",
        ..NONE
    },
    ChartPreset {
        name: "openshift",
        runtime_class: "nvidia",
        driver_root: "/run/nvidia/driver",
        se_linux_type: "spc_t",
        ..NONE
    },
    ChartPreset {
        name: "k3s",
        runtime_class: "nvidia",
        ..NONE
    },
    ChartPreset {
        name: "kind",
        simulated_gpus: 2,
        ..NONE
    },
];

fn preset(distribution: KubernetesDistribution) -> &'static ChartPreset {
    match distribution {
        KubernetesDistribution::Gke => &PRESETS[0],
        KubernetesDistribution::Eks => &PRESETS[1],
        KubernetesDistribution::OpenShift => &PRESETS[2],
        KubernetesDistribution::K3s => &PRESETS[3],
        KubernetesDistribution::Kind => &PRESETS[4],
        KubernetesDistribution::Other => &NONE,
    }
}

/// Derives the delivery mode and the chart values.
pub(super) fn choose(facts: &NodeEnvironment) -> DeliveryChoice {
    let preset = preset(facts.distribution);
    let (mode, reason) = mode(facts);
    DeliveryChoice {
        mode,
        reason,
        preset: Some(preset.name).filter(|name| !name.is_empty()),
        values: values(facts, preset),
    }
}

fn mode(facts: &NodeEnvironment) -> (&'static str, String) {
    let runtime = &facts.runtime;
    let name = runtime.name.unwrap_or("the runtime");
    let version = runtime.version.as_deref().unwrap_or("(version unknown)");
    let lock = match runtime.nri {
        FeatureSupport::On => "NRI is on",
        FeatureSupport::Off | FeatureSupport::Absent | FeatureSupport::Unknown => {
            "NRI is not available"
        }
    };
    match runtime.cdi {
        FeatureSupport::On => (
            "cdi",
            format!("{name} {version} resolves CDI devices; {lock}"),
        ),
        FeatureSupport::Off => ("mounts", format!("CDI is off in {name} {version}; {lock}")),
        FeatureSupport::Absent => (
            "mounts",
            format!("{name} {version} does not support CDI; {lock}"),
        ),
        FeatureSupport::Unknown => (
            "mounts",
            format!("CDI support of {name} is unknown; {lock}"),
        ),
    }
}

fn values(facts: &NodeEnvironment, preset: &ChartPreset) -> BTreeMap<&'static str, String> {
    let mut values = BTreeMap::new();
    let mut set = |name: &'static str, value: &str, usual: &str| {
        if value != usual {
            values.insert(name, value.to_owned());
        }
    };
    if let Some(root) = &facts.kubelet_root {
        set("kubeletRoot", root, "/var/lib/kubelet");
    }
    let runtime = &facts.runtime;
    // The agent uses the version if it cannot query the runtime.
    let configured = match (runtime.cdi, FeatureSupport::of(runtime.numbers(), None)) {
        (found, usual) if found == usual => "auto",
        (FeatureSupport::On, _) => "on",
        (FeatureSupport::Off | FeatureSupport::Absent, _) => "off",
        (FeatureSupport::Unknown, _) => "auto",
    };
    if runtime.name == Some("containerd") {
        set("runtime.cdi", configured, "auto");
    }
    if let Some(dir) = &runtime.cdi_dir {
        set("cdiDir", dir, "");
    }
    if let CdiSpecState::In(path) = &facts.description
        && path.starts_with(FIXED_CDI)
    {
        set("fixedCdiDir", FIXED_CDI, "");
    }
    let class = if runtime.has_nvidia && !runtime.is_nvidia_default {
        "nvidia"
    } else {
        ""
    };
    match &facts.driver {
        None if preset.simulated_gpus > 0 => {}
        None => set("simulatedGpus", "1", "0"),
        Some(driver) => {
            set("simulatedGpus", "0", &preset.simulated_gpus.to_string());
            set("runtimeClassName", class, preset.runtime_class);
            // If no runtime adds the device files, the agent opens them itself.
            let is_privileged = !runtime.has_nvidia;
            set(
                "privileged",
                &is_privileged.to_string(),
                &preset.privileged.to_string(),
            );
            let is_brought = runtime.has_nvidia && driver.root == "/";
            let root = if is_brought { "" } else { driver.root };
            set("driverRoot", root, preset.driver_root);
            if !root.is_empty() {
                set("driverLibraries", driver.libraries, preset.driver_libraries);
            }
        }
    }
    if facts.selinux == SelinuxMode::Enforcing {
        set("seLinuxOptions.type", "spc_t", preset.se_linux_type);
    }
    values
}
