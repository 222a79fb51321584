//! The checks of `doctor`, in the order of their dependencies.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use apportion_abi::paths;
use apportion_proto::v1::Node;
use nix::unistd::Uid;

use super::DoctorFinding;
use crate::agent::{AgentUnreachable, try_connect};
use crate::instance::TargetInstance;
use crate::probe::{self, ProbeAnswer, ProbeReport};
use crate::{block_on, metrics};

/// The first kernel whose process file descriptors can be polled.
const KERNEL: (u32, u32) = (5, 3);
/// The first driver that enforces memory limits by control group.
const LIMITING_DRIVER: u32 = 615;

const INSTALL: &str =
    "reinstall Apportion, or set APPORTION_LIB_DIR to the folder of its libraries";
const AGENT: &str = "stop the agent that holds the socket, or set APPORTION_DIR to another folder";
const DRIVER: &str = "install the NVIDIA driver, or use simulated GPUs with --sim";

pub(super) fn all(instance: &TargetInstance) -> Vec<DoctorFinding> {
    let mut findings = vec![
        kernel(),
        installation(instance),
        preload(instance),
        folder(instance),
    ];
    if instance.is_simulated {
        findings.push(simulation(instance));
    }
    findings.extend(driver(instance));
    findings.extend(agent(instance));
    findings
}

fn kernel() -> DoctorFinding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= KERNEL => {
            DoctorFinding::good("kernel", release)
        }
        _ => DoctorFinding::missing("kernel", release, "the agent needs Linux 5.3 or newer"),
    }
}

fn installation(instance: &TargetInstance) -> DoctorFinding {
    let sim = |file: &str| format!("{}/{file}", paths::SIM_LIBRARIES);
    let files = [
        instance.agent_program(),
        instance.library(paths::PRELOAD_LIBRARY),
        instance.library(paths::SIM_DAEMON),
        instance.library(&sim("libcuda.so.1")),
        instance.library(&sim("libnvidia-ml.so.1")),
        probe::program(instance),
    ];
    let missing: Vec<_> = files
        .iter()
        .filter_map(|file| file.as_ref().err())
        .collect();
    match missing.first() {
        None => DoctorFinding::good("installation", format!("all {} files found", files.len())),
        Some(first) => DoctorFinding::failed("installation", first, INSTALL),
    }
}

/// If a library can't be preloaded, the linker only prints a warning on standard error and continues without it.
fn preload(instance: &TargetInstance) -> DoctorFinding {
    let name = "preload";
    let library = match instance.library(paths::PRELOAD_LIBRARY) {
        Ok(library) => library,
        Err(failure) => return DoctorFinding::failed(name, &failure, INSTALL),
    };
    let run = Command::new("/bin/true")
        .env("LD_PRELOAD", &library)
        .stdin(Stdio::null())
        .output();
    let (said, succeeded) = match run {
        Ok(output) => (
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            output.status.success(),
        ),
        Err(error) => (format!("cannot run /bin/true: {error}"), false),
    };
    if succeeded && said.is_empty() {
        return DoctorFinding::good(name, library.display().to_string());
    }
    let todo = "the library must be readable, on a file system that is not mounted noexec";
    DoctorFinding::missing(
        name,
        said.lines()
            .next()
            .unwrap_or("/bin/true failed with the library preloaded"),
        todo,
    )
}

fn folder(instance: &TargetInstance) -> DoctorFinding {
    let shown = instance.dir.display();
    match fs::metadata(&instance.dir) {
        Err(_) => DoctorFinding::good("folder", format!("{shown}, created when needed")),
        Ok(found) if found.uid() == Uid::effective().as_raw() => {
            DoctorFinding::good("folder", shown.to_string())
        }
        Ok(_) if instance.is_shared => {
            DoctorFinding::good("folder", format!("{shown}, of root's agent for all users"))
        }
        Ok(found) => {
            let owner = format!("{shown} belongs to user {}", found.uid());
            DoctorFinding::missing(
                "folder",
                owner,
                "set APPORTION_DIR to a folder that you own",
            )
        }
    }
}

/// The later check of the cards starts the daemon, as every use of simulated cards does.
fn simulation(instance: &TargetInstance) -> DoctorFinding {
    let socket = &instance.driver_socket;
    if UnixStream::connect(socket).is_ok() {
        return DoctorFinding::good("simulation", format!("running at {}", socket.display()));
    }
    let started = instance.prepare().and_then(|()| {
        crate::simulation::ensure(instance, &crate::simulation::SimulationSpec::default())
    });
    match started {
        Ok(_) => DoctorFinding::good("simulation", format!("started at {}", socket.display())),
        Err(failure) => DoctorFinding::failed("simulation", &failure, INSTALL),
    }
}

