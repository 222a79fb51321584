//! What the container runtime reports about itself: whether it resolves CDI devices, and which of its handlers runs
//! containers without a RuntimeClass.
//!
//! A runtime without CDI ignores CDI device names, as does an old kubelet, and the container starts without its
//! limit. So the agent offers nothing to the kubelet before it knows. It asks the runtime at its socket. If it
//! reaches none, it derives the answer from the runtime version in the Node object. A change of the runtime's
//! configuration needs a restart, so the agent asks again when the socket has changed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apportion_proto::cri::runtime_service_client::RuntimeServiceClient;
use apportion_proto::cri::{StatusRequest, VersionRequest};
use k8s_openapi::api::core::v1::{Node, NodeSystemInfo};
use serde_json::Value;
use tracing::{debug, info, warn};

use crate::options::{AgentOptions, RuntimeOptions};

const PATIENCE: Duration = Duration::from_secs(5);
/// How long until it is asked again.
const AGAIN_IN: Duration = Duration::from_secs(2);
/// The default sockets of container runtimes.
const SOCKETS: [&str; 3] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
];
/// The common part of the names of NVIDIA's runtimes: `nvidia`, `nvidia-cdi`, `/usr/bin/nvidia-container-runtime`.
const NVIDIA: &str = "nvidia";

/// What delivery needs to know about the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuntimeCapabilities {
    pub(crate) has_cdi: bool,
    /// Whether containers without a RuntimeClass run with NVIDIA's runtime.
    pub(crate) is_nvidia_default: bool,
}

/// The identities of the runtimes' sockets. A restarted runtime has a new one.
pub(crate) type Sockets = Vec<(PathBuf, u64, i64, i64)>;

/// What a runtime reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RuntimeReport {
    name: String,
    version: String,
    has_cdi: Option<bool>,
    is_nvidia_default: bool,
    /// Where it looks for CDI specs, if it reports that.
    spec_dirs: Vec<String>,
}

/// Why nothing can be delivered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CdiSupportError {
    #[error(
        "CDI support of the container runtime is unknown; name its socket with --cri-socket, or set --cdi to on or off"
    )]
    Unknown,
    #[error(
        "the container runtime reads CDI specs from {}, but --cdi-dir is {own}; set it to one of these (chart: cdiDir)",
        reads.join(", ")
    )]
    Elsewhere { own: String, reads: Vec<String> },
}

/// Waits until the capabilities are known.
pub(crate) async fn settle(options: &AgentOptions) -> RuntimeCapabilities {
    let mut last_warning = None;
    loop {
        match detect(options).await {
            Ok(facts) => return facts,
            Err(problem) if last_warning.as_ref() != Some(&problem) => {
                warn!(%problem, "GPU slots not offered to the kubelet");
                last_warning = Some(problem);
            }
            Err(_) => {}
        }
        tokio::time::sleep(AGAIN_IN).await;
    }
}

pub(crate) async fn detect(options: &AgentOptions) -> Result<RuntimeCapabilities, CdiSupportError> {
    let node = match &options.node {
        Some(node) => tokio::time::timeout(PATIENCE, node_info(node))
            .await
            .ok()
            .flatten(),
        None => None,
    };
    let reported = match ask(&options.runtime).await {
        None => node.as_ref().and_then(of_node),
        reported => reported,
    };
    let configured = options.runtime.has_cdi();
    let known = reported.as_ref().and_then(|reported| reported.has_cdi);
    // An old kubelet drops CDI device names, whatever the runtime supports.
    let passes_on = node.is_none_or(|node| passes_cdi_on(&node.kubelet_version));
    let known = known.map(|has_cdi| has_cdi && passes_on);
    let has_cdi = configured.or(known).ok_or(CdiSupportError::Unknown)?;
    let reported = reported.unwrap_or_default();
    if has_cdi && !reads(&reported.spec_dirs, &options.kubelet.cdi_dir) {
        return Err(CdiSupportError::Elsewhere {
            own: options.kubelet.cdi_dir.display().to_string(),
            reads: reported.spec_dirs,
        });
    }
    let RuntimeReport {
        name,
        version,
        is_nvidia_default,
        ..
    } = reported;
    info!(
        name,
        version, has_cdi, is_nvidia_default, "Container runtime detected"
    );
    Ok(RuntimeCapabilities {
        has_cdi,
        is_nvidia_default,
    })
}

/// Whether the runtime reads CDI specs from this folder. True if it does not report its folders.
fn reads(spec_dirs: &[String], own: &Path) -> bool {
    let real = |path: &Path| match path.strip_prefix("/var/run") {
        Ok(rest) => Path::new("/run").join(rest),
        Err(_) => path.to_owned(),
    };
    spec_dirs.is_empty()
        || spec_dirs
            .iter()
            .any(|dir| real(Path::new(dir)) == real(own))
}

/// The identities of the runtimes' sockets now.
pub(crate) fn sockets(options: &RuntimeOptions) -> Sockets {
    paths(options)
        .into_iter()
        .filter_map(|path| {
            let found = std::fs::metadata(&path).ok()?;
            Some((path, found.ino(), found.ctime(), found.ctime_nsec()))
        })
        .collect()
}

fn paths(options: &RuntimeOptions) -> Vec<PathBuf> {
    let usual = SOCKETS.iter().map(PathBuf::from);
    match &options.cri_socket {
        Some(socket) => vec![socket.clone()],
        None => usual.filter(|path| path.exists()).collect(),
    }
}

async fn ask(options: &RuntimeOptions) -> Option<RuntimeReport> {
    for socket in paths(options) {
        match tokio::time::timeout(PATIENCE, ask_at(&socket)).await {
            Ok(Some(reported)) => return Some(reported),
            Ok(None) | Err(_) => {
                debug!(socket = %socket.display(), "Container runtime not answering")
            }
        }
    }
    None
}

