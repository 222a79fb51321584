//! The words that pods and this webhook share: annotations, resources, variables.
//!
//! They are KAI's, byte for byte, because they stand in other people's manifests. A name that only one rule
//! needs stays with that rule.

/// A share of a card, above zero and below one.
pub const FRACTION: &str = "gpu-fraction";
/// MiB of a card.
pub const MEMORY: &str = "gpu-memory";
/// On how many cards of one node the pod wants its share.
pub const DEVICES: &str = "gpu-fraction-num-devices";
/// Which container gets the share; without it the first does.
pub const CONTAINER: &str = "gpu-fraction-container-name";
/// Says `true` when the pod is to run under NVIDIA's multi-process service.
pub const MPS: &str = "mps";
/// What the names of KAI 0.18's annotations begin with; the container's name follows.
pub const PER_CONTAINER: &str = "nvidia.com/container.";
/// How such a name ends when it says what a container's share is at least.
pub const PER_CONTAINER_REQUEST: &str = ".gpu-memory.request";
/// How such a name ends when it says what a container's share is at most.
pub const PER_CONTAINER_LIMIT: &str = ".gpu-memory.limit";
/// The beginning of the names of the config maps through which KAI's binder hands over a share.
pub const CONFIG_MAP: &str = "runai/shared-gpu-configmap";
/// What the pod was given: `Regular`, `Fraction`, `MigInstance`.
pub const RECEIVED: &str = "received-resource-type";
/// The label that says which card a pod shares.
pub const GROUP: &str = "runai-gpu-group";

/// Whole NVIDIA cards.
pub const WHOLE: &str = "nvidia.com/gpu";
/// Whole AMD cards.
pub const WHOLE_AMD: &str = "amd.com/gpu";
/// What the names of partitions begin with.
pub const PARTITION: &str = "nvidia.com/mig-";
/// Memory of shared cards, in KAI's statuses.
pub const STATUS_MEMORY: &str = "run.ai/gpu.memory";

/// The cards that NVIDIA's container runtime shows.
pub const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// The share, by its old name.
pub const NUM_OF_GPUS: &str = "RUNAI_NUM_OF_GPUS";
/// The share, with two decimals.
pub const PORTION: &str = "GPU_PORTION";
/// The limit as HAMi's library reads it.
pub const MEMORY_LIMIT: &str = "CUDA_DEVICE_MEMORY_LIMIT";

/// The annotations that say what a pod asks for, but those that name a container.
pub const REQUEST: [&str; 5] = [FRACTION, MEMORY, DEVICES, CONTAINER, MPS];
