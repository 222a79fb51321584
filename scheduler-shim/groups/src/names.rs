//! Labels, annotations and classes of manifests, by KAI's names.

pub(crate) use apportion_abi::names::{
    ANNOTATION_DELAY, ANNOTATION_GROUP, ANNOTATION_MIN_MEMBER, ANNOTATION_PREFERRED,
    ANNOTATION_REQUIRED, ANNOTATION_SEGMENT_PREFERRED, ANNOTATION_SEGMENT_REQUIRED,
    ANNOTATION_SEGMENT_SIZE, ANNOTATION_SKIP, ANNOTATION_TOP_OWNER, ANNOTATION_TOPOLOGY,
    LABEL_NODE_POOL, LABEL_OLD_QUEUE, LABEL_PREEMPTIBILITY, LABEL_PRIORITY, LABEL_PROJECT,
    LABEL_QUEUE, LABEL_USER,
};

pub(crate) const DEFAULT_QUEUE: &str = "default-queue";
pub(crate) const TRAIN: &str = "train";
pub(crate) const BUILD: &str = "build";
pub(crate) const INFERENCE: &str = "inference";