fn driver(instance: &TargetInstance) -> Vec<DoctorFinding> {
    let report = match probe::ask(instance) {
        Ok(report) => report,
        Err(failure) => return vec![DoctorFinding::failed("driver", &failure, DRIVER)],
    };
    let mut findings = vec![library("nvml", &report.nvml), library("cuda", &report.cuda)];
    findings.extend(card_memory(&report));
    if let ProbeAnswer::Found(nvml) = &report.nvml {
        findings.push(driver_limits(
            &nvml.version,
            Path::new("/sys/fs/cgroup/cgroup.controllers"),
        ));
    }
    findings
}

fn library(check: &'static str, answer: &ProbeAnswer) -> DoctorFinding {
    match answer {
        ProbeAnswer::Error(error) => DoctorFinding::missing(check, error, DRIVER),
        ProbeAnswer::Found(found) if found.cards.is_empty() => {
            let says = format!("version {}, no GPUs", found.version);
            DoctorFinding::missing(check, says, "add a GPU, or use simulated GPUs with --sim")
        }
        ProbeAnswer::Found(found) => {
            let names: Vec<_> = found.cards.iter().map(|card| card.name.as_str()).collect();
            DoctorFinding::good(
                check,
                format!("version {}, {}", found.version, names.join(", ")),
            )
        }
    }
}

/// Cards that use the system's memory. For these, the administrator must set how much can be shared.
fn card_memory(report: &ProbeReport) -> Option<DoctorFinding> {
    const MIB: u64 = 1 << 20;
    let ProbeAnswer::Found(nvml) = &report.nvml else {
        return None;
    };
    let sizeless = nvml.cards.iter().find(|card| card.total_bytes == 0)?;
    let programs = match &report.cuda {
        ProbeAnswer::Found(cuda) => cuda.cards.iter().find(|card| card.uuid == sizeless.uuid),
        ProbeAnswer::Error(_) => None,
    };
    let name = &sizeless.name;
    let most = programs.map_or(0, |card| card.total_bytes / MIB);
    let todo = match most {
        0 => format!(
            "start the agent with --card-memory '{name}=MIB' (chart: cardMemory); without it this GPU cannot be shared"
        ),
        most => format!(
            "start the agent with --card-memory '{name}=MIB' (chart: cardMemory), where MIB is at most {most}, less what \
             other programs of the machine need; without it this GPU cannot be shared"
        ),
    };
    let found = format!("{name} uses the machine's memory and has none of its own");
    Some(DoctorFinding::note("card memory", found, &todo))
}

/// Whether the driver itself keeps limits. It limits control groups, and programs of `apportion run` have none of their
/// own. Apportion's library limits with every driver.
fn driver_limits(version: &str, controllers: &Path) -> DoctorFinding {
    let major = version
        .split('.')
        .next()
        .and_then(|part| part.parse::<u32>().ok());
    let is_new = major.is_some_and(|major| major >= LIMITING_DRIVER);
    let found = match (is_new, controllers.exists()) {
        (true, true) => "of containers only; here the library limits",
        (true, false) => "none without control groups of version 2; the library limits",
        (false, _) => "none in this driver; the library limits",
    };
    DoctorFinding::good("driver limits", found)
}

fn agent(instance: &TargetInstance) -> Vec<DoctorFinding> {
    let asked = block_on(async {
        match try_connect(instance).await {
            Ok(mut agent) => Ok(Some(agent.list().await?.node.unwrap_or_default())),
            Err(AgentUnreachable::Absent) => Ok(None),
            Err(AgentUnreachable::Failed(failure) | AgentUnreachable::Silent(failure)) => {
                Err(failure)
            }
        }
    });
    match asked {
        Ok(None) => vec![DoctorFinding::good(
            "agent",
            "not running; `apportion run` starts it",
        )],
        Ok(Some(node)) => vec![running(&node), watch(&node), metrics(&node)],
        Err(failure) => vec![DoctorFinding::failed("agent", &failure, AGENT)],
    }
}

fn running(node: &Node) -> DoctorFinding {
    let found = format!("version {}, pid {}", node.agent_version, node.pid);
    if node.agent_version == env!("CARGO_PKG_VERSION") {
        return DoctorFinding::good("agent", found);
    }
    DoctorFinding::note(
        "agent",
        found,
        "its version is not the version of this command; stop the agent when it is idle",
    )
}

/// What the agent itself adds to the library.
fn watch(node: &Node) -> DoctorFinding {
    let found = match node.driver_limits.as_str() {
        "" => "compares programs with NVML".to_owned(),
        backend => {
            format!("compares programs with NVML; limits containers in the driver ({backend})")
        }
    };
    DoctorFinding::good("nvml watch", found)
}

fn metrics(node: &Node) -> DoctorFinding {
    let address = &node.metrics_address;
    if address.is_empty() {
        return DoctorFinding::note(
            "metrics",
            "not served",
            "start the agent with --metrics-address",
        );
    }
    match metrics::get(address, "/healthz") {
        Ok(_) => DoctorFinding::good("metrics", format!("http://{address}/metrics")),
        Err(failure) => DoctorFinding::note("metrics", failure.to_string(), "see the agent's log"),
    }
}
