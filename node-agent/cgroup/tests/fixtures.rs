//! The cgroup paths that kubelets, runtimes and nested clusters make, and the pods and containers in them.

use apportion_cgroup::owner;

const UID: &str = "6f1c2d3e-4b5a-4978-8a6b-1c2d3e4f5a6b";
const HASH: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f0";

/// A name, the text, and the expected result. In the text, `{uid}`, `{uid_}`, `{hash}`, `{c}` and `{d}` stand for
/// the UID, the UID with underscores, a static pod's hash and two container ids.
struct CgroupCase(&'static str, &'static str, ExpectedOwner);

enum ExpectedOwner {
    Container,
    StaticContainer,
    PodOnly,
    Nothing,
}

use ExpectedOwner::{Container, Nothing, PodOnly, StaticContainer};

#[rustfmt::skip]
const ROWS: &[CgroupCase] = &[
    // The cgroupfs driver.
    CgroupCase("v2 cgroupfs guaranteed", "0::/kubepods/pod{uid}/{c}", Container),
    CgroupCase("v2 cgroupfs burstable", "0::/kubepods/burstable/pod{uid}/{c}", Container),
    CgroupCase("v2 cgroupfs best effort", "0::/kubepods/besteffort/pod{uid}/{c}", Container),
    CgroupCase("v1 cgroupfs one controller", "4:memory:/kubepods/burstable/pod{uid}/{c}", Container),
    CgroupCase("v1 cgroupfs named hierarchy", "1:name=systemd:/kubepods/besteffort/pod{uid}/{c}", Container),
    CgroupCase("v1 cgroupfs all controllers",
        "12:devices:/kubepods/pod{uid}/{c}\n11:cpu,cpuacct:/kubepods/pod{uid}/{c}\n4:memory:/kubepods/pod{uid}/{c}\n0::/", Container),
    CgroupCase("hybrid, the unified hierarchy is the runtime's service",
        "4:memory:/kubepods/pod{uid}/{c}\n0::/system.slice/containerd.service", Container),
    CgroupCase("cgroupfs below a root of the administrator's", "0::/tenants/kubepods/burstable/pod{uid}/{c}", Container),
    CgroupCase("cgroupfs static pod", "0::/kubepods/burstable/pod{hash}/{c}", StaticContainer),
    CgroupCase("cgroupfs CRI-O", "0::/kubepods/besteffort/pod{uid}/crio-{c}", Container),
    CgroupCase("cgroupfs CRI-O monitor", "0::/kubepods/besteffort/pod{uid}/crio-conmon-{c}", Nothing),
    // The systemd driver.
    CgroupCase("v2 systemd containerd guaranteed",
        "0::/kubepods.slice/kubepods-pod{uid_}.slice/cri-containerd-{c}.scope", Container),
    CgroupCase("v2 systemd containerd burstable",
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid_}.slice/cri-containerd-{c}.scope", Container),
    CgroupCase("v2 systemd containerd best effort",
        "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid_}.slice/cri-containerd-{c}.scope", Container),
    CgroupCase("v1 systemd containerd",
        "9:devices:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid_}.slice/cri-containerd-{c}.scope", Container),
    CgroupCase("systemd CRI-O",
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid_}.slice/crio-{c}.scope", Container),
    CgroupCase("systemd CRI-O with a child group",
        "0::/kubepods.slice/kubepods-pod{uid_}.slice/crio-{c}.scope/container", Container),
    CgroupCase("systemd CRI-O monitor",
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid_}.slice/crio-conmon-{c}.scope", Nothing),
    CgroupCase("systemd cri-dockerd",
        "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid_}.slice/docker-{c}.scope", Container),
    CgroupCase("systemd static pod",
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{hash}.slice/cri-containerd-{c}.scope", StaticContainer),
    CgroupCase("systemd init group in the container",
        "0::/kubepods.slice/kubepods-pod{uid_}.slice/cri-containerd-{c}.scope/init.scope", Container),
    CgroupCase("a slice path given to a runtime with the cgroupfs driver, v1",
        "4:memory:/system.slice/containerd.service/kubepods-burstable-pod{uid_}.slice:cri-containerd:{c}", Container),
    CgroupCase("a slice path given to a runtime with the cgroupfs driver, v2",
        "0::/kubepods-besteffort-pod{uid_}.slice:cri-containerd:{c}", Container),
    // Nested clusters and engines.
    CgroupCase("kind, cgroupfs, own namespace", "0::/kubelet/kubepods/burstable/pod{uid}/{c}", Container),
    CgroupCase("kind, systemd, own namespace",
        "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{uid_}.slice/cri-containerd-{c}.scope", Container),
    CgroupCase("kind, guaranteed",
        "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{uid_}.slice/cri-containerd-{c}.scope", Container),
    CgroupCase("kind seen from its host, v1", "4:memory:/docker/{d}/kubelet/kubepods/besteffort/pod{uid}/{c}", Container),
    CgroupCase("kind seen from its host, systemd",
        "0::/system.slice/docker-{d}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{uid_}.slice/cri-containerd-{c}.scope", Container),
    CgroupCase("Docker in a pod, cgroupfs", "0::/kubepods/burstable/pod{uid}/{c}/docker/{d}", Container),
    CgroupCase("Docker in a pod, systemd",
        "0::/kubepods.slice/kubepods-pod{uid_}.slice/cri-containerd-{c}.scope/system.slice/docker-{d}.scope", Container),
    CgroupCase("a kubelet in a pod",
        "0::/kubepods/burstable/pod{uid}/{c}/kubelet/kubepods/pod11111111-2222-3333-4444-555555555555/{d}", Container),
    CgroupCase("a group inside a container that is named as another pod",
        "0::/kubepods/pod{uid}/{c}/pod11111111-2222-3333-4444-555555555555/{d}", Container),
    CgroupCase("k3s on a host with systemd",
        "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid_}.slice/cri-containerd-{c}.scope", Container),
    CgroupCase("k3s itself and its containerd", "0::/system.slice/k3s.service", Nothing),
    CgroupCase("k3s that put itself below the root", "0::/k3s", Nothing),
    CgroupCase("k3s in Docker, seen from its host",
        "0::/system.slice/docker-{d}.scope/kubepods/burstable/pod{uid}/{c}", Container),
    CgroupCase("k3s in a pod whose kubelet was told its group",
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid_}.slice/kubepods/besteffort/pod11111111-2222-3333-4444-555555555555/{d}", PodOnly),
    CgroupCase("a pod of vCluster's is one of its host's",
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid_}.slice/cri-containerd-{c}.scope", Container),
    CgroupCase("CRI-O in Docker, seen from its host",
        "0::/docker/{d}/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid_}.slice/crio-{c}.scope", Container),
    CgroupCase("CRI-O sandbox, which is no scope",
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid_}.slice/crio-{c}", Container),
    CgroupCase("CRI-O, v1 with a controller that has one group for all",
        "13:freezer:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid_}.slice/crio-{c}.scope\n11:files:/", Container),
    CgroupCase("CRI-O monitor outside of the pod", "0::/system.slice/crio-conmon-{c}.scope", Nothing),
    CgroupCase("CRI-O itself", "0::/system.slice/crio.service", Nothing),
    // A reader in its own cgroup namespace.
    CgroupCase("another pod of another class, from inside", "0::/../../../kubepods-burstable.slice/kubepods-burstable-pod{uid_}.slice/cri-containerd-{c}.scope", Container),
    CgroupCase("another pod of the same class, from inside", "0::/../../kubepods-burstable-pod{uid_}.slice/cri-containerd-{c}.scope", Container),
    CgroupCase("another pod from inside, cgroupfs", "0::/../../pod{uid}/{c}", Container),
    CgroupCase("another pod of another class from inside, cgroupfs", "0::/../../../burstable/pod{uid}/{c}", Container),
    CgroupCase("another container of the reader's pod", "0::/../cri-containerd-{c}.scope", Nothing),
    // A pod without a container.
    CgroupCase("the pod's own group", "0::/kubepods/burstable/pod{uid}", PodOnly),
    CgroupCase("the pod's own slice", "0::/kubepods.slice/kubepods-pod{uid_}.slice", PodOnly),
    CgroupCase("a sandboxed runtime's group", "0::/kubepods/pod{uid}/kata_overhead", PodOnly),
    CgroupCase("a short id is no container", "0::/kubepods/pod{uid}/abcdef", PodOnly),
    CgroupCase("a removed group of a dying process", "0::/kubepods/burstable/pod{uid}/{c} (deleted)", Container),
    // No pod.
    CgroupCase("a system service", "0::/system.slice/containerd.service", Nothing),
    CgroupCase("the kubelet itself", "0::/system.slice/kubelet.service", Nothing),
    CgroupCase("the root", "0::/", Nothing),
    CgroupCase("a plain Docker container", "0::/system.slice/docker-{d}.scope", Nothing),
    CgroupCase("a container that containerd's own client started", "0::/k8s.io/{c}", Nothing),
    CgroupCase("a login session", "0::/user.slice/user-1000.slice/session-3.scope", Nothing),
    CgroupCase("a login session that names a pod",
        "0::/user.slice/user-1000.slice/user@1000.service/kubepods.slice/kubepods-pod{uid_}.slice/cri-containerd-{c}.scope", Nothing),
    CgroupCase("a user manager that names a pod", "0::/../user@1000.service/kubepods/pod{uid}/{c}", Nothing),
    CgroupCase("a pod's name outside of the kubelet's groups", "0::/system.slice/pod{uid}/{c}", Nothing),
    CgroupCase("a class without the kubelet's group above", "0::/burstable/pod{uid}/{c}", Nothing),
    CgroupCase("the name of no class", "0::/kubepods/fast/pod{uid}/{c}", Nothing),
    CgroupCase("a slice of another's", "0::/mypods.slice/mypods-pod{uid_}.slice/cri-containerd-{c}.scope", Nothing),
    CgroupCase("a UID that is none", "0::/kubepods/pod6f1c2d3e-4b5a/{c}", Nothing),
    CgroupCase("two hierarchies that name different pods",
        "4:memory:/kubepods/pod{uid}/{c}\n3:cpu:/kubepods/pod11111111-2222-3333-4444-555555555555/{c}", Nothing),
    CgroupCase("two hierarchies that name different containers",
        "4:memory:/kubepods/pod{uid}/{c}\n3:cpu:/kubepods/pod{uid}/{d}", Nothing),
    CgroupCase("one hierarchy stops at the pod",
        "4:memory:/kubepods/pod{uid}\n3:cpu:/kubepods/pod{uid}/{c}", Container),
    CgroupCase("no text", "", Nothing),
    CgroupCase("no path", "0::", Nothing),
];

#[test]
fn every_known_path_is_read_as_what_it_is() {
    assert!(ROWS.len() >= 40);
    for CgroupCase(name, text, expect) in ROWS {
        let (container, other) = ("c0ffee".repeat(11)[..64].to_owned(), "d00d".repeat(16));
        let text = text
            .replace("{uid}", UID)
            .replace("{uid_}", &UID.replace('-', "_"))
            .replace("{hash}", HASH)
            .replace("{c}", &container)
            .replace("{d}", &other);
        let found = owner(&text);
        let found = found.as_ref().map(|found| {
            (
                found.pod.as_str(),
                found.container.as_ref().map(|id| id.as_str()),
            )
        });
        let expected = match expect {
            Container => Some((UID, Some(container.as_str()))),
            StaticContainer => Some((HASH, Some(container.as_str()))),
            PodOnly => Some((UID, None)),
            Nothing => None,
        };
        assert_eq!(found, expected, "{name}: {text}");
    }
}
