//! A grant as a CDI spec. It describes one device, the slot, and the runtime merges its edits into the container
//! that got the slot.
//!
//! The spec has the lowest version with all its fields: a runtime ignores a spec of a version that it does not know,
//! and then the device does not exist. A spec describes one slot and is named after it, because two specs that
//! describe the same device conflict, and then neither counts.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use apportion_abi::names::{CDI_ALLOCATION, CDI_KIND, CDI_POD};

use crate::container_edits::{ContainerEdits, ContainerMount, DeviceNode};

const VERSION: &str = "0.6.0";
/// NVIDIA's hook that sets the driver's limits, since toolkit 1.20.1.
const LIMIT_HOOK: &str = "apply-cuda-memory-limits";
/// The version that added `additionalGids`.
const VERSION_WITH_GROUPS: &str = "0.7.0";

/// Whom a spec is for.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct CdiSpecLabel {
    /// The device's name: the slot.
    pub slot: String,
    /// The pod's UID.
    pub pod: String,
    /// The allocation's id.
    pub allocation: String,
}

/// The edits of another CDI spec for the cards, such as the NVIDIA toolkit's. They are copied unchanged.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PassthroughEdits {
    /// `NAME=value`.
    #[serde(default)]
    pub env: Vec<String>,
    /// Device files.
    #[serde(default)]
    pub device_nodes: Vec<Value>,
    /// Mounts.
    #[serde(default)]
    pub mounts: Vec<Value>,
    /// Hooks that the runtime runs.
    #[serde(default)]
    pub hooks: Vec<Value>,
    /// Additional groups of the program, such as that of the cards' device files.
    #[serde(default)]
    pub additional_gids: Vec<u32>,
}

impl PassthroughEdits {
    /// Adds the edits that are missing.
    pub(crate) fn add(&mut self, other: &Self) {
        add(&mut self.env, &other.env);
        add(&mut self.device_nodes, &other.device_nodes);
        add(&mut self.mounts, &other.mounts);
        add(&mut self.hooks, &other.hooks);
        add(&mut self.additional_gids, &other.additional_gids);
    }

    /// Leaves out NVIDIA's hook that sets the driver's limits. It would read the pod's own variables where the grant
    /// has none.
    pub fn without_limit_hook(&mut self) {
        self.hooks.retain(|hook| !sets_limits(hook));
    }
}

/// Whether a hook runs `nvidia-cdi-hook apply-cuda-memory-limits`, or `nvidia-ctk hook apply-cuda-memory-limits`.
fn sets_limits(hook: &Value) -> bool {
    let words = hook["args"].as_array();
    words.is_some_and(|words| words.iter().any(|word| word == LIMIT_HOOK))
}