async fn ask_at(socket: &Path) -> Option<RuntimeReport> {
    let channel = apportion_proto::channel(socket).await.ok()?;
    let mut client = RuntimeServiceClient::new(channel);
    let version = client.version(VersionRequest::default()).await.ok()?;
    let status = client.status(StatusRequest { verbose: true }).await.ok()?;
    let version = version.into_inner();
    let status = status.into_inner();
    let config = status.info.get("config").map_or("", String::as_str);
    Some(understand(
        version.runtime_name,
        version.runtime_version,
        config,
    ))
}

async fn node_info(name: &str) -> Option<NodeSystemInfo> {
    let config = kube::Config::infer().await.ok()?;
    let client = kube::Client::try_from(config).ok()?;
    let node = kube::Api::<Node>::all(client).get(name).await.ok()?;
    node.status?.node_info
}

/// What the Node object says about its runtime: `containerd://1.7.24`.
fn of_node(node: &NodeSystemInfo) -> Option<RuntimeReport> {
    let (name, version) = node.container_runtime_version.split_once("://")?;
    Some(understand(name.to_owned(), version.to_owned(), ""))
}

/// Whether this kubelet passes on CDI devices of device plugins. It does since 1.29.
fn passes_cdi_on(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split('.');
    let mut number = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    match (number(), number()) {
        (Some(major), Some(minor)) => (major, minor) >= (1, 29),
        _ => true,
    }
}

/// `config` is the runtime's configuration as JSON, if it reports one. CDI came with containerd 1.7, is on by
/// default since 2.0, and later versions have no switch for it. CRI-O has always had it on.
fn understand(name: String, version: String, config: &str) -> RuntimeReport {
    let config: Value = serde_json::from_str(config).unwrap_or_default();
    let major = version.trim_start_matches('v').split('.').next();
    let major = major.and_then(|major| major.parse::<u32>().ok());
    let has_cdi = match (name.as_str(), config["enableCDI"].as_bool(), major) {
        (_, Some(configured), _) => Some(configured),
        ("cri-o", None, _) => Some(true),
        ("containerd", None, Some(major)) => Some(major >= 2),
        (_, None, _) => None,
    };
    let dirs = config["cdiSpecDirs"].as_array().into_iter().flatten();
    RuntimeReport {
        is_nvidia_default: is_nvidia_default(&config),
        spec_dirs: dirs
            .filter_map(|of| of.as_str().map(str::to_owned))
            .collect(),
        name,
        version,
        has_cdi,
    }
}

fn is_nvidia_default(config: &Value) -> bool {
    let handlers = &config["containerd"];
    let Some(name) = handlers["defaultRuntimeName"].as_str() else {
        return false;
    };
    let handler = &handlers["runtimes"][name];
    let program = handler["options"]["BinaryName"].as_str().unwrap_or(name);
    name.contains(NVIDIA) || program.contains(NVIDIA)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(name: &str, version: &str, config: &str) -> (Option<bool>, bool) {
        let reported = understand(name.into(), version.into(), config);
        (reported.has_cdi, reported.is_nvidia_default)
    }

    #[test]
    fn each_runtime_is_understood() {
        for (name, version, config, has_cdi) in [
            ("containerd", "1.6.20~ds1", "{}", Some(false)),
            (
                "containerd",
                "1.7.24~ds1",
                r#"{"enableCDI":false}"#,
                Some(false),
            ),
            ("containerd", "v1.7.27", r#"{"enableCDI":true}"#, Some(true)),
            (
                "containerd",
                "v2.0.6",
                r#"{"enableCDI":false}"#,
                Some(false),
            ),
            (
                "containerd",
                "v2.4.2",
                r#"{"cdiSpecDirs":["/etc/cdi"]}"#,
                Some(true),
            ),
            ("containerd", "1.7.24", "", Some(false)),
            ("cri-o", "1.32.8", "", Some(true)),
            ("docker", "27.0.0", "", None),
        ] {
            assert_eq!(
                reported(name, version, config).0,
                has_cdi,
                "{name} {version}"
            );
        }
    }

    #[test]
    fn a_folder_in_which_the_runtime_does_not_look_is_known() {
        let config = r#"{"cdiSpecDirs":["/etc/cdi","/var/run/cdi/"]}"#;
        let reported = understand("containerd".into(), "v2.4.2".into(), config);
        let reads = |own: &str| reads(&reported.spec_dirs, Path::new(own));
        assert!(reads("/run/cdi") && reads("/var/run/cdi") && reads("/etc/cdi"));
        assert!(!reads("/var/lib/cdi"));
        assert!(super::reads(&[], Path::new("/anywhere")));
    }

    #[test]
    fn a_kubelet_that_drops_the_names_of_devices_is_known() {
        assert!(!passes_cdi_on("v1.28.15"));
        assert!(passes_cdi_on("v1.29.0") && passes_cdi_on("v1.33.2+k3s1"));
    }

    #[test]
    fn nvidias_runtime_is_the_default_by_name_or_by_program() {
        let is_default = |name: &str, program: &str| {
            let config = serde_json::json!({"containerd": {
                "defaultRuntimeName": name,
                "runtimes": {name: {"options": {"BinaryName": program}}, "nvidia": {}},
            }});
            reported("containerd", "1.7.27", &config.to_string()).1
        };
        assert!(is_default("nvidia", "/usr/bin/nvidia-container-runtime"));
        assert!(is_default("runc", "/usr/bin/nvidia-container-runtime"));
        assert!(!is_default("runc", ""));
        assert!(!is_default("runc", "/usr/bin/runc"));
    }
}
