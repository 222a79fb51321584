//! What a node can lack for a pod.

use serde::Serialize;

/// What a node lacks for a pod. The later it is in this list, the closer the pod came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum UnmetRequirement {
    /// The node does not admit the pod, whatever it has free.
    Admission,
    /// Cards of the right kind.
    Kind,
    Pods,
    Cpu,
    Memory,
    Claims,
    /// Whole cards or partitions.
    Gpus,
    GpuMemory,
    /// Room for the pod's limit among the limits on its cards.
    GpuLimits,
    /// NUMA zones that can align the pod.
    Numa,
    /// Pods that match the pod's affinity.
    Affinity,
    /// A domain without pods that match the pod's anti-affinity.
    AntiAffinity,
    /// A domain without pods whose anti-affinity matches the pod.
    ExistingAntiAffinity,
    /// A domain that keeps the pod's topology spread.
    TopologySpread,
}

impl UnmetRequirement {
    /// The phrase for nodes that lack it, in the words of KAI or Kubernetes if they have any.
    pub(crate) const fn message(self) -> &'static str {
        match self {
            Self::Admission => "didn't admit the pod",
            Self::Kind => "had another kind of GPU",
            Self::Pods => "pod number exceeded",
            Self::Cpu => "didn't have enough resources: CPU cores",
            Self::Memory => "didn't have enough resources: memory",
            Self::Claims => "didn't have the claimed devices",
            Self::Gpus => "didn't have enough resources: GPUs",
            Self::GpuMemory => "didn't have enough resources: GPU memory",
            Self::GpuLimits => "didn't allow so much more in limits of GPU memory",
            Self::Numa => "couldn't align the pod with NUMA zones",
            Self::Affinity => "didn't match pod affinity rules",
            Self::AntiAffinity => "didn't match pod anti-affinity rules",
            Self::ExistingAntiAffinity => "didn't satisfy existing pods anti-affinity rules",
            Self::TopologySpread => "didn't match pod topology spread constraints",
        }
    }
}
