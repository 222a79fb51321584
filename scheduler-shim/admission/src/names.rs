//! The names that pods and this webhook share: annotations, resources, variables.
//!
//! They are KAI's, byte for byte, because they are in other people's manifests. A name that only one rule needs is
//! defined there.

pub use apportion_abi::names::{
    ANNOTATION_ALLOCATED as ALLOCATED, ANNOTATION_BURST as BURST,
    ANNOTATION_COMPUTE_MODE as COMPUTE_MODE, ANNOTATION_CONFIG_MAP as CONFIG_MAP,
    ANNOTATION_CONTAINER as CONTAINER, ANNOTATION_DEVICES as DEVICES,
    ANNOTATION_FRACTION as FRACTION, ANNOTATION_FRACTION_LIMIT as FRACTION_LIMIT,
    ANNOTATION_IDLE as IDLE, ANNOTATION_MEMORY as MEMORY, ANNOTATION_MEMORY_LIMIT as MEMORY_UP_TO,
    ANNOTATION_MPS as MPS, ANNOTATION_RECEIVED as RECEIVED, ENV_MEMORY_LIMIT as MEMORY_LIMIT,
    ENV_NUM_OF_GPUS as NUM_OF_GPUS, ENV_PORTION as PORTION, ENV_VISIBLE as VISIBLE_DEVICES,
    LABEL_GPU_GROUP as GROUP, RESOURCE_PARTITION as PARTITION, RESOURCE_WHOLE as WHOLE,
    RESOURCE_WHOLE_AMD as WHOLE_AMD,
};

/// The prefix of KAI 0.18's annotations; the container's name follows.
pub const PER_CONTAINER: &str = "nvidia.com/container.";
/// The suffix for a container's memory request.
pub const PER_CONTAINER_REQUEST: &str = ".gpu-memory.request";
/// The suffix for a container's memory limit.
pub const PER_CONTAINER_LIMIT: &str = ".gpu-memory.limit";
/// The suffix for how a container shares a card's time.
pub const PER_CONTAINER_MODE: &str = ".gpu-compute.mode";
/// The suffix for the cards that KAI's binder assigned to a container.
pub const PER_CONTAINER_DEVICES: &str = ".gpus.devices";
/// The suffix for the part of a card's time that KAI's binder assigned to a container.
pub const PER_CONTAINER_COMPUTE: &str = ".gpu-compute.portion";
/// The prefix of KAI's annotation that says up to which part of a card a container may grow.
pub const KAI_CONTAINER: &str = "kai.scheduler/container.";
/// Its suffix.
pub const PORTION_LIMIT: &str = ".gpu-memory.portion.limit";

/// Memory of shared cards, in KAI's statuses.
pub const STATUS_MEMORY: &str = "run.ai/gpu.memory";

/// The annotations of a pod's request, except those that name a container in their key.
pub const REQUEST: [&str; 10] = [
    FRACTION,
    MEMORY,
    DEVICES,
    CONTAINER,
    MPS,
    FRACTION_LIMIT,
    MEMORY_UP_TO,
    COMPUTE_MODE,
    BURST,
    IDLE,
];
/// The prefixes of keys that name a container.
pub const REQUEST_OF_CONTAINER: [&str; 2] = [PER_CONTAINER, KAI_CONTAINER];
