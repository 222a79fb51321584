//! The facts of a node. Every fact has one place where it is looked up, or a short list of places.

use apportion_abi::names::is_foreign_card;
use apportion_runtime_class::nvidia::NvidiaCdiSpec;
use serde::Deserialize;

use super::containerd::{self, ContainerdConfig};
use super::host::NodeFilesystem;

/// The facts of a node.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NodeEnvironment {
    pub(super) system: String,
    pub(super) distribution: KubernetesDistribution,
    pub(super) kubernetes: Option<String>,
    pub(super) kubelet_root: Option<String>,
    /// Whether nothing below the kubelet's root may be executed or mapped as code.
    pub(super) is_noexec: bool,
    pub(super) runtime: ContainerRuntime,
    /// Whether NVIDIA's runtime ignores the environment of unprivileged pods.
    pub(super) is_hardened: bool,
    pub(super) driver: Option<DriverPaths>,
    /// NVIDIA's CDI spec for the GPUs, if there is one.
    pub(super) description: CdiSpecState,
    pub(super) selinux: SelinuxMode,
    pub(super) cgroup: u8,
    pub(super) driver_limits: DriverLimitsFact,
    /// The sign that NVIDIA's device plugin serves the node.
    pub(super) nvidia_plugin: Option<String>,
}

/// The Kubernetes distribution, if it makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KubernetesDistribution {
    Gke,
    Eks,
    OpenShift,
    K3s,
    Kind,
    Other,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContainerRuntime {
    pub(super) name: Option<&'static str>,
    pub(super) version: Option<String>,
    pub(super) cdi: FeatureSupport,
    pub(super) nri: FeatureSupport,
    /// The folder for CDI files, if it is not the usual one.
    pub(super) cdi_dir: Option<String>,
    pub(super) has_nvidia: bool,
    pub(super) is_nvidia_default: bool,
}

impl ContainerRuntime {
    /// The first two numbers of its version.
    pub(super) fn numbers(&self) -> Option<(u32, u32)> {
        self.version.as_deref().and_then(major_minor)
    }
}

/// Whether the runtime supports a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeatureSupport {
    On,
    Off,
    /// The runtime is too old for it.
    Absent,
    Unknown,
}

impl FeatureSupport {
    /// For features that containerd 1.7 introduced and containerd 2 enabled by default.
    pub(super) fn of(version: Option<(u32, u32)>, configured: Option<bool>) -> Self {
        match (version, configured) {
            (Some(version), _) if version < (1, 7) => Self::Absent,
            (_, Some(true)) => Self::On,
            (_, Some(false)) => Self::Off,
            (Some(version), None) if version >= (2, 0) => Self::On,
            (Some(_), None) => Self::Off,
            (None, None) => Self::Unknown,
        }
    }
}

/// Whether NVIDIA's toolkit has written a CDI spec for the GPUs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CdiSpecState {
    /// It is in this file.
    In(String),
    /// It is in this file, but no grant could use it, for this reason.
    Badly(String),
    No,
}

/// Whether the driver keeps limits of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DriverLimitsFact {
    /// The agent has tried: who keeps them, `dmem` or `misc`.
    Kept(String),
    /// The agent has tried, or does not need to: why not.
    None(String),
    /// It may; the agent tries it.
    Possible(&'static str),
}

/// What the agent writes about the driver's limits in its folder.
#[derive(Deserialize)]
struct DriverLimitsRecord {
    backend: String,
    absence: String,
}

/// Where the driver's libraries are.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DriverPaths {
    pub(super) root: &'static str,
    pub(super) libraries: &'static str,
}

/// Whether SELinux enforces its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SelinuxMode {
    Off,
    Permissive,
    Enforcing,
}

