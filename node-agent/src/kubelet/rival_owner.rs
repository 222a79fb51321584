//! Another owner of the node's cards, as it was recognized.

use std::fmt;

use super::dra_claims;

/// How another owner was recognized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RivalOwner {
    /// A device plugin, by its socket's name.
    Socket(String),
    /// A device plugin, by its resource whose devices are cards.
    Resource(String),
    /// NVIDIA's DRA driver, by the cards that it offers.
    Dra,
}

/// The message for the administrator.
impl fmt::Display for RivalOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Socket(name) => name.clone(),
            Self::Resource(name) => format!("the one of {name}"),
            Self::Dra => {
                return write!(
                    f,
                    "NVIDIA's DRA driver ({}) allocates GPUs of this node, so this agent grants none; turn its GPUs off \
                     with its Helm value resources.gpus.enabled=false, or keep this agent off the node",
                    dra_claims::DRIVER
                );
            }
        };
        write!(
            f,
            "another device plugin ({name}) allocates GPUs of this node, so this agent grants none; turn that plugin off \
             with the node's label nvidia.com/gpu.deploy.device-plugin=false (GPU Operator) or \
             gke-no-default-nvidia-gpu-device-plugin=true (GKE), or keep this agent off the node"
        )
    }
}

/// Whether there is another owner, for the plugin that serves the same resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RivalPresence {
    pub(crate) is_there: bool,
    /// How often the kubelet may have kept the devices of a plugin that has left, because our stream was open.
    pub(crate) departures: u32,
}
