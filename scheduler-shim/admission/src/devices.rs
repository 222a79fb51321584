//! Containers that must see no card, and so must not set `NVIDIA_VISIBLE_DEVICES`.
//!
//! Opt-in, as in KAI. An image may set the variable to `all` and see every card of the node. So a container that
//! requests no card gets `void`, and one that sets the variable itself is refused. The container with the share is
//! exempt: its variable is set when the pod has its card.

use crate::containers::{ContainerIndex, positions, shared_containers};
use crate::names;
use crate::pod::{Container, Pod, ResourceList, Variable};
use crate::refusal::PodRefusal;
use apportion_kubernetes::Quantity;

const NO_CARD: &str = "void";
const ALLOWED: [&str; 2] = [NO_CARD, "none"];

/// Refuses containers that choose their own cards.
///
/// # Errors
/// The first such container, init containers first.
pub fn check(pod: &Pod) -> Result<(), PodRefusal> {
    for position in others(pod)? {
        let Some(container) = position.of(pod) else {
            continue;
        };
        let variables = container.env.iter();
        for variable in variables.filter(|variable| variable.name == names::VISIBLE_DEVICES) {
            check_variable(container, variable)?;
        }
    }
    Ok(())
}

fn check_variable(container: &Container, variable: &Variable) -> Result<(), PodRefusal> {
    let container = container.name.clone();
    let value = &variable.value;
    if value.is_empty() && variable.value_from.is_some() {
        return Err(PodRefusal::VisibleDevicesFrom { container });
    }
    if !value.is_empty() && !ALLOWED.contains(&value.as_str()) {
        let value = value.clone();
        return Err(PodRefusal::VisibleDevices { container, value });
    }
    Ok(())
}

/// Hides all cards from containers that request none.
///
/// # Errors
/// [`PodRefusal::ContainerReference`] if the container with the share does not exist.
pub fn block(pod: &mut Pod) -> Result<(), PodRefusal> {
    for position in others(pod)? {
        let Some(container) = position.of_mut(pod) else {
            continue;
        };
        if !asks_for_card(&container.resources.requests) {
            container.set(names::VISIBLE_DEVICES, NO_CARD);
        }
    }
    Ok(())
}

/// The containers without a share.
fn others(pod: &Pod) -> Result<Vec<ContainerIndex>, PodRefusal> {
    let shared = if pod.spec.containers.is_empty() {
        Vec::new()
    } else {
        shared_containers(pod).map_err(|why| PodRefusal::ContainerReference(Box::new(why)))?
    };
    let mut all = positions(pod);
    all.retain(|position| !shared.contains(position));
    Ok(all)
}

fn asks_for_card(requests: &ResourceList) -> bool {
    requests.iter().any(|(name, amount)| {
        let is_card = name == names::WHOLE || name.starts_with(names::PARTITION);
        is_card
            && match amount {
                serde_json::Value::String(text) => {
                    text.parse::<Quantity>().is_ok_and(|q| !q.is_zero())
                }
                number => number.as_f64().is_some_and(|amount| amount != 0.0),
            }
    })
}
