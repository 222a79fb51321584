//! NVIDIA's container toolkit as its installer leaves it on a node: the programs, a settings file, and a wrapper by which
//! containerd starts NVIDIA's runtime with these settings.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{InstalledDriver, ROOT, in_room, modules};
use crate::LocalCluster;
use crate::binaries;
use crate::containerd::NVIDIA_RUNTIME;

/// The RuntimeClass, and what containerd calls the runtime.
pub const RUNTIME_CLASS: &str = "nvidia";
/// A folder for CDI specs that only NVIDIA's runtime reads, on the node and as seen from outside.
const PRIVATE_SPECS: (&str, &str) = ("/run/apportion/nvidia-cdi", "apportion/nvidia-cdi");
/// The device of a spec that has all GPUs.
const ALL: &str = "all";
/// The socket of the cluster's simulated GPUs on the node.
const SIM_SOCKET: &str = "/run/apportion/sim/driver.sock";
/// The same in a container.
const SOCKET: &str = "/run/driver.sock";

/// How NVIDIA's runtime brings a GPU into a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolkitMode {
    /// By a CDI spec that it makes for each container.
    Automatic,
    /// By the node's CDI spec, and asked by a variable of the container (the toolkit's default).
    Cdi,
    /// By the node's CDI spec, and asked by mounts: a variable of an unprivileged container counts for nothing.
    CdiByMounts,
}

/// Who finds the CDI spec of the node's GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecAudience {
    /// Everybody: it lies where runtimes look.
    Node,
    /// NVIDIA's runtime alone.
    NvidiaRuntime,
}

/// The toolkit on a node. It goes when this is dropped.
#[derive(Debug)]
pub struct InstalledToolkit {
    /// What of it is files, in the order in which they were made.
    made: Vec<PathBuf>,
}

impl InstalledToolkit {
    /// Installs it on the node of `cluster`, with a RuntimeClass and a CDI spec of the node's GPUs.
    ///
    /// # Errors
    /// If a program cannot be built, or the toolkit finds no driver.
    pub fn install(
        cluster: &LocalCluster,
        _driver: &InstalledDriver,
        mode: ToolkitMode,
        audience: SpecAudience,
    ) -> Result<Self> {
        let programs = binaries::of_nvidia(&modules(), "container-toolkit")?;
        let folder = cluster.folder().path();
        let wrapper = folder.join(NVIDIA_RUNTIME);
        let settings = wrapper.with_file_name("config.toml");
        let specs = match audience {
            SpecAudience::Node => cluster.folder().cdi(),
            SpecAudience::NvidiaRuntime => folder.join(PRIVATE_SPECS.1),
        };
        let spec = specs.join("nvidia.json");
        let toolkit = Self {
            made: vec![wrapper, settings, spec],
        };
        for path in &toolkit.made {
            fs::create_dir_all(path.parent().context("a file has a folder")?)?;
        }
        let [wrapper, settings, spec] = &toolkit.made[..] else {
            unreachable!("three files were named");
        };
        fs::write(settings, text(mode, &programs["nvidia-ctk"]))?;
        let runtime = &programs["nvidia-container-runtime"];
        let script = format!(
            "#!/bin/sh\nNVIDIA_CTK_CONFIG_FILE_PATH='{}' exec '{}' \"$@\"\n",
            settings.display(),
            runtime.display()
        );
        fs::write(wrapper, script)?;
        fs::set_permissions(wrapper, fs::Permissions::from_mode(0o755))?;
        describe(
            cluster,
            &programs["nvidia-ctk"],
            &programs["nvidia-cdi-hook"],
            spec,
        )?;
        cluster.apply(
            &json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": {"name": RUNTIME_CLASS}, "handler": RUNTIME_CLASS}),
        )?;
        Ok(toolkit)
    }
}

impl Drop for InstalledToolkit {
    fn drop(&mut self) {
        for path in &self.made {
            let _ = fs::remove_file(path);
        }
    }
}

fn text(mode: ToolkitMode, ctk: &Path) -> String {
    let name = match mode {
        ToolkitMode::Automatic => "auto",
        ToolkitMode::Cdi | ToolkitMode::CdiByMounts => "cdi",
    };
    let by_mounts = mode == ToolkitMode::CdiByMounts;
    format!(
        r#"accept-nvidia-visible-devices-as-volume-mounts = {by_mounts}
accept-nvidia-visible-devices-envvar-when-unprivileged = {by_variable}

[nvidia-container-cli]
root = "{ROOT}"

[nvidia-ctk]
path = "{ctk}"

[nvidia-container-runtime]
mode = "{name}"

[nvidia-container-runtime.modes.cdi]
spec-dirs = ["{specs}"]
"#,
        by_variable = !by_mounts,
        ctk = ctk.display(),
        specs = PRIVATE_SPECS.0,
    )
}

/// Has `nvidia-ctk` write the spec. A simulated GPU is no device file: programs reach all of them by one socket. So the spec
/// brings the socket along, and each device says which GPU it is.
fn describe(cluster: &LocalCluster, ctk: &Path, hook: &Path, spec: &Path) -> Result<()> {
    let mut command = in_room(cluster, ctk)?;
    command
        .args(["cdi", "generate", "--mode", "nvml", "--format", "json"])
        .args(["--device-name-strategy", "uuid", "--driver-root", ROOT])
        .arg("--nvidia-cdi-hook-path")
        .arg(hook);
    let output = command.output().context("failed to start nvidia-ctk")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "nvidia-ctk failed: {said}");
    let mut content: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("nvidia-ctk wrote no JSON: {said}"))?;
    let socket =
        json!({"hostPath": SIM_SOCKET, "containerPath": SOCKET, "options": ["ro", "bind"]});
    add(&mut content, "mounts", socket);
    add(
        &mut content,
        "env",
        format!("APPORTION_SIM_SOCKET={SOCKET}").into(),
    );
    let devices = content["devices"].as_array_mut();
    let devices = devices.with_context(|| format!("nvidia-ctk found no GPU: {said}"))?;
    for device in devices {
        let name = device["name"].as_str().unwrap_or_default().to_owned();
        if name != ALL {
            add(device, "env", format!("CUDA_VISIBLE_DEVICES={name}").into());
        }
    }
    fs::write(spec, content.to_string())
        .with_context(|| format!("failed to write {}", spec.display()))
}

/// Adds an entry to a list of the container edits of a spec or a device.
fn add(to: &mut Value, list: &str, entry: Value) {
    let list = &mut to["containerEdits"][list];
    match list.as_array_mut() {
        Some(entries) => entries.push(entry),
        None => *list = json!([entry]),
    }
}
