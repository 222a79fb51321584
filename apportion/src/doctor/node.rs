//! `apportion doctor --node`: describes a Kubernetes node, how its containers will get their limits, and which chart
//! values to set.
//!
//! It only reads, and asks the node's own programs for their versions. Apportion never configures a node's runtime.
//! `--root` names the node's file system if it is not this process's: `/proc/1/root` in the agent's pod. What is
//! found is one value ([`facts::NodeEnvironment`]); what follows from it is a pure function ([`choice::choose`]).

use std::collections::BTreeMap;
use std::path::Path;

use apportion_exit::CommandFailure;
use serde::Serialize;

use super::{COLUMNS, DoctorFinding, FindingState};
use crate::output;
use crate::table::lay_out;

mod choice;
mod containerd;
mod facts;
mod host;

use choice::DeliveryChoice;
use facts::{CdiSpecState, DriverLimitsFact, FeatureSupport, NodeEnvironment, SelinuxMode};
use host::NodeFilesystem;

/// The finding about files that could not be read.
const UNREAD: &str = "files";

#[derive(Serialize)]
struct NodeDoctorReport {
    findings: Vec<DoctorFinding>,
    #[serde(flatten)]
    choice: DeliveryChoice,
}

/// Checks the node below `root` and prints the result. Fails if a limit cannot be delivered.
pub(super) fn doctor(json: bool, root: &Path) -> Result<(), CommandFailure> {
    let host = NodeFilesystem::at(root);
    host.check()?;
    let report = report(&host);
    if json {
        output::json(&report)?
    } else {
        output::all(&text(&report))?
    }
    let missing = report.findings.iter();
    let missing: Vec<_> = missing
        .filter(|finding| finding.state == FindingState::Missing)
        .map(|finding| finding.check)
        .collect();
    match missing.as_slice() {
        [] => Ok(()),
        missing => Err(CommandFailure::new(format!(
            "not ready: {}",
            missing.join(", ")
        ))),
    }
}

fn report(host: &NodeFilesystem) -> NodeDoctorReport {
    let facts = facts::collect(host);
    let choice = choice::choose(&facts);
    let mut findings = findings(&facts);
    findings.extend(unread(&host.unreadable()));
    findings.push(DoctorFinding::good(
        "mode",
        format!("{}: {}", choice.mode, choice.reason),
    ));
    NodeDoctorReport { findings, choice }
}

fn text(report: &NodeDoctorReport) -> String {
    let mut text = lay_out(COLUMNS, &report.findings);
    for finding in &report.findings {
        if let Some(todo) = &finding.todo {
            text.push_str(&format!("{}: {todo}\n", finding.check));
        }
    }
    if report
        .findings
        .iter()
        .any(|finding| finding.check == UNREAD)
    {
        text.push_str("chart: unknown, because a part of the node could not be read\n");
        return text;
    }
    let values: &BTreeMap<_, _> = &report.choice.values;
    match (&report.choice.preset, values.is_empty()) {
        (None, true) => text.push_str("chart: no values to set\n"),
        (preset, _) => {
            text.push_str("chart:");
            if let Some(preset) = preset {
                text.push_str(&format!(" --values presets/{preset}.yaml"));
            }
            for (name, value) in values {
                text.push_str(&format!(" --set {name}={value}"));
            }
            text.push('\n');
        }
    }
    text
}

fn findings(facts: &NodeEnvironment) -> Vec<DoctorFinding> {
    let mut findings = vec![DoctorFinding::good("system", facts.system.as_str())];
    findings.push(match &facts.kubernetes {
        Some(version) => DoctorFinding::good("kubernetes", version),
        None => DoctorFinding::note(
            "kubernetes",
            "no kubelet found",
            "run this on a node, or name its file system with --root",
        ),
    });
    findings.push(match &facts.kubelet_root {
        Some(root) if facts.is_noexec => DoctorFinding::missing(
            "kubelet",
            format!("{root} is mounted noexec"),
            "libraries in it cannot be loaded; mount it without noexec",
        ),
        Some(root) => DoctorFinding::good("kubelet", root),
        None => DoctorFinding::missing(
            "kubelet",
            "no device-plugins folder found",
            "set the chart's kubeletRoot to the kubelet's root folder",
        ),
    });
    findings.push(runtime(facts));
    findings.push(support(
        "cdi",
        facts.runtime.cdi,
        "limits are delivered by environment variables, mounts and device files instead",
    ));
    findings.push(support(
        "nri",
        facts.runtime.nri,
        "a container that uses a GPU without a share is found only after it starts, through NVML",
    ));
    findings.push(nvidia(facts));
    findings.push(description(facts));
    findings.push(driver(facts));
    findings.push(match facts.selinux {
        SelinuxMode::Off => DoctorFinding::good("selinux", "off"),
        SelinuxMode::Permissive => DoctorFinding::good("selinux", "permissive"),
        SelinuxMode::Enforcing => DoctorFinding::good("selinux", "enforcing"),
    });
    findings.push(DoctorFinding::good(
        "cgroup",
        format!("version {}", facts.cgroup),
    ));
    findings.extend(enforcement(&facts.driver_limits));
    if let Some(found) = &facts.nvidia_plugin {
        findings.push(DoctorFinding::note(
            "device plugin",
            found,
            "two device plugins would give out the same GPUs; turn NVIDIA's off with this node's label \
             nvidia.com/gpu.deploy.device-plugin=false (GPU Operator) or \
             gke-no-default-nvidia-gpu-device-plugin=true (GKE)",
        ));
    }
    findings
}

