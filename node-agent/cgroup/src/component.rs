//! One component of a control group's path, read in the light of what stands above it.
//!
//! The two drivers of the kubelet differ: `cgroupfs` makes `kubepods/burstable/podUID/ID`, systemd makes
//! slices that repeat their parents' names and scopes named after the runtime. A pod of the `cgroupfs`
//! kind is one only below a group of the kubelet's, or below `..`, which the kernel writes for what lies
//! outside the reader's own cgroup namespace.

use crate::names::{ContainerId, PodUid};

/// What runtimes write before a container's id.
const RUNTIMES: [&str; 4] = ["cri-containerd-", "crio-", "docker-", "libpod-"];
/// What a monitor's group begins with.
const MONITORS: [&str; 2] = ["crio-conmon-", "libpod-conmon-"];
/// The kubelet's classes of service that have a group; the guaranteed have none.
const CLASSES: [&str; 2] = ["burstable", "besteffort"];

/// What stands above a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParentCgroup {
    /// Nothing, or something that says nothing.
    Root,
    /// The kubelet's group of all pods.
    Pods,
    /// The kubelet's group of one class of service.
    Class,
    /// The way out of the reader's cgroup namespace.
    Outside,
}

/// A component.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CgroupComponent {
    /// A login session: its owner names what is below.
    Session,
    /// A pod's group.
    Pod(PodUid),
    /// A pod's slice and its container in one name, which is what a runtime that was told nothing of
    /// systemd makes of a path in systemd's notation.
    PodAndContainer(PodUid, ContainerId),
    /// Neither, and what it is to the next one.
    Other(ParentCgroup),
}

/// Reads one component above a pod.
pub(crate) fn read(above: ParentCgroup, component: &str) -> CgroupComponent {
    if component == "user.slice" || is_user_manager(component) {
        return CgroupComponent::Session;
    }
    if let Some(pod) = pod_group(above, component).or_else(|| pod_slice(component)) {
        return CgroupComponent::Pod(pod);
    }
    if let Some((pod, container)) = joined(component) {
        return CgroupComponent::PodAndContainer(pod, container);
    }
    CgroupComponent::Other(match component {
        ".." => ParentCgroup::Outside,
        "kubepods" => ParentCgroup::Pods,
        class
            if CLASSES.contains(&class)
                && matches!(above, ParentCgroup::Pods | ParentCgroup::Outside) =>
        {
            ParentCgroup::Class
        }
        _ => ParentCgroup::Root,
    })
}

/// Whether the group below a pod is a monitor's.
pub(crate) fn is_monitor(component: &str) -> bool {
    MONITORS.iter().any(|prefix| component.starts_with(prefix))
}

/// The container of the group below a pod.
pub(crate) fn container(component: &str) -> Option<ContainerId> {
    let name = component.strip_suffix(".scope").unwrap_or(component);
    let after = |prefix: &&str| name.strip_prefix(*prefix);
    ContainerId::read(RUNTIMES.iter().find_map(after).unwrap_or(name))
}

fn is_user_manager(component: &str) -> bool {
    component.starts_with("user@") && component.ends_with(".service")
}

fn pod_group(above: ParentCgroup, component: &str) -> Option<PodUid> {
    let uid = component.strip_prefix("pod")?;
    (above != ParentCgroup::Root).then(|| PodUid::read(uid))?
}

/// `kubepods-burstable-podUID.slice`, with whatever slices the kubelet was put below before it.
fn pod_slice(component: &str) -> Option<PodUid> {
    let name = component.strip_suffix(".slice")?;
    let (parents, uid) = name.rsplit_once("-pod")?;
    let class = |class: &&str| parents.strip_suffix(*class)?.strip_suffix('-');
    let pods = CLASSES.iter().find_map(class).unwrap_or(parents);
    let is_kubelets = pods == "kubepods" || pods.ends_with("-kubepods");
    is_kubelets.then(|| PodUid::read(uid))?
}

/// `SLICE:RUNTIME:ID`.
fn joined(component: &str) -> Option<(PodUid, ContainerId)> {
    let (slice, rest) = component.split_once(':')?;
    let (_, id) = rest.split_once(':')?;
    Some((pod_slice(slice)?, ContainerId::read(id)?))
}
