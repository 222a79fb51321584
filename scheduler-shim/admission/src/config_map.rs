//! The config maps through which KAI's binder tells a container its card.
//!
//! Apportion's agent delivers a share without them. They serve clusters where KAI binds and Apportion only admits. They
//! also serve to clean up after pods that KAI placed: their names must be found again.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::containers::{ContainerIndex, ContainerList, fraction_container};
use crate::names;
use crate::pod::Pod;
use crate::refusal::PodRefusal;

/// The characters of random name parts: no vowels, and no digits that look like vowels.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// The number of random characters in a name.
const RANDOM: usize = 7;
/// The end of every name.
const SUFFIX: &str = "shared-gpu";
/// The maximum length of a volume's name.
const LONGEST: usize = 63;
/// The value of [`names::RECEIVED`] for a pod that shares a card.
pub(crate) const FRACTION: &str = "Fraction";

/// The suffix that a container adds to the common prefix.
fn ending(position: ContainerIndex) -> String {
    match position.list {
        ContainerList::Init => format!("-i{}", position.index),
        ContainerList::Regular => format!("-{}", position.index),
    }
}

/// The common prefix of a pod's config map names, cut so that every name built from it stays valid.
#[must_use]
pub fn prefix(pod: &Pod, position: ContainerIndex, entropy: u64) -> String {
    let given = [&pod.metadata.name, &pod.metadata.generate_name];
    let own = given.into_iter().find(|name| !name.is_empty());
    let owner = pod.metadata.owner_references.first();
    let base = owner.map(|owner| &owner.name).or(own);
    // Two hyphens around the random part, and the suffixes `-0`, `-vol` and `-evar`.
    let room = LONGEST - (RANDOM + 2) - SUFFIX.len() - "-vol".len();
    let room = room - position.index.to_string().len() - 1 - "-evar".len();
    let base: String = base.map_or("", |base| base).chars().take(room).collect();
    let base = base.trim_end_matches(['.', '-']);
    format!("{base}-{}-{SUFFIX}", random(entropy))
}

fn random(mut entropy: u64) -> String {
    (0..RANDOM)
        .map(|_| {
            let count = LETTERS.len() as u64;
            let index = usize::try_from(entropy % count).unwrap_or_default();
            entropy /= count;
            char::from(LETTERS[index])
        })
        .collect()
}

/// The name of the config map with a container's card and portion.
///
/// # Errors
/// [`PodRefusal::ConfigMapName`] if the pod has no annotation with the prefix.
pub fn capabilities(pod: &Pod, position: ContainerIndex) -> Result<String, PodRefusal> {
    let prefix = pod
        .annotation(names::CONFIG_MAP)
        .ok_or_else(|| PodRefusal::ConfigMapName {
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
        })?;
    Ok(format!("{prefix}{}", ending(position)))
}

/// The same, but sets the annotation first if it is missing.
pub fn set_capabilities(pod: &mut Pod, position: ContainerIndex, entropy: u64) -> String {
    let fresh = prefix(pod, position, entropy);
    let annotations = &mut pod.metadata.annotations;
    let prefix = annotations.entry(names::CONFIG_MAP.to_owned());
    format!("{}{}", prefix.or_insert(fresh), ending(position))
}

/// The name of the config map whose entries all become variables.
#[must_use]
pub fn variables(capabilities: &str) -> String {
    format!("{capabilities}-evar")
}

/// The name of the volume that mounts a config map. It must be a DNS label; a config map's name need not be one.
#[must_use]
pub fn volume(capabilities: &str) -> String {
    let name = format!("{capabilities}-vol").to_lowercase();
    let mut label = String::new();
    for c in name.chars() {
        let is_plain = c.is_ascii_lowercase() || c.is_ascii_digit();
        match c {
            c if is_plain || c == '-' => label.push(c),
            _ if label.ends_with('\u{0}') => {}
            _ => label.push('\u{0}'),
        }
    }
    label.replace('\u{0}', "-").trim_matches('-').to_owned()
}

/// The config map to write for this pod: new, taken over from another owner, or completed.
#[must_use]
pub fn upsert(
    existing: Option<&Value>,
    pod: &Pod,
    name: &str,
    data: &BTreeMap<String, String>,
) -> Value {
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid});
    let namespace = &pod.metadata.namespace;
    let wanted = json!({
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [owner]},
        "data": data,
    });
    let Some(existing) = existing else {
        return wanted;
    };
    let owners = existing["metadata"]["ownerReferences"].as_array();
    let fields = ["apiVersion", "kind", "name", "uid"];
    if !owners.is_some_and(|owners| {
        owners.len() == 1
            && owners
                .iter()
                .all(|other| fields.iter().all(|field| other[field] == owner[field]))
    }) {
        return wanted;
    }
    let mut completed = existing.clone();
    for (key, value) in data.iter().filter(|(_, value)| !value.is_empty()) {
        completed["data"][key] = json!(value);
    }
    completed
}

/// The config maps to delete when KAI's binding is undone or taken over.
#[must_use]
pub fn to_delete(pod: &Pod, received: &str) -> Vec<String> {
    if received != FRACTION {
        return Vec::new();
    }
    let name = fraction_container(pod).and_then(|position| capabilities(pod, position));
    name.map_or(Vec::new(), |name| vec![name.clone(), variables(&name)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_named_by_a_label() {
        assert_eq!(volume("a.b_.c-x-shared-gpu-0"), "a-b-c-x-shared-gpu-0-vol");
        assert_eq!(volume("Ab.-c"), "ab--c-vol");
        assert_eq!(volume("..a"), "a-vol");
    }

    #[test]
    fn names_stay_names_however_long_the_pods_is() {
        for length in [1, 32, 33, 34, 63, 253] {
            for index in [0, 9, 10, 123] {
                let mut pod = Pod::default();
                pod.metadata.name = "a".repeat(length);
                let position = ContainerIndex {
                    list: ContainerList::Init,
                    index,
                };
                let name = set_capabilities(&mut pod, position, u64::MAX);
                assert!(variables(&name).len() <= LONGEST + 1, "{name}");
                assert!(volume(&name).len() <= LONGEST, "{name}");
            }
        }
    }
}
