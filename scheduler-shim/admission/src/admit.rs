//! What admission does with a pod, in KAI's order.
//!
//! A pod is first mutated, then validated. A rule that the cluster has switched off does neither. An update is not
//! validated for what it leaves unchanged: a pod that was admitted while a rule was off, or while the webhook was down,
//! must still be able to finish.

use serde_json::json;

use crate::containers::{ContainerIndex, is_shared, shared_containers};
use crate::immutable_fields::is_gpu_request;
use crate::limits::{self, RequestBelowLimit, growing};
use crate::pod::{Pod, Variable, VariablesFrom, Volume};
use crate::refusal::PodRefusal;
use crate::strict::StrictBounds;
use crate::{
    config_map, devices, idle_time, immutable_fields, names, request, share_resources, strict,
    unsupported,
};

/// How a container gets its card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuDelivery {
    /// From the node's agent. The container gets a slot: one unit of this resource.
    Slot(String),
    /// Through config maps that KAI's binder writes.
    ConfigMaps {
        /// Whether HAMi's library also reads its memory limit there.
        with_memory_limit: bool,
    },
}

/// The rules that a cluster has switched on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionSettings {
    /// Whether pods may share cards.
    pub sharing: bool,
    /// How a container gets its card.
    pub delivery: GpuDelivery,
    /// Whether containers that request no card must not see any.
    pub block_visible_devices: bool,
    /// The runtime class of pods that share a card.
    pub runtime_class: Option<String>,
    /// The bounds of the strict mode, if it is on.
    pub strict: Option<StrictBounds>,
    /// Whether containers with a share also request it as a resource, which quotas and autoscalers count.
    pub count_shares: bool,
    /// What to do with limits above the request.
    pub request_below_limit: RequestBelowLimit,
}

/// Adds to a pod what its share needs.
///
/// # Errors
/// The first rule that makes this impossible. The pod may then be half changed.
pub fn mutate(pod: &mut Pod, settings: &AdmissionSettings, entropy: u64) -> Result<(), PodRefusal> {
    limits::mark(pod, settings.request_below_limit);
    if is_shared(pod) && !pod.spec.containers.is_empty() {
        let shared =
            shared_containers(pod).map_err(|why| PodRefusal::ContainerReference(Box::new(why)))?;
        for position in shared {
            match &settings.delivery {
                GpuDelivery::Slot(resource) => take_slot(pod, position, resource),
                GpuDelivery::ConfigMaps { with_memory_limit } => {
                    let name = config_map::set_capabilities(pod, position, entropy);
                    refer(pod, position, &name);
                    if *with_memory_limit {
                        limit_memory(pod, position)?;
                    }
                }
            }
        }
    }
    if settings.count_shares {
        share_resources::fill(pod);
    }
    if settings.block_visible_devices {
        devices::block(pod)?;
    }
    if let Some(class) = settings.runtime_class.as_deref() {
        set_runtime_class(pod, class);
    }
    Ok(())
}

/// Makes the kubelet call the node's agent before the container starts.
fn take_slot(pod: &mut Pod, position: ContainerIndex, resource: &str) {
    let Some(container) = position.of_mut(pod) else {
        return;
    };
    for amounts in [
        &mut container.resources.limits,
        &mut container.resources.requests,
    ] {
        amounts.insert(resource.to_owned(), json!("1"));
    }
    // Only the agent may set these variables.
    for name in [
        names::VISIBLE_DEVICES,
        names::NUM_OF_GPUS,
        names::PORTION,
        names::MEMORY_LIMIT,
    ] {
        container.remove(name);
    }
}

/// Makes a container read its card and portion from config maps that KAI's binder will write.
pub fn refer(pod: &mut Pod, position: ContainerIndex, name: &str) {
    let Some(container) = position.of_mut(pod) else {
        return;
    };
    for key in [names::VISIBLE_DEVICES, names::NUM_OF_GPUS, names::PORTION] {
        container.append(key, json!({"configMapKeyRef": {"name": name, "key": key}}));
    }
    let variables = config_map::variables(name);
    if !container.env_from.iter().any(|from| {
        let reference = from.config_map_ref.as_ref();
        reference.is_some_and(|reference| reference["name"] == variables.as_str())
    }) {
        container.env_from.push(VariablesFrom {
            config_map_ref: Some(json!({"name": variables, "optional": false})),
            ..VariablesFrom::default()
        });
    }
    let volume = config_map::volume(name);
    pod.spec.volumes.retain(|other| other.name != volume);
    pod.spec.volumes.push(Volume {
        name: volume,
        config_map: Some(json!({"name": name})),
        ..Volume::default()
    });
}

/// Makes a container read its limit from the config map that KAI's binder writes for HAMi's library.
///
/// # Errors
/// [`PodRefusal::ConfigMapName`] if the config map has no name yet.
pub fn limit_memory(pod: &mut Pod, position: ContainerIndex) -> Result<(), PodRefusal> {
    let name = config_map::capabilities(pod, position)?;
    let key = names::MEMORY_LIMIT;
    if let Some(container) = position.of_mut(pod) {
        container.remove(key);
        container.env.push(Variable {
            name: key.to_owned(),
            value_from: Some(
                json!({"configMapKeyRef": {"name": name, "key": key, "optional": true}}),
            ),
            ..Variable::default()
        });
    }
    Ok(())
}

/// Sets the runtime class of a pod that shares a card and chose none.
pub fn set_runtime_class(pod: &mut Pod, class: &str) {
    if is_shared(pod) && pod.spec.runtime_class_name.is_empty() {
        class.clone_into(&mut pod.spec.runtime_class_name);
    }
}

/// Validates a pod that is created.
///
/// # Errors
/// The first rule that it breaks.
pub fn validate(pod: &Pod, settings: &AdmissionSettings) -> Result<(), PodRefusal> {
    if !settings.sharing && is_shared(pod) {
        return Err(PodRefusal::SharingIsOff {
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
        });
    }
    request::check(pod)?;
    unsupported::check(pod)?;
    share_resources::check(pod)?;
    limits::check_setting(pod, settings.request_below_limit)?;
    idle_time::idle_time(pod)?;
    if settings.block_visible_devices {
        devices::check(pod)?;
    }
    match settings.strict {
        Some(bounds) => strict::check(pod, bounds),
        None => Ok(()),
    }
}

/// The warnings for the user who creates an admitted pod.
#[must_use]
pub fn warnings(pod: &Pod) -> Vec<String> {
    let grows = growing(pod).filter(|_| !limits::may_burst(pod));
    let grows = grows.map(|growing| growing.warning());
    grows
        .into_iter()
        .chain(unsupported::warnings(pod))
        .chain(idle_time::warning(pod))
        .collect()
}

/// Validates an update of a pod.
///
/// # Errors
/// The first rule that the change breaks.
pub fn validate_update(
    old: &Pod,
    new: &Pod,
    settings: &AdmissionSettings,
) -> Result<(), PodRefusal> {
    if new.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    immutable_fields::check(old, new)?;
    let asked = |pod: &Pod| {
        let annotations = pod.metadata.annotations.clone().into_iter();
        let asked: Vec<_> = annotations.filter(|(key, _)| is_gpu_request(key)).collect();
        asked
    };
    if asked(old) == asked(new) && old.spec.containers == new.spec.containers {
        return Ok(());
    }
    limits::check_mark(old, new)?;
    let settings = AdmissionSettings {
        request_below_limit: limits::setting_of(old, settings.request_below_limit),
        ..settings.clone()
    };
    validate(new, &settings)
}
