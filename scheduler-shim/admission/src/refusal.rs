//! Why a pod may not be: KAI's sentences for KAI's rules, and ours for what KAI has no rule for.
//!
//! The texts are an interface: people search for them, and other programs match on them. They stay as KAI has
//! them, slips included.

use crate::immutable_fields::ImmutableFieldChange;
use crate::limits::BurstableShare;
use crate::strict::StrictRefusal;
use crate::unsupported::UnsupportedRequest;

/// Why a pod is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodRefusal {
    /// It wants to share while sharing is off.
    #[error(
        "attempting to create a pod {namespace}/{name} with gpu sharing request, while GPU sharing is disabled"
    )]
    SharingIsOff {
        /// Where the pod would be.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// It wants the multi-process service and no share.
    #[error("MPS is only supported with GPU fraction request")]
    ServiceWithoutShare,
    /// It wants a fraction and whole cards.
    #[error("cannot have both GPU fraction request and whole GPU resource request/limit")]
    FractionAndWhole,
    /// It wants memory, and a fraction or whole cards.
    #[error("cannot request both GPU and GPU memory")]
    MemoryAndOther,
    /// It says on how many cards, and not how much.
    #[error(
        "cannot request multiple fractional devices without specifying fraction portion or gpu-memory"
    )]
    DevicesWithoutShare,
    /// Not an amount of memory.
    #[error("gpu-memory annotation value must be a positive integer greater than 0")]
    Memory,
    /// Not a fraction.
    #[error("gpu-fraction annotation value must be a positive number smaller than 1.0")]
    Fraction,
    /// A fraction in a form that only Go's float reader takes.
    #[error(
        "gpu-fraction annotation value must be a float written with a decimal point or a scientific notation .given value: {0}"
    )]
    FractionForm(String),
    /// Not a number of cards.
    #[error("fraction count annotation value must be a positive integer greater than 0")]
    Devices,
    /// The container that is to get the share isn't there.
    #[error("container with name {0} not found for fraction request")]
    Container(String),
    /// The same, while the pod was being completed.
    #[error("failed to get fraction container ref: {0}")]
    ContainerReference(Box<PodRefusal>),
    /// The name of the config maps isn't there.
    #[error("no desired configmap name found in pod {namespace}/{name} annotations")]
    ConfigMapName {
        /// Where the pod would be.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A container chooses its cards by itself.
    #[error(
        "container {container} has an environment variable NVIDIA_VISIBLE_DEVICES defined with a value of {value}. This is forbidden due to conflicts with Nvidia's device plugin. The only values that are allowed are 'void' or 'none'"
    )]
    VisibleDevices {
        /// Its name.
        container: String,
        /// What it chooses.
        value: String,
    },
    /// A container takes its choice of cards from elsewhere.
    #[error(
        "container {container} has an environment variable NVIDIA_VISIBLE_DEVICES defined with a valueFrom reference. This is forbidden due to possible conflicts with Nvidia's device plugin"
    )]
    VisibleDevicesFrom {
        /// Its name.
        container: String,
    },
    /// The object is in another namespace than the request.
    #[error(
        "error: the namespace from the provided object {object} does not match the namespace {request}"
    )]
    Namespace {
        /// What the object says.
        object: String,
        /// What the request says.
        request: String,
    },

    /// An amount for one container that is none.
    #[error(
        "{key} annotation value must be a positive amount of memory such as 2000Mi or 8Gi. given value: {value}"
    )]
    ContainerMemory {
        /// The annotation.
        key: String,
        /// What it says.
        value: String,
    },
    /// A container is to have at least more than it is to have at most.
    #[error("{request} of {at_least} is more than the limit of {at_most}")]
    RequestOverLimit {
        /// The annotation that says at least how much.
        request: String,
        /// What it says.
        at_least: String,
        /// What the other one says.
        at_most: String,
    },
    /// Annotations for the pod's share and for a container's.
    #[error(
        "cannot have both {key} and gpu-fraction or gpu-memory; a container's share is given in one way"
    )]
    TwoWays {
        /// The annotation for a container.
        key: String,
    },
    /// Annotations for the pod's share and for that of another container.
    #[error(
        "gpu-fraction-container-name annotation value {pods} does not match container name {named}"
    )]
    ContainerMismatch {
        /// The container that the pod's annotation names.
        pods: String,
        /// The container in a key.
        named: String,
    },
    /// Annotations for the pod's memory and for a container's, and they differ.
    #[error(
        "NvFractions memory request ({named}) does not match gpu-memory annotation value ({pods} MiB)"
    )]
    MemoryMismatch {
        /// What the container's says.
        named: String,
        /// What the pod's says.
        pods: String,
    },
    /// A limit of a container beside a share of the pod that has none.
    #[error(
        "cannot combine nvidia.com/container. limit annotation with gpu-fraction or gpu-memory annotation"
    )]
    LimitBeside,
    /// Two limits that differ.
    #[error("{of} annotation conflicts with {key} annotation")]
    LimitConflict {
        /// The pod's.
        of: &'static str,
        /// The container's.
        key: String,
    },
    /// A limit without the request that it belongs to.
    #[error("{key} annotation can only be used together with the {of} annotation")]
    LimitAlone {
        /// The limit.
        key: String,
        /// The request.
        of: &'static str,
    },
    /// A limit with more decimals than KAI reads.
    #[error("{0} annotation value must have at most 5 digits after the decimal point")]
    LimitDecimals(String),
    /// A limit that is no part of a card.
    #[error("{0} annotation value must be a positive number smaller than 1.0")]
    LimitForm(String),
    /// A limit that is no amount of memory.
    #[error("{0} annotation value must be a positive Kubernetes memory quantity with a unit")]
    LimitQuantity(&'static str),
    /// A limit that is not above its request.
    #[error("{key} annotation value ({value}) must {least} {of} annotation value ({request})")]
    LimitTooSmall {
        /// The limit.
        key: String,
        /// What it says.
        value: String,
        /// What it must.
        least: &'static str,
        /// The request.
        of: &'static str,
        /// What it says.
        request: String,
    },
    /// A limit for a container that does not get the share.
    #[error("{key} annotation is for a container that does not get the share: {target} gets it")]
    OtherContainer {
        /// The limit.
        key: String,
        /// The container that gets it.
        target: String,
    },
    /// A container requests another amount of a resource that counts shares than its share.
    #[error(
        "container {container} requests {asked} of {resource}, but its share counts {is}; leave the resource out of the pod, or request {is}"
    )]
    Counted {
        /// Its name.
        container: String,
        /// The resource.
        resource: &'static str,
        /// What it requests.
        asked: String,
        /// What it would have to.
        is: u64,
    },
    /// A limit above the request, where these are refused.
    #[error(transparent)]
    Growing(Box<BurstableShare>),
    /// Something that Apportion cannot do.
    #[error(transparent)]
    Wish(Box<UnsupportedRequest>),
    /// A request that changes although the pod has its place.
    #[error(transparent)]
    Frozen(Box<ImmutableFieldChange>),
    /// Something that only the strict mode refuses.
    #[error("{0}")]
    Strict(Box<StrictRefusal>),
}