/// What keeps limits on the node.
fn enforcement(driver: &DriverLimitsFact) -> [DoctorFinding; 3] {
    let driver = match driver {
        DriverLimitsFact::Kept(backend) => format!("kept ({backend})"),
        DriverLimitsFact::Possible(backend) => {
            format!("possible ({backend}); the agent tries it when it starts")
        }
        DriverLimitsFact::None(reason) => format!("none: {reason}"),
    };
    [
        DoctorFinding::good("library", "limits every program that loads it"),
        DoctorFinding::good("nvml watch", "the agent compares each share with NVML"),
        DoctorFinding::good("driver limits", driver),
    ]
}

/// A note that a part of the node could not be read, so that the results about it are guesses.
fn unread(unreadable: &[String]) -> Option<DoctorFinding> {
    let first = unreadable.first()?;
    let more = match unreadable.len() {
        1 => String::new(),
        many => format!(" and {} more", many - 1),
    };
    Some(DoctorFinding::missing(
        UNREAD,
        format!("cannot read {first}{more}"),
        "what needs these files is reported as if they were not there; run this as root",
    ))
}

fn runtime(facts: &NodeEnvironment) -> DoctorFinding {
    let runtime = &facts.runtime;
    match (&runtime.name, &runtime.version) {
        (Some(name), Some(version)) => DoctorFinding::good("runtime", format!("{name} {version}")),
        (Some(name), None) => DoctorFinding::note(
            "runtime",
            format!("{name}, version unknown"),
            "support of CDI and NRI depends on the version; `kubectl get nodes -o wide` shows it",
        ),
        (None, _) => DoctorFinding::missing(
            "runtime",
            "neither containerd nor CRI-O found",
            "run this on a node, or name its file system with --root",
        ),
    }
}

fn support(check: &'static str, support: FeatureSupport, otherwise: &str) -> DoctorFinding {
    match support {
        FeatureSupport::On => DoctorFinding::good(check, "on"),
        FeatureSupport::Off => DoctorFinding::note(check, "off", otherwise),
        FeatureSupport::Absent => DoctorFinding::note(check, "the runtime is too old", otherwise),
        FeatureSupport::Unknown => DoctorFinding::note(check, "unknown", otherwise),
    }
}

fn nvidia(facts: &NodeEnvironment) -> DoctorFinding {
    let runtime = &facts.runtime;
    if !runtime.is_nvidia_default {
        let found = if runtime.has_nvidia {
            "installed, not the default"
        } else {
            "none"
        };
        return DoctorFinding::good("nvidia runtime", found);
    }
    if facts.is_hardened {
        DoctorFinding::good(
            "nvidia runtime",
            "the default; ignores NVIDIA_VISIBLE_DEVICES of unprivileged containers",
        )
    } else {
        DoctorFinding::note(
            "nvidia runtime",
            "the default; any container that sets NVIDIA_VISIBLE_DEVICES gets GPUs",
            "set accept-nvidia-visible-devices-envvar-when-unprivileged = false in its config.toml, or label namespaces apportion.dev/guard=enabled",
        )
    }
}

fn description(facts: &NodeEnvironment) -> DoctorFinding {
    match &facts.description {
        CdiSpecState::In(path) => DoctorFinding::good("nvidia cdi", path),
        CdiSpecState::No => DoctorFinding::good("nvidia cdi", "none"),
        CdiSpecState::Badly(problem) => DoctorFinding::missing(
            "nvidia cdi",
            problem,
            "no container with a share can start; write the file again with `nvidia-ctk cdi generate`",
        ),
    }
}

fn driver(facts: &NodeEnvironment) -> DoctorFinding {
    match &facts.driver {
        Some(driver) => DoctorFinding::good(
            "driver",
            format!("{}/{}", driver.root.trim_end_matches('/'), driver.libraries),
        ),
        None => DoctorFinding::note(
            "driver",
            "libnvidia-ml.so.1 not found",
            "install the NVIDIA driver, or set the chart's simulatedGpus",
        ),
    }
}

#[cfg(test)]
mod tests;
