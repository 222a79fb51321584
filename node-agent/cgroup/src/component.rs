//! Parses one component of a cgroup path, depending on the components above it.
//!
//! The kubelet's two cgroup drivers differ. `cgroupfs` makes `kubepods/burstable/podUID/ID`. systemd makes slices
//! that repeat their parents' names, and scopes named after the runtime. A `cgroupfs` pod name counts only below a
//! cgroup of the kubelet, or below `..`, which the kernel writes for cgroups outside the reader's cgroup namespace.

use crate::names::{ContainerId, PodUid};

/// The runtimes' prefixes of container ids.
const RUNTIMES: [&str; 4] = ["cri-containerd-", "crio-", "docker-", "libpod-"];
/// The prefixes of the cgroups of container monitors.
const MONITORS: [&str; 2] = ["crio-conmon-", "libpod-conmon-"];
/// The kubelet's QoS classes with their own cgroup; guaranteed pods have none.
const CLASSES: [&str; 2] = ["burstable", "besteffort"];

/// What is above a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParentCgroup {
    /// Nothing, or a cgroup without a meaning here.
    Root,
    /// The kubelet's cgroup of all pods.
    Pods,
    /// The kubelet's cgroup of one QoS class.
    Class,
    /// `..`, outside the reader's cgroup namespace.
    Outside,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CgroupComponent {
    /// A login session. Its owner can choose the names below it.
    Session,
    Pod(PodUid),
    /// A pod's slice and its container in one name. A runtime with the cgroupfs driver makes that of a path in
    /// systemd's notation.
    PodAndContainer(PodUid, ContainerId),
    /// Anything else, as the parent of the next component.
    Other(ParentCgroup),
}

/// Parses a component that is not below a pod.
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

/// Whether a cgroup below a pod is a container monitor's.
pub(crate) fn is_monitor(component: &str) -> bool {
    MONITORS.iter().any(|prefix| component.starts_with(prefix))
}

/// The container of a cgroup below a pod.
pub(crate) fn container(component: &str) -> Option<ContainerId> {
    let name = component.strip_suffix(".scope").unwrap_or(component);
    ContainerId::read(
        RUNTIMES
            .iter()
            .find_map(|prefix| name.strip_prefix(*prefix))
            .unwrap_or(name),
    )
}

fn is_user_manager(component: &str) -> bool {
    component.starts_with("user@") && component.ends_with(".service")
}

fn pod_group(above: ParentCgroup, component: &str) -> Option<PodUid> {
    let uid = component.strip_prefix("pod")?;
    (above != ParentCgroup::Root).then(|| PodUid::read(uid))?
}

/// Parses `kubepods-burstable-podUID.slice`, with any slices that the kubelet itself runs below in front.
fn pod_slice(component: &str) -> Option<PodUid> {
    let name = component.strip_suffix(".slice")?;
    let (parents, uid) = name.rsplit_once("-pod")?;
    let pods = CLASSES
        .iter()
        .find_map(|class| parents.strip_suffix(*class)?.strip_suffix('-'))
        .unwrap_or(parents);
    let is_kubelets = pods == "kubepods" || pods.ends_with("-kubepods");
    is_kubelets.then(|| PodUid::read(uid))?
}

/// `SLICE:RUNTIME:ID`.
fn joined(component: &str) -> Option<(PodUid, ContainerId)> {
    let (slice, rest) = component.split_once(':')?;
    let (_, id) = rest.split_once(':')?;
    Some((pod_slice(slice)?, ContainerId::read(id)?))
}