const KUBELET_ROOTS: [&str; 3] = [
    "/var/lib/kubelet",
    "/var/lib/k0s/kubelet",
    "/var/snap/microk8s/common/var/lib/kubelet",
];
const KUBELETS: [&str; 5] = [
    "/usr/bin/kubelet",
    "/usr/local/bin/kubelet",
    "/home/kubernetes/bin/kubelet",
    "/usr/local/bin/k3s",
    "/usr/bin/k3s",
];
const K3S: &str = "/var/lib/rancher/k3s/agent";
/// The configuration files of containerd, the most specific first.
const CONTAINERD_CONFIGS: [&str; 2] = [
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/etc/containerd/config.toml",
];
const CONTAINERDS: [&str; 4] = [
    "/var/lib/rancher/k3s/data/current/bin/containerd",
    "/usr/bin/containerd",
    "/usr/local/bin/containerd",
    "/home/kubernetes/bin/containerd",
];
const CRIO: [&str; 2] = ["/usr/bin/crio", "/usr/local/bin/crio"];
const DRIVERS: [(&str, &str); 7] = [
    ("/run/nvidia/driver", "usr/lib64"),
    ("/run/nvidia/driver", "usr/lib/x86_64-linux-gnu"),
    ("/home/kubernetes/bin/nvidia", "lib64"),
    ("/", "usr/lib64"),
    ("/", "usr/lib/x86_64-linux-gnu"),
    ("/", "usr/lib/aarch64-linux-gnu"),
    ("/", "usr/lib/wsl/lib"),
];
/// There only where control groups of version 2 are mounted.
const CONTROLLERS: &str = "/sys/fs/cgroup/cgroup.controllers";
/// The first driver with limits of control groups.
const LIMITING_DRIVER: u32 = 615;
/// Where the chart's agent writes whether the driver keeps limits.
const DRIVER_LIMITS_RECORD: &str = "/run/apportion/driver-limits.json";
/// The folders where runtimes look for CDI specs. The last one takes precedence.
const CDI: [&str; 2] = [FIXED_CDI, "/var/run/cdi"];
pub(super) const FIXED_CDI: &str = "/etc/cdi";
const TOOLKIT: [&str; 2] = [
    "/etc/nvidia-container-runtime/config.toml",
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
];

pub(super) fn collect(host: &NodeFilesystem) -> NodeEnvironment {
    let release = host.text("/etc/os-release").unwrap_or_default();
    let kubelet_root = host.first(&KUBELET_ROOTS).map(str::to_owned);
    let nvidia_plugin = kubelet_root
        .as_ref()
        .and_then(|root| nvidia_plugin(host, &format!("{root}/device-plugins")));
    let mounts = host.text("/proc/1/mounts").unwrap_or_default();
    NodeEnvironment {
        system: field(&release, "PRETTY_NAME").unwrap_or_else(|| "unknown".to_owned()),
        distribution: distribution(host, &release),
        kubernetes: host.version(&KUBELETS),
        is_noexec: kubelet_root
            .as_deref()
            .is_some_and(|root| is_noexec(&mounts, root)),
        kubelet_root,
        runtime: runtime(host),
        is_hardened: is_hardened(host),
        driver: driver(host),
        description: description(host),
        selinux: selinux(host),
        cgroup: if host.has(CONTROLLERS) { 2 } else { 1 },
        driver_limits: driver_limits(host),
        nvidia_plugin,
    }
}

/// Found by its socket, or by its devices in the kubelet's checkpoint. The checkpoint may be older than the plugin's
/// removal.
fn nvidia_plugin(host: &NodeFilesystem, folder: &str) -> Option<String> {
    let mut names = host.names(folder).into_iter();
    if let Some(socket) = names.find(|name| name.starts_with("nvidia") && name.ends_with(".sock")) {
        return Some(format!(
            "NVIDIA's device plugin serves this node ({socket})"
        ));
    }
    let text = host.text(&format!("{folder}/kubelet_internal_checkpoint"))?;
    let record: serde_json::Value = serde_json::from_str(&text).ok()?;
    let registered = record["Data"]["RegisteredDevices"].as_object()?;
    let (resource, count) = registered.iter().find_map(|(resource, ids)| {
        let ids = ids.as_array()?.iter().filter_map(|id| id.as_str());
        let cards = ids.filter(|id| is_foreign_card(resource, id)).count();
        (cards > 0).then_some((resource, cards))
    })?;
    Some(format!(
        "the kubelet has {count} {resource} on record from NVIDIA's device plugin"
    ))
}

fn distribution(host: &NodeFilesystem, release: &str) -> KubernetesDistribution {
    let id = field(release, "ID").unwrap_or_default();
    match id.as_str() {
        _ if host.has("/kind") => KubernetesDistribution::Kind,
        _ if host.has(K3S) => KubernetesDistribution::K3s,
        "cos" => KubernetesDistribution::Gke,
        "amzn" if host.has("/etc/eks") => KubernetesDistribution::Eks,
        "rhcos" => KubernetesDistribution::OpenShift,
        _ => KubernetesDistribution::Other,
    }
}

/// The value of a field in `os-release`.
fn field(release: &str, name: &str) -> Option<String> {
    release.lines().find_map(|line| {
        Some(
            line.strip_prefix(name)?
                .strip_prefix('=')?
                .trim_matches('"')
                .to_owned(),
        )
    })
}

/// Whether `path` is on a mount with `noexec`.
fn is_noexec(mounts: &str, path: &str) -> bool {
    // Of several mounts at one path, the last one counts.
    let of = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let at = words.next()?.to_owned();
            let options = words.nth(1)?.to_owned();
            std::path::Path::new(path)
                .starts_with(&at)
                .then_some((at, options))
        })
        .max_by_key(|(at, _)| at.len());
    of.is_some_and(|(_, options)| options.split(',').any(|option| option == "noexec"))
}

