//! Why a pod is refused: KAI's messages for KAI's rules, and ours for the others.
//!
//! The texts are an interface: people search for them, and other programs match on them. They stay as KAI has them,
//! including its mistakes.

use crate::immutable_fields::ImmutableFieldChange;
use crate::limits::{AnnotationValue, BurstableShare};
use crate::strict::StrictRefusal;
use crate::unsupported::UnsupportedRequest;

/// Why a pod is refused.
#[expect(missing_docs, reason = "the message of each refusal names its fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodRefusal {
    /// It asks for a share while sharing is off.
    #[error(
        "attempting to create a pod {namespace}/{name} with gpu sharing request, while GPU sharing is disabled"
    )]
    SharingIsOff { namespace: String, name: String },
    /// It asks for MPS and for no share.
    #[error("MPS is only supported with GPU fraction request")]
    ServiceWithoutShare,
    /// It asks for a fraction and for whole cards.
    #[error("cannot have both GPU fraction request and whole GPU resource request/limit")]
    FractionAndWhole,
    /// It asks for memory, and for a fraction or whole cards.
    #[error("cannot request both GPU and GPU memory")]
    MemoryAndOther,
    /// It says on how many cards, but not how much.
    #[error(
        "cannot request multiple fractional devices without specifying fraction portion or gpu-memory"
    )]
    DevicesWithoutShare,
    /// The amount of memory is invalid.
    #[error("gpu-memory annotation value must be a positive integer greater than 0")]
    Memory,
    /// The fraction is invalid.
    #[error("gpu-fraction annotation value must be a positive number smaller than 1.0")]
    Fraction,
    /// A fraction in a format that only Go's float parser accepts.
    #[error(
        "gpu-fraction annotation value must be a float written with a decimal point or a scientific notation .given value: {0}"
    )]
    FractionForm(String),
    /// The number of cards is invalid.
    #[error("fraction count annotation value must be a positive integer greater than 0")]
    Devices,
    /// The container that is to get the share does not exist.
    #[error("container with name {0} not found for fraction request")]
    Container(String),
    /// The same, found while the pod was mutated.
    #[error("failed to get fraction container ref: {0}")]
    ContainerReference(Box<PodRefusal>),
    /// The annotation with the config maps' names is missing.
    #[error("no desired configmap name found in pod {namespace}/{name} annotations")]
    ConfigMapName { namespace: String, name: String },
    /// A container chooses its own cards.
    #[error(
        "container {container} has an environment variable NVIDIA_VISIBLE_DEVICES defined with a value of {value}. This is forbidden due to conflicts with Nvidia's device plugin. The only values that are allowed are 'void' or 'none'"
    )]
    VisibleDevices { container: String, value: String },
    /// A container takes its choice of cards from a reference.
    #[error(
        "container {container} has an environment variable NVIDIA_VISIBLE_DEVICES defined with a valueFrom reference. This is forbidden due to possible conflicts with Nvidia's device plugin"
    )]
    VisibleDevicesFrom { container: String },
    /// The namespaces of the object and of the request differ.
    #[error(
        "error: the namespace from the provided object {object} does not match the namespace {request}"
    )]
    Namespace { object: String, request: String },

    /// An amount of memory for one container is invalid.
    #[error(
        "{key} annotation value must be a positive amount of memory such as 2000Mi or 8Gi. given value: {value}"
    )]
    ContainerMemory { key: String, value: String },
    /// A container's request exceeds its limit.
    #[error("{request} of {at_least} is more than the limit of {at_most}")]
    RequestOverLimit {
        request: String,
        at_least: String,
        at_most: String,
    },
    /// Annotations for the pod's share and for a container's share.
    #[error(
        "cannot have both {key} and gpu-fraction or gpu-memory; a container's share is given in one way"
    )]
    TwoWays {
        /// The annotation for a container.
        key: String,
    },
    /// Annotations for the pod's share and for another container's share.
    #[error(
        "gpu-fraction-container-name annotation value {pods} does not match container name {named}"
    )]
    ContainerMismatch {
        /// The container that the pod's annotation names.
        pods: String,
        /// The container that the key names.
        named: String,
    },
    /// Annotations for the pod's memory and for a container's memory, with different amounts.
    #[error(
        "NvFractions memory request ({named}) does not match gpu-memory annotation value ({pods} MiB)"
    )]
    MemoryMismatch { named: String, pods: String },
    /// A container has a limit, but the pod's share has none.
    #[error(
        "cannot combine nvidia.com/container. limit annotation with gpu-fraction or gpu-memory annotation"
    )]
    LimitBeside,
    /// Two limits that differ.
    #[error("{of} annotation conflicts with {key} annotation")]
    LimitConflict { of: &'static str, key: String },
    /// A limit without its request.
    #[error("{key} annotation can only be used together with the {of} annotation")]
    LimitAlone { key: String, of: &'static str },
    /// A limit with more decimals than KAI allows.
    #[error("{0} annotation value must have at most 5 digits after the decimal point")]
    LimitDecimals(String),
    /// A limit that is not a part of a card.
    #[error("{0} annotation value must be a positive number smaller than 1.0")]
    LimitForm(String),
    /// A limit that is not an amount of memory.
    #[error("{0} annotation value must be a positive Kubernetes memory quantity with a unit")]
    LimitQuantity(&'static str),
    /// A limit that is too small for its request.
    #[error("{key} annotation value ({value}) must {least} {of} annotation value ({request})")]
    LimitTooSmall {
        key: String,
        value: String,
        /// What it must be, as a phrase.
        least: &'static str,
        of: &'static str,
        request: String,
    },
    /// A limit for a container that does not get the share.
    #[error("{key} annotation is for a container that does not get the share: {target} gets it")]
    OtherContainer {
        key: String,
        /// The container that gets it.
        target: String,
    },
    /// A container requests a resource that counts shares in another amount than its share.
    #[error(
        "container {container} requests {asked} of {resource}, but its share counts {is}; leave the resource out of the pod, or request {is}"
    )]
    Counted {
        container: String,
        resource: &'static str,
        asked: String,
        is: u64,
    },
    /// A limit above the request, where that is refused.
    #[error(transparent)]
    Growing(Box<BurstableShare>),
    /// The mark of pods that may burst, written by hand.
    #[error(
        "apportion.dev/gpu-memory-burst may only be written by the webhook, on a pod with a limit above its request, when the pod is created and if such pods may burst"
    )]
    BurstMark,
    /// A pod that may burst and is guaranteed less than the smallest share.
    #[error(
        "{0} is less than 2 MiB, the smallest share; a pod that may use up to a limit is guaranteed its request"
    )]
    GuaranteeTooSmall(Box<AnnotationValue>),
    /// After how long it is suspended is no time.
    #[error("apportion.dev/suspend-when-idle {0}")]
    IdleTime(String),
    /// It is to be suspended when it is idle, and has no share.
    #[error(
        "apportion.dev/suspend-when-idle needs a share by gpu-fraction, gpu-memory or an annotation of a container; a pod with whole GPUs, MIG partitions or resource claims is not suspended"
    )]
    IdleWithoutShare,
    /// A request that Apportion does not support.
    #[error(transparent)]
    Unsupported(Box<UnsupportedRequest>),
    /// A changed request of a bound pod.
    #[error(transparent)]
    Frozen(Box<ImmutableFieldChange>),
    /// What only the strict mode refuses.
    #[error("{0}")]
    Strict(Box<StrictRefusal>),
}
