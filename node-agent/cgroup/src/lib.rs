//! From the text of `/proc/PID/cgroup` to the pod and the container that a process runs in.
//!
//! The environment of a process is its own to rewrite and its parents may be anybody; the control group
//! is the kernel's word. Every child of a container stays in its group, a shell that was executed into it
//! joins it, and a container engine inside a pod makes its groups below the pod's.
//!
//! # What is refused
//!
//! Nothing here guesses. A path without a pod of the kubelet's naming, hierarchies that name different
//! pods, a runtime's own monitor, and anything below a login session (whose owner may name groups as they
//! like) belong to no pod. Of several pods on one path the outermost is the node's; those below it are a
//! nested kubelet's.

#![forbid(unsafe_code)]

mod component;
mod names;

use component::{CgroupComponent, ParentCgroup};
pub use names::{ContainerId, PodUid};

/// Where a process runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupOwner {
    /// The pod.
    pub pod: PodUid,
    /// The container; `None` where the group is the pod's own or is not named after a container.
    pub container: Option<ContainerId>,
}

/// The place of a process, from the text of its `/proc/PID/cgroup`.
#[must_use]
pub fn place(text: &str) -> Option<CgroupOwner> {
    let mut found: Option<CgroupOwner> = None;
    for line in text.lines() {
        match place_of_line(line) {
            HierarchyMatch::Nothing => {}
            HierarchyMatch::Monitor => return None,
            HierarchyMatch::Place(place) => match &mut found {
                None => found = Some(place),
                Some(known) => agree(known, place)?,
            },
        }
    }
    found
}

/// What one hierarchy says.
enum HierarchyMatch {
    Nothing,
    /// A runtime's monitor of a container, which is not in it.
    Monitor,
    Place(CgroupOwner),
}

/// Completes one hierarchy's word with another's; `None` where they contradict each other.
fn agree(known: &mut CgroupOwner, other: CgroupOwner) -> Option<()> {
    let is_same = known.pod == other.pod
        && (known.container.is_none()
            || other.container.is_none()
            || known.container == other.container);
    is_same.then(|| known.container = known.container.take().or(other.container))
}

fn place_of_line(line: &str) -> HierarchyMatch {
    // The number of the hierarchy, its controllers, the path.
    let Some(path) = line.splitn(3, ':').nth(2) else {
        return HierarchyMatch::Nothing;
    };
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let Some(below_root) = path.strip_prefix('/') else {
        return HierarchyMatch::Nothing;
    };
    let mut above = ParentCgroup::Root;
    let mut components = below_root.split('/');
    while let Some(component) = components.next() {
        match component::read(above, component) {
            CgroupComponent::Session => return HierarchyMatch::Nothing,
            CgroupComponent::Other(next) => above = next,
            CgroupComponent::Pod(pod) => return inside(pod, components.next().unwrap_or_default()),
            CgroupComponent::PodAndContainer(pod, container) => {
                let container = Some(container);
                return HierarchyMatch::Place(CgroupOwner { pod, container });
            }
        }
    }
    HierarchyMatch::Nothing
}

/// The group right below a pod's.
fn inside(pod: PodUid, component: &str) -> HierarchyMatch {
    match component::is_monitor(component) {
        true => HierarchyMatch::Monitor,
        false => HierarchyMatch::Place(CgroupOwner {
            pod,
            container: component::container(component),
        }),
    }
}