fn runtime(host: &NodeFilesystem) -> ContainerRuntime {
    if host.first(&CRIO).is_some() {
        let defaults = host
            .text("/etc/crio/crio.conf.d/99-nvidia.conf")
            .unwrap_or_default();
        return ContainerRuntime {
            name: Some("cri-o"),
            version: host.version(&CRIO),
            cdi: FeatureSupport::On,
            nri: FeatureSupport::On,
            cdi_dir: None,
            has_nvidia: defaults.contains("[crio.runtime.runtimes.nvidia]"),
            is_nvidia_default: defaults.contains("default_runtime = \"nvidia\""),
        };
    }
    let config = host.first(&CONTAINERD_CONFIGS);
    let name = config.or(host.first(&CONTAINERDS)).map(|_| "containerd");
    let version = host.version(&CONTAINERDS);
    let config = config.map_or_else(ContainerdConfig::default, |path| {
        containerd::read(host, path)
    });
    let numbers = version.as_deref().and_then(major_minor);
    ContainerRuntime {
        name,
        cdi: config.cdi(numbers),
        nri: config.nri(numbers),
        cdi_dir: config.cdi_dir(),
        has_nvidia: config.runtimes.iter().any(|name| name == "nvidia"),
        is_nvidia_default: config.default_runtime.as_deref() == Some("nvidia"),
        version,
    }
}

fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

fn is_hardened(host: &NodeFilesystem) -> bool {
    let config = host.first(&TOOLKIT).and_then(|path| host.text(path));
    let config = config
        .and_then(|text| text.parse::<toml::Table>().ok())
        .unwrap_or_default();
    let key = "accept-nvidia-visible-devices-envvar-when-unprivileged";
    config.get(key).and_then(toml::Value::as_bool) == Some(false)
}

fn description(host: &NodeFilesystem) -> CdiSpecState {
    let files = CDI.into_iter().flat_map(|folder| {
        let names = host.names(folder).into_iter();
        names
            .filter(|name| {
                let is_nvidias = name.contains("nvidia") && !name.starts_with("apportion.dev-");
                is_nvidias && (name.ends_with(".yaml") || name.ends_with(".json"))
            })
            .map(move |name| format!("{folder}/{name}"))
    });
    let mut found = CdiSpecState::No;
    for path in files {
        let text = host.text(&path).unwrap_or_default();
        let content = match serde_norway::from_str(&text) {
            Ok(content) => content,
            Err(problem) => return CdiSpecState::Badly(format!("{path} is not YAML: {problem}")),
        };
        match NvidiaCdiSpec::new(&path, content) {
            Ok(Some(_)) => found = CdiSpecState::In(path),
            Ok(None) => {}
            Err(problem) => return CdiSpecState::Badly(problem.to_string()),
        }
    }
    found
}

fn driver(host: &NodeFilesystem) -> Option<DriverPaths> {
    let mut found = DRIVERS.into_iter().filter(|(root, libraries)| {
        host.has(&format!(
            "{}/{libraries}/libnvidia-ml.so.1",
            root.trim_end_matches('/')
        ))
    });
    found
        .next()
        .map(|(root, libraries)| DriverPaths { root, libraries })
}

fn driver_limits(host: &NodeFilesystem) -> DriverLimitsFact {
    let record = host.text(DRIVER_LIMITS_RECORD);
    let record = record.and_then(|text| serde_json::from_str::<DriverLimitsRecord>(&text).ok());
    match record {
        Some(record) if record.backend.is_empty() => {
            return DriverLimitsFact::None(record.absence);
        }
        Some(record) => return DriverLimitsFact::Kept(record.backend),
        None => {}
    }
    if !host.has(CONTROLLERS) {
        return DriverLimitsFact::None("control groups of version 1".to_owned());
    }
    let version = host.text("/proc/driver/nvidia/version").unwrap_or_default();
    let mut words = version.split_whitespace();
    let major = words.find_map(|word| word.split_once('.')?.0.parse::<u32>().ok());
    match major {
        Some(major) if major < LIMITING_DRIVER => DriverLimitsFact::None(format!(
            "driver {major}, {LIMITING_DRIVER} or newer is needed"
        )),
        Some(_) => {
            let controllers = host.text(CONTROLLERS).unwrap_or_default();
            let has_dmem = controllers.split_whitespace().any(|name| name == "dmem");
            DriverLimitsFact::Possible(if has_dmem { "dmem" } else { "misc" })
        }
        None => DriverLimitsFact::None("no NVIDIA driver is loaded".to_owned()),
    }
}

fn selinux(host: &NodeFilesystem) -> SelinuxMode {
    match host
        .text("/sys/fs/selinux/enforce")
        .as_deref()
        .map(str::trim)
    {
        Some("1") => SelinuxMode::Enforcing,
        Some(_) => SelinuxMode::Permissive,
        None => SelinuxMode::Off,
    }
}
