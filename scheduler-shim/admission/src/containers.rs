//! Which containers of a pod get a share.
//!
//! In KAI it is one: the container that an annotation names, searched among the init containers first, or else the
//! first regular container. KAI 0.18's annotations name their container in the key, and there may be several.

use std::collections::BTreeSet;

use crate::container_annotations::{self, AnnotationSubject};
use crate::names;
use crate::pod::{Container, Pod};
use crate::refusal::PodRefusal;

/// Which of a pod's two lists a container is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerList {
    /// Init containers.
    Init,
    /// Regular containers.
    Regular,
}

/// The position of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerIndex {
    /// The list.
    pub list: ContainerList,
    /// The index in the list.
    pub index: usize,
}

impl ContainerIndex {
    /// The container at this position.
    #[must_use]
    pub fn of(self, pod: &Pod) -> Option<&Container> {
        match self.list {
            ContainerList::Init => pod.spec.init_containers.get(self.index),
            ContainerList::Regular => pod.spec.containers.get(self.index),
        }
    }

    pub(crate) fn of_mut(self, pod: &mut Pod) -> Option<&mut Container> {
        match self.list {
            ContainerList::Init => pod.spec.init_containers.get_mut(self.index),
            ContainerList::Regular => pod.spec.containers.get_mut(self.index),
        }
    }
}

/// The positions of all containers, init containers first.
pub(crate) fn positions(pod: &Pod) -> Vec<ContainerIndex> {
    let of = |list, count| (0..count).map(move |index| ContainerIndex { list, index });
    let init = of(ContainerList::Init, pod.spec.init_containers.len());
    init.chain(of(ContainerList::Regular, pod.spec.containers.len()))
        .collect()
}

/// The first container with this name.
fn named(pod: &Pod, name: &str) -> Result<ContainerIndex, PodRefusal> {
    let mut all = positions(pod).into_iter();
    let found = all.find(|position| {
        position
            .of(pod)
            .is_some_and(|container| container.name == name)
    });
    found.ok_or_else(|| PodRefusal::Container(name.to_owned()))
}

/// The container that gets the share of a pod's `gpu-fraction` or `gpu-memory`.
///
/// # Errors
/// [`PodRefusal::Container`] if the named container does not exist, or none is named and there is no container.
pub fn fraction_container(pod: &Pod) -> Result<ContainerIndex, PodRefusal> {
    match pod.annotation(names::CONTAINER) {
        Some(name) => named(pod, name),
        None if pod.spec.containers.is_empty() => Err(PodRefusal::Container(String::new())),
        None => Ok(ContainerIndex {
            list: ContainerList::Regular,
            index: 0,
        }),
    }
}

/// Whether a pod asks for a share of a card, with any annotation.
#[must_use]
pub fn is_shared(pod: &Pod) -> bool {
    has_pod_share(pod) || !named_in_keys(pod).is_empty()
}

/// Whether a pod asks for a share with `gpu-fraction` or `gpu-memory`.
pub(crate) fn has_pod_share(pod: &Pod) -> bool {
    [names::FRACTION, names::MEMORY]
        .iter()
        .any(|key| pod.annotation(key).is_some())
}

/// The containers for which KAI 0.18's annotations ask for memory.
pub(crate) fn named_in_keys(pod: &Pod) -> BTreeSet<&str> {
    let keys = container_annotations::all(pod).filter(|key| {
        matches!(
            key.about,
            AnnotationSubject::Request | AnnotationSubject::Limit
        )
    });
    keys.map(|key| key.container).collect()
}

/// Whether a container misses this resource, without which it gets no share. Returns the name of a container that a key
/// names and that does not request it, or an empty name if no container requests it at all.
#[must_use]
pub fn without_resource<'p>(pod: &'p Pod, resource: &str) -> Option<&'p str> {
    let has = |container: &Container| container.resources.limits.contains_key(resource);
    let named = named_in_keys(pod).into_iter();
    let mut missing = named.filter(|name| {
        let mut all = pod.all_containers();
        !all.any(|container| container.name == **name && has(container))
    });
    if let Some(name) = missing.next() {
        return Some(name);
    }
    let is_bare = has_pod_share(pod) && !pod.all_containers().any(has);
    is_bare.then_some("")
}

/// All containers that get a share.
///
/// # Errors
/// [`PodRefusal::Container`] for the first that does not exist.
pub fn shared_containers(pod: &Pod) -> Result<Vec<ContainerIndex>, PodRefusal> {
    let mut found = Vec::new();
    let in_keys = named_in_keys(pod);
    // If both are present, KAI derived the container's annotation from the pod's.
    if has_pod_share(pod) && in_keys.is_empty() {
        found.push(fraction_container(pod)?);
    }
    for name in in_keys {
        found.push(named(pod, name)?);
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
