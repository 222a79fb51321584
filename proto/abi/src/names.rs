//! The names by which Kubernetes knows us: what several programs, manifests and a tenant's pod must spell
//! alike.

use core::time::Duration;

/// The extended resource that the webhook adds to each container with a share, and that the device
/// plugin of the agent serves. A slot is opaque: it says that the container waits for a grant, not which.
pub const RESOURCE_SLOT: &str = "apportion.dev/gpu-slot";
/// NVIDIA's name for whole cards, which the agent serves from the same book.
pub const RESOURCE_WHOLE: &str = "nvidia.com/gpu";
/// What all names of NVIDIA's resources begin with: an administrator may call cards, their replicas and
/// partitions anything below.
const OF_NVIDIA: &str = "nvidia.com/";
/// What the devices of other plugins are called where they are cards or parts of cards: by a UUID, or on GKE
/// by the number of the device file.
const CARDS: [&str; 3] = ["GPU-", "MIG-", "nvidia"];

/// Whether a device of the kubelet's is a card that another device plugin gives away. Ours are opaque.
#[must_use]
pub fn is_foreign_card(resource: &str, device: &str) -> bool {
    resource.starts_with(OF_NVIDIA) && CARDS.iter().any(|prefix| device.starts_with(prefix))
}

/// The kind of our CDI devices: the vendor and the class of `apportion.dev/grant=s-0001`.
pub const CDI_KIND: &str = "apportion.dev/grant";

/// In a container of ours: the id of the allocation that it was given. It is a label for those who look
/// from outside, such as the agent after a restart; nothing inside is decided by it.
pub const ENV_GRANT: &str = "APPORTION_GRANT";

/// KAI's annotation: MiB of each card.
pub const ANNOTATION_MEMORY: &str = "gpu-memory";
/// KAI's annotation: a part of each card.
pub const ANNOTATION_FRACTION: &str = "gpu-fraction";
/// KAI's annotation: of how many cards.
pub const ANNOTATION_DEVICES: &str = "gpu-fraction-num-devices";

/// What a node's cards have to give, in MiB, as an extended resource that is for people to read.
pub const RESOURCE_MEMORY: &str = "apportion.dev/gpu-memory-mib";
/// What of it is left: it shrinks as shares are given.
pub const RESOURCE_MEMORY_FREE: &str = "apportion.dev/gpu-memory-free-mib";

/// How often an agent writes its node's `GpuNode`, also where nothing changed.
pub const HEARTBEAT: Duration = Duration::from_secs(30);
/// Between two of its writes of what was given, while that keeps changing.
pub const PACE: Duration = Duration::from_secs(5);
/// After how long without one a reader takes the agent for gone: three were missed.
pub const SILENT_AFTER: Duration = Duration::from_secs(100);
