//! Finds the pod and the container of a process from the text of `/proc/PID/cgroup`.
//!
//! A process can rewrite its own environment, and its parents can be anybody's, but only the kernel assigns its
//! cgroup. Every child of a container stays in the container's cgroup, a shell from `kubectl exec` joins it, and a
//! container engine inside a pod makes its cgroups below the pod's.
//!
//! # What is refused
//!
//! Nothing is guessed. A process belongs to no pod if its path has no pod in the kubelet's naming, if its
//! hierarchies name different pods, if it is a runtime's monitor, or if it is below a login session, whose owner can
//! choose any name. Among several pods on a path the outermost one counts; those below it belong to a nested
//! kubelet.

#![forbid(unsafe_code)]

mod component;
mod names;

use component::{CgroupComponent, ParentCgroup};
pub use names::{ContainerId, PodUid};

/// The pod and container of a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupOwner {
    /// The pod.
    pub pod: PodUid,
    /// The container; `None` if the cgroup is the pod's own or is not named after a container.
    pub container: Option<ContainerId>,
}

/// The pod and container of a process, from the text of its `/proc/PID/cgroup`.
#[must_use]
pub fn owner(text: &str) -> Option<CgroupOwner> {
    let mut found: Option<CgroupOwner> = None;
    for line in text.lines() {
        match owner_of_line(line) {
            HierarchyMatch::Nothing => {}
            HierarchyMatch::Monitor => return None,
            HierarchyMatch::Owner(owner) => match &mut found {
                None => found = Some(owner),
                Some(known) => agree(known, owner)?,
            },
        }
    }
    found
}

/// What one hierarchy says.
enum HierarchyMatch {
    Nothing,
    /// A runtime's monitor of a container, which is not part of it.
    Monitor,
    Owner(CgroupOwner),
}

/// Merges what two hierarchies say; `None` if they contradict each other.
fn agree(known: &mut CgroupOwner, other: CgroupOwner) -> Option<()> {
    let is_same = known.pod == other.pod
        && (known.container.is_none()
            || other.container.is_none()
            || known.container == other.container);
    is_same.then(|| known.container = known.container.take().or(other.container))
}

fn owner_of_line(line: &str) -> HierarchyMatch {
    // The line has the hierarchy's number, its controllers and the path.
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
                return HierarchyMatch::Owner(CgroupOwner { pod, container });
            }
        }
    }
    HierarchyMatch::Nothing
}

/// The cgroup right below a pod's.
fn inside(pod: PodUid, component: &str) -> HierarchyMatch {
    if component::is_monitor(component) {
        HierarchyMatch::Monitor
    } else {
        HierarchyMatch::Owner(CgroupOwner {
            pod,
            container: component::container(component),
        })
    }
}