fn add<T: Clone + PartialEq>(list: &mut Vec<T>, other: &[T]) {
    for item in other {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

/// Why a file is not one of our CDI specs.
#[derive(Debug, thiserror::Error)]
pub enum CdiReadError {
    /// It is not valid JSON.
    #[error("failed to parse a CDI file")]
    Parse(#[from] serde_json::Error),
    /// It does not describe a slot with its pod and allocation.
    #[error("not a CDI file of Apportion")]
    Foreign,
}

/// The file name of a slot's spec.
#[must_use]
pub fn file_name(slot: &str) -> String {
    format!("{}-{slot}.json", CDI_KIND.replace('/', "-"))
}

/// The CDI device name of a slot, which the kubelet passes to the runtime.
#[must_use]
pub fn device_name(slot: &str) -> String {
    format!("{CDI_KIND}={slot}")
}

/// The content of the spec.
#[must_use]
pub fn render(label: &CdiSpecLabel, edits: &ContainerEdits, described: PassthroughEdits) -> Value {
    let mut all = described;
    // Of two values of one variable the later counts.
    all.env.extend(
        edits
            .env
            .iter()
            .map(|(name, value)| format!("{name}={value}")),
    );
    all.device_nodes.extend(edits.devices.iter().map(device));
    all.mounts.extend(edits.mounts.iter().map(mount));
    let version = if all.additional_gids.is_empty() {
        VERSION
    } else {
        VERSION_WITH_GROUPS
    };
    serde_json::json!({
        "cdiVersion": version,
        "kind": CDI_KIND,
        "devices": [{
            "name": label.slot,
            "annotations": {CDI_POD: label.pod, CDI_ALLOCATION: label.allocation},
            "containerEdits": without_empty(&all),
        }],
    })
}

/// Reads whom a spec of an earlier agent is for.
///
/// # Errors
/// If it is not one of our specs.
pub fn read(text: &[u8]) -> Result<CdiSpecLabel, CdiReadError> {
    let file: Value = serde_json::from_slice(text)?;
    let device = file.pointer("/devices/0").ok_or(CdiReadError::Foreign)?;
    let text = |value: Option<&Value>| {
        let text = value.and_then(Value::as_str).map(str::to_owned);
        text.ok_or(CdiReadError::Foreign)
    };
    let annotations = device.get("annotations");
    let annotation = |name: &str| text(annotations.and_then(|all| all.get(name)));
    Ok(CdiSpecLabel {
        slot: text(device.get("name"))?,
        pod: annotation(CDI_POD)?,
        allocation: annotation(CDI_ALLOCATION)?,
    })
}

/// Omits empty lists, which some runtimes refuse. A device without any edits is refused, too.
fn without_empty(all: &PassthroughEdits) -> Value {
    let mut edits = serde_json::json!(all);
    if let Value::Object(fields) = &mut edits {
        fields.retain(|_, list| list.as_array().is_some_and(|list| !list.is_empty()));
    }
    edits
}

/// A runtime uses the container's path if there is no host path.
fn device(device: &DeviceNode) -> Value {
    let mut node = serde_json::json!({"path": device.path, "permissions": "rw"});
    if device.host_path != device.path {
        node["hostPath"] = device.host_path.as_str().into();
    }
    node
}

fn mount(mount: &ContainerMount) -> Value {
    serde_json::json!({
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "options": mount.options,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> CdiSpecLabel {
        CdiSpecLabel {
            slot: "s-0001".into(),
            pod: "uid-1".into(),
            allocation: "1-1".into(),
        }
    }

    fn some_edits() -> ContainerEdits {
        ContainerEdits {
            env: vec![("A", "1".into())],
            mounts: vec![ContainerMount {
                host_path: "/h".into(),
                container_path: "/c".into(),
                options: &["ro", "bind"],
            }],
            devices: vec![
                DeviceNode {
                    path: "/dev/nvidia0".into(),
                    host_path: "/dev/nvidia0".into(),
                },
                DeviceNode {
                    path: "/dev/nvidiactl".into(),
                    host_path: "/d/dev/nvidiactl".into(),
                },
            ],
        }
    }

    #[test]
    fn a_grant_is_this_file() {
        let expected = serde_json::json!({
            "cdiVersion": "0.6.0",
            "kind": "apportion.dev/grant",
            "devices": [{
                "name": "s-0001",
                "annotations": {"apportion.dev/pod": "uid-1", "apportion.dev/allocation": "1-1"},
                "containerEdits": {
                    "env": ["A=1"],
                    "deviceNodes": [
                        {"path": "/dev/nvidia0", "permissions": "rw"},
                        {"path": "/dev/nvidiactl", "hostPath": "/d/dev/nvidiactl", "permissions": "rw"},
                    ],
                    "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro", "bind"]}],
                },
            }],
        });
        assert_eq!(
            render(&label(), &some_edits(), PassthroughEdits::default()),
            expected
        );
        assert_eq!(file_name("s-0001"), "apportion.dev-grant-s-0001.json");
        assert_eq!(device_name("s-0001"), "apportion.dev/grant=s-0001");
    }

    #[test]
    fn our_variables_come_after_those_of_another_description() {
        let described: PassthroughEdits =
            serde_json::from_value(serde_json::json!({"env": ["A=0"], "hooks": [{"path": "/x"}]}))
                .unwrap();
        let file = render(&label(), &some_edits(), described);
        let edits = &file["devices"][0]["containerEdits"];
        assert_eq!(file["cdiVersion"], "0.6.0");
        assert_eq!(edits["env"], serde_json::json!(["A=0", "A=1"]));
        assert_eq!(edits["hooks"][0]["path"], "/x");
    }

    #[test]
    fn a_file_has_the_lowest_version_that_knows_what_it_says() {
        let described = PassthroughEdits {
            additional_gids: vec![44],
            ..PassthroughEdits::default()
        };
        let file = render(&label(), &some_edits(), described);
        assert_eq!(file["cdiVersion"], "0.7.0");
    }

    #[test]
    fn a_file_says_for_whom_it_is() {
        let file = render(&label(), &some_edits(), PassthroughEdits::default());
        assert_eq!(read(file.to_string().as_bytes()).unwrap(), label());
        assert!(read(b"{}").is_err() && read(b"nothing").is_err());
    }
}
