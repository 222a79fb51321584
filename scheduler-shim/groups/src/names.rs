//! The labels, annotations and classes that manifests carry, by KAI's names.

/// A pod's group. The grouper writes it; a user may write it to name a group of their own.
pub const ANNOTATION_GROUP: &str = "pod-group-name";
pub(crate) const ANNOTATION_SKIP: &str = "kai.scheduler/skip-podgrouper";
pub(crate) const ANNOTATION_MIN_MEMBER: &str = "kai.scheduler/batch-min-member";
pub(crate) const ANNOTATION_DELAY: &str = "kai.scheduler/preemption-delay";
pub(crate) const ANNOTATION_TOP_OWNER: &str = "kai.scheduler/top-owner-metadata";

pub(crate) const ANNOTATION_TOPOLOGY: &str = "kai.scheduler/topology";
pub(crate) const ANNOTATION_REQUIRED: &str = "kai.scheduler/topology-required-placement";
pub(crate) const ANNOTATION_PREFERRED: &str = "kai.scheduler/topology-preferred-placement";

pub(crate) const ANNOTATION_SEGMENT_SIZE: &str = "kai.scheduler/segment-size";
pub(crate) const ANNOTATION_SEGMENT_REQUIRED: &str =
    "kai.scheduler/segment-topology-required-placement";
pub(crate) const ANNOTATION_SEGMENT_PREFERRED: &str =
    "kai.scheduler/segment-topology-preferred-placement";

/// The queue of a pod or of what owns it.
pub const LABEL_QUEUE: &str = "kai.scheduler/queue";
/// How KAI called it up to 0.5. Later releases overlook it; manifests of then still name their queue so.
pub const LABEL_OLD_QUEUE: &str = "runai/queue";
pub(crate) const LABEL_NODE_POOL: &str = "kai.scheduler/node-pool";
pub(crate) const LABEL_PRIORITY: &str = "priorityClassName";
pub(crate) const LABEL_PREEMPTIBILITY: &str = "kai.scheduler/preemptibility";
pub(crate) const LABEL_PROJECT: &str = "project";
pub(crate) const LABEL_USER: &str = "user";

pub(crate) const DEFAULT_QUEUE: &str = "default-queue";
pub(crate) const TRAIN: &str = "train";
pub(crate) const BUILD: &str = "build";
pub(crate) const INFERENCE: &str = "inference";
