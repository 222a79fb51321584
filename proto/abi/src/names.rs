//! The names that Apportion uses in Kubernetes. Several programs, manifests and a tenant's pod must spell them alike.
//!
//! Each row is one name, with its meaning and who reads and writes it. The constants that the code uses are generated
//! from the rows, and so is the page `docs/reference/annotations.md`. A new name is a new row.

use core::time::Duration;

/// A name in objects of a cluster or in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WellKnownName {
    /// The name. A word in capitals stands for a variable text.
    pub name: &'static str,
    /// What kind of name it is.
    pub place: &'static str,
    /// The form of its value.
    pub value: &'static str,
    /// Who writes it.
    pub written_by: &'static str,
    /// Who reads it.
    pub read_by: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
}

/// Makes a constant of each row, and a table of rows for each title.
macro_rules! names {
    ($($title:literal {
        $($constant:ident $name:literal $place:literal, value: $value:literal,
          written_by: $written_by:literal, read_by: $read_by:literal, $meaning:literal;)+
    })+) => {
        $($(
            #[doc = $meaning]
            pub const $constant: &str = $name;
        )+)+

        /// All names, by title.
        pub const NAMES: &[(&str, &[WellKnownName])] = &[$(($title, &[$(WellKnownName {
            name: $constant,
            place: $place,
            value: $value,
            written_by: $written_by,
            read_by: $read_by,
            meaning: $meaning,
        }),+])),+];
    };
}

names! {
    "What a pod asks for" {
        ANNOTATION_FRACTION "gpu-fraction" "annotation of a pod", value: "above 0 and below 1, such as `0.5`",
            written_by: "user", read_by: "webhook, scheduler, agent",
            "Part of each GPU's allocatable memory that the pod gets";
        ANNOTATION_MEMORY "gpu-memory" "annotation of a pod", value: "MiB, such as `2000`",
            written_by: "user", read_by: "webhook, scheduler, agent",
            "Memory of each GPU that the pod gets, rounded down to a multiple of 2 MiB";
        ANNOTATION_DEVICES "gpu-fraction-num-devices" "annotation of a pod", value: "number, 1 or more",
            written_by: "user", read_by: "webhook, scheduler, agent",
            "Number of GPUs of one node of which the pod gets this share; 1 if absent";
        ANNOTATION_CONTAINER "gpu-fraction-container-name" "annotation of a pod", value: "name of a container",
            written_by: "user", read_by: "webhook, scheduler",
            "Container that gets the share; the first one if absent";
        ANNOTATION_CONTAINER_LIMIT "nvidia.com/container.NAME.gpu-memory.limit" "annotation of a pod",
            value: "Kubernetes quantity in bytes, such as `2Gi`",
            written_by: "user", read_by: "webhook, scheduler",
            "Share of the container NAME, in the words of KAI 0.18; several containers of a pod may have one";
        ANNOTATION_CONTAINER_REQUEST "nvidia.com/container.NAME.gpu-memory.request" "annotation of a pod",
            value: "Kubernetes quantity in bytes, at most the limit",
            written_by: "user", read_by: "webhook, scheduler",
            "The same. A request below the limit is refused, or the limit is the share, or the pod may burst up to the limit (`--request-below-limit`)";
        ANNOTATION_PORTION_LIMIT "kai.scheduler/container.NAME.gpu-memory.portion.limit" "annotation of a pod",
            value: "above `gpu-fraction` and below 1", written_by: "user", read_by: "webhook, scheduler",
            "KAI's limit above `gpu-fraction`: refused, or it is the share, or the pod may burst up to it (`--request-below-limit`)";
        ANNOTATION_FRACTION_LIMIT "gpu-fraction.limit" "annotation of a pod",
            value: "above `gpu-fraction` and below 1", written_by: "user", read_by: "webhook, scheduler, agent",
            "The same, in one word";
        ANNOTATION_MEMORY_LIMIT "gpu-memory.limit" "annotation of a pod",
            value: "Kubernetes quantity with a unit, such as `4Gi`",
            written_by: "user", read_by: "webhook, scheduler, agent",
            "KAI's limit for `gpu-memory`: if above it, refused, or it is the share, or the pod may burst up to it (`--request-below-limit`)";
        ANNOTATION_BURST "apportion.dev/gpu-memory-burst" "annotation of a pod", value: "`true`",
            written_by: "webhook, with `--request-below-limit burst`", read_by: "scheduler, agent",
            "The pod's GPU memory request is what it is guaranteed, and it may burst up to its limit. Without it the limit is the share";
        ANNOTATION_IDLE "apportion.dev/suspend-when-idle" "annotation of a pod",
            value: "duration, such as `10m`; 10 s or more on most nodes",
            written_by: "user", read_by: "webhook, scheduler, agent",
            "The pod's programs are suspended when they have made no CUDA call for that time, and woken by the next one";
        ANNOTATION_COMPUTE_MODE "kai.scheduler/gpu-compute-sharing-mode" "annotation of a pod",
            value: "`time-slicing`", written_by: "user", read_by: "webhook",
            "How pods share the time of a GPU: as the driver divides it. The webhook refuses `sm-sharing`";
        ANNOTATION_CONTAINER_MODE "nvidia.com/container.NAME.gpu-compute.mode" "annotation of a pod",
            value: "`time-slicing`", written_by: "user", read_by: "webhook", "The same, for one container";
        ANNOTATION_CONTAINER_DEVICES "nvidia.com/container.NAME.gpus.devices" "annotation of a pod",
            value: "GPUs", written_by: "KAI's binder", read_by: "webhook",
            "GPUs that KAI's binder gave; the webhook refuses a new pod with it";
        ANNOTATION_CONTAINER_COMPUTE "nvidia.com/container.NAME.gpu-compute.portion" "annotation of a pod",
            value: "part of a GPU", written_by: "KAI's binder", read_by: "webhook",
            "Compute that KAI's binder gave; the webhook refuses a new pod with it";
        ANNOTATION_MPS "mps" "annotation of a pod", value: "`true`", written_by: "user", read_by: "webhook",
            "KAI's wish for NVIDIA's Multi-Process Service; the webhook refuses it for a pod without a share";
    }
    "What a pod asks for in HAMi's words" {
        HAMI_MEMORY "nvidia.com/gpumem" "resource of a container", value: "MiB", written_by: "user", read_by: "webhook",
            "Memory of each GPU. With `--hami-resources`, the webhook writes KAI's annotations in its place";
        HAMI_PERCENTAGE "nvidia.com/gpumem-percentage" "resource of a container", value: "1 to 100",
            written_by: "user", read_by: "webhook", "The same, as a part of each GPU";
        HAMI_CORES "nvidia.com/gpucores" "resource of a container", value: "0 to 100",
            written_by: "user", read_by: "webhook",
            "Compute of each GPU in percent: refused, but for 0 and for all of a whole GPU";
        HAMI_USE_TYPE "nvidia.com/use-gputype" "annotation of a pod", value: "models",
            written_by: "user", read_by: "webhook", "Models to use: ignored with a warning";
        HAMI_USE_NO_TYPE "nvidia.com/nouse-gputype" "annotation of a pod", value: "models",
            written_by: "user", read_by: "webhook", "Models not to use: ignored with a warning";
        HAMI_USE_UUID "nvidia.com/use-gpuuuid" "annotation of a pod", value: "UUIDs",
            written_by: "user", read_by: "webhook", "GPUs to use: ignored with a warning";
        HAMI_USE_NO_UUID "nvidia.com/nouse-gpuuuid" "annotation of a pod", value: "UUIDs",
            written_by: "user", read_by: "webhook", "GPUs not to use: ignored with a warning";
        HAMI_MODE "nvidia.com/vgpu-mode" "annotation of a pod", value: "`hami-core`, `mig` or `mps`",
            written_by: "user", read_by: "webhook", "How HAMi divides a GPU: ignored with a warning";
        HAMI_POLICY "hami.io/gpu-scheduler-policy" "annotation of a pod", value: "`binpack` or `spread`",
            written_by: "user", read_by: "webhook", "How HAMi chooses a GPU: ignored with a warning";
    }
    "What a pod was given" {
        ANNOTATION_CARDS "apportion.dev/cards" "annotation of a pod", value: "`UUID=BYTES`, separated by commas",
            written_by: "scheduler", read_by: "scheduler", "GPUs of the pod, with the bytes of each";
        ANNOTATION_ALLOCATED "apportion.dev/allocated" "annotation of a pod",
            value: "`gpu-memory=MIB` or `gpu-fraction=PART`; of a pod that may burst all its requests and limits, with commas", written_by: "scheduler", read_by: "webhook, scheduler",
            "Request that these bytes were given for. While it differs from the pod's request, a resize is pending";
        ANNOTATION_RECEIVED "received-resource-type" "annotation of a pod", value: "`Regular`, `Fraction` or `MigInstance`",
            written_by: "scheduler", read_by: "scheduler", "Whether the pod has whole GPUs, shares or MIG partitions";
        ANNOTATION_NUMA_PREDICTED "kai.scheduler/numa-placement-predicted" "annotation of a pod",
            value: "JSON: a list of `zone` and `amount`", written_by: "scheduler, or KAI's binder", read_by: "scheduler",
            "NUMA zones that the scheduler expects the kubelet to give the pod (`--numa`)";
        ANNOTATION_NUMA_OBSERVED "kai.scheduler/numa-placement-observed" "annotation of a pod",
            value: "JSON: a list of `zone` and `amount`", written_by: "KAI's numa-placement-exporter", read_by: "scheduler",
            "NUMA zones that the kubelet gave the pod; goes before the expected ones";
        LABEL_GPU_GROUP "runai-gpu-group" "label of a pod", value: "UUID of a GPU; KAI's own values are read too",
            written_by: "scheduler, where it serves `kai-scheduler`", read_by: "webhook, scheduler",
            "GPU that the pod shares. A pod with shares of several GPUs has a label `runai-gpu-group/UUID` for each";
        ANNOTATION_CONFIG_MAP "runai/shared-gpu-configmap" "annotation of a pod",
            value: "beginning of the names of ConfigMaps",
            written_by: "webhook, with `--delivery config-maps`", read_by: "KAI's binder",
            "ConfigMaps by which KAI's binder hands over a share";
        LABEL_RESERVATION "app" "label of a pod", value: "`kai-resource-reservation`",
            written_by: "KAI", read_by: "scheduler",
            "Pod by which KAI keeps a GPU for the pods that share it; its GPU does not count as taken";
        ANNOTATION_RESERVED "run.ai/reserve_for_gpu_index" "annotation of a pod", value: "a GPU",
            written_by: "KAI", read_by: "scheduler", "GPU that such a pod keeps";
    }
    "Queue, priority and preemption" {
        LABEL_QUEUE "kai.scheduler/queue" "label of a pod, its owner or a ResourceClaim", value: "name of a Queue",
            written_by: "user", read_by: "scheduler", "Queue of the workload; that of the owner goes first";
        LABEL_OLD_QUEUE "runai/queue" "label of a pod or its owner", value: "name of a Queue",
            written_by: "user", read_by: "scheduler", "The same, as KAI called it up to version 0.5";
        LABEL_PROJECT "project" "label of a pod or its owner", value: "name",
            written_by: "user", read_by: "scheduler",
            "Queue of a workload without a queue label: PROJECT, or PROJECT-NODEPOOL beside a node pool";
        LABEL_NODE_POOL "kai.scheduler/node-pool" "label of a pod or PodGroup", value: "name",
            written_by: "user", read_by: "scheduler",
            "Part of the queue's name, see `project`; shown in the status of the PodGroup";
        LABEL_PRIORITY "priorityClassName" "label of a pod or its owners", value: "name of a PriorityClass",
            written_by: "user", read_by: "scheduler",
            "Priority of the workload; goes before `spec.priorityClassName`";
        LABEL_PREEMPTIBILITY "kai.scheduler/preemptibility" "label of a pod or its owners",
            value: "`preemptible` or `non-preemptible`", written_by: "user", read_by: "scheduler",
            "Whether others may take its place; if absent, those with a priority below 100 may be preempted";
        ANNOTATION_DELAY "kai.scheduler/preemption-delay" "annotation of a pod, its owners or a PodGroup",
            value: "duration, such as `5m`", written_by: "user", read_by: "scheduler",
            "How long the workload waits before others are evicted for it";
        ANNOTATION_QUEUE_BURST_LIMIT "apportion.dev/gpu-burst-limit" "annotation of a Queue",
            value: "number of GPUs, such as `4` or `2.5`; -1 is unlimited",
            written_by: "user", read_by: "webhook, scheduler, kubectl plugin",
            "What the GPU memory limits of the queue's pods, and of those in the queues below it, may add up to";
        ANNOTATION_QUEUE_SUSPENDS "apportion.dev/suspend-before-evict" "annotation of a Queue",
            value: "`true` or `false`", written_by: "user", read_by: "webhook, scheduler",
            "Pods of the queue whose GPU memory others need are suspended; those that cannot be are evicted";
        RESOURCE_QUEUE_LIMITS "limits.nvidia.com/gpu" "resource in `status.allocated` of a Queue",
            value: "number of GPUs", written_by: "scheduler", read_by: "kubectl plugin",
            "What these limits add up to, where the queue has `apportion.dev/gpu-burst-limit`";
        LABEL_TASK_PRIORITY "kai.scheduler/task-priority" "label of a pod", value: "whole number",
            written_by: "user", read_by: "scheduler",
            "Order of the pods of one group: the higher start first";
        LABEL_USER "user" "label of a pod", value: "name", written_by: "user", read_by: "scheduler",
            "Passed on to the pod's group";
    }
    "Pod groups" {
        ANNOTATION_GROUP "pod-group-name" "annotation of a pod", value: "name of a PodGroup",
            written_by: "user, scheduler, KAI's pod grouper", read_by: "scheduler", "Group of the pod";
        ANNOTATION_SKIP "kai.scheduler/skip-podgrouper" "annotation of a pod or its owners", value: "`true`",
            written_by: "user", read_by: "scheduler",
            "No group is derived from the owners; the pod waits until it names one";
        ANNOTATION_MIN_MEMBER "kai.scheduler/batch-min-member" "annotation of a workload", value: "number",
            written_by: "user", read_by: "scheduler", "Number of pods that start together";
        LABEL_SUBGROUP "kai.scheduler/subgroup-name" "label of a pod", value: "name",
            written_by: "user, scheduler, KAI's pod grouper", read_by: "scheduler",
            "Part of the group that the pod belongs to";
        ANNOTATION_TOP_OWNER "kai.scheduler/top-owner-metadata" "annotation of a PodGroup", value: "JSON",
            written_by: "scheduler, KAI's pod grouper", read_by: "scheduler",
            "Owner of a group that was derived; a group without it was made by somebody else";
        ANNOTATION_LAST_START "kai.scheduler/last-start-timestamp" "annotation of a PodGroup", value: "RFC 3339 time",
            written_by: "KAI", read_by: "scheduler", "When the group last started";
        ANNOTATION_LAST_EVICTION "kai.scheduler/last-eviction-timestamp" "annotation of a PodGroup",
            value: "RFC 3339 time", written_by: "KAI", read_by: "scheduler", "When it was last evicted";
        ANNOTATION_STALE "kai.scheduler/stale-podgroup-timestamp" "annotation of a PodGroup", value: "RFC 3339 time",
            written_by: "KAI", read_by: "scheduler", "Since when it runs with too few pods";
        ANNOTATION_GRACE "kai.scheduler/staleness-grace-period" "annotation of a PodGroup", value: "duration",
            written_by: "user", read_by: "scheduler",
            "How long it may run with too few pods; `spec.stalenessGracePeriod` goes first";
    }
    "Topology" {
        ANNOTATION_TOPOLOGY "kai.scheduler/topology" "annotation of a workload or its pods",
            value: "name of a Topology", written_by: "user", read_by: "scheduler",
            "Topology that the other annotations speak of";
        ANNOTATION_REQUIRED "kai.scheduler/topology-required-placement" "annotation of a workload or its pods",
            value: "level", written_by: "user", read_by: "scheduler", "All pods go into one domain of this level";
        ANNOTATION_PREFERRED "kai.scheduler/topology-preferred-placement" "annotation of a workload or its pods",
            value: "level", written_by: "user", read_by: "scheduler",
            "All pods go into one domain of this level where one has room";
        ANNOTATION_SEGMENT_SIZE "kai.scheduler/segment-size" "annotation of a pod template", value: "number",
            written_by: "user", read_by: "scheduler", "Workers are cut into runs of this size, each placed together";
        ANNOTATION_SEGMENT_REQUIRED "kai.scheduler/segment-topology-required-placement"
            "annotation of a pod template", value: "level", written_by: "user", read_by: "scheduler",
            "Each segment goes into one domain of this level";
        ANNOTATION_SEGMENT_PREFERRED "kai.scheduler/segment-topology-preferred-placement"
            "annotation of a pod template", value: "level", written_by: "user", read_by: "scheduler",
            "Each segment goes into one domain of this level where one has room";
    }
    "Nodes" {
        ANNOTATION_AGENT "apportion.dev/agent-address" "annotation of a node",
            value: "`HOST:PORT` or `unix:PATH`", written_by: "administrator", read_by: "scheduler",
            "Where the node's agent listens; goes before the address in its GpuNode";
        LABEL_GPU_COUNT "nvidia.com/gpu.count" "label of a node", value: "number",
            written_by: "NVIDIA's GPU feature discovery", read_by: "scheduler",
            "Number of GPUs of a node that has no agent and no device plugin";
        LABEL_GPU_MEMORY "nvidia.com/gpu.memory" "label of a node", value: "MiB",
            written_by: "NVIDIA's GPU feature discovery", read_by: "scheduler",
            "Memory of each GPU of a node without an agent";
        LABEL_MIG_STRATEGY "nvidia.com/mig.strategy" "label of a node", value: "`single` or `mixed`",
            written_by: "NVIDIA's GPU feature discovery", read_by: "scheduler",
            "How the node offers MIG partitions";
    }
    "Deployments that follow KAI's Config" {
        ANNOTATION_CONFIG_GENERATION "apportion.dev/kai-config-generation" "annotation of a Deployment", value: "number",
            written_by: "scheduler", read_by: "scheduler",
            "Generation of the Config that the Deployment follows";
        ANNOTATION_CONFIG_REPLICAS "apportion.dev/kai-config-replicas" "annotation of a Deployment", value: "number",
            written_by: "scheduler", read_by: "scheduler",
            "Replicas that the Deployment had before the Config stopped it";
        ANNOTATION_CONFIG_SECRETS "apportion.dev/kai-config-pull-secrets" "annotation of a Deployment",
            value: "names with commas between them", written_by: "scheduler", read_by: "scheduler",
            "Pull secrets that the Config added to the Deployment";
    }
    "Resources" {
        RESOURCE_SLOT "apportion.dev/gpu-slot" "resource of a container", value: "`1`",
            written_by: "webhook; agent on its node", read_by: "agent, by the kubelet",
            "The container waits for a grant. A slot is opaque: it does not say which grant";
        RESOURCE_WHOLE "nvidia.com/gpu" "resource of a container", value: "number",
            written_by: "user; agent on its node, with `--whole-cards on`", read_by: "scheduler, agent",
            "Whole GPUs, as NVIDIA's device plugin calls them";
        RESOURCE_WHOLE_AMD "amd.com/gpu" "resource of a container", value: "number", written_by: "user",
            read_by: "webhook, scheduler", "Whole AMD GPUs; they are placed, and no share of them is given";
        RESOURCE_PARTITION "nvidia.com/mig-" "resource of a container; the profile follows", value: "number",
            written_by: "user", read_by: "webhook, scheduler", "MIG partitions that NVIDIA's device plugin offers";
        RESOURCE_SHARE_MIB "apportion.dev/gpu-share-mib" "resource of a container and of a node", value: "MiB",
            written_by: "webhook, with `--count-shares`; agent on its node", read_by: "Kueue, autoscalers, ResourceQuota",
            "GPU memory that `gpu-memory` or the annotation of a container asks for; on a node, what its GPUs can give";
        RESOURCE_SHARE_MICRO "apportion.dev/gpu-share-micro" "resource of a container and of a node",
            value: "millionths of a GPU",
            written_by: "webhook, with `--count-shares`; agent on its node", read_by: "Kueue, autoscalers, ResourceQuota",
            "What `gpu-fraction` asks for, less what rounding can lose; on a node, 1000000 for each GPU";
        RESOURCE_MEMORY "apportion.dev/gpu-memory-mib" "resource of a node", value: "MiB",
            written_by: "agent", read_by: "people",
            "GPU memory that the node can give. No pod may ask for it; an admission policy refuses that";
        RESOURCE_MEMORY_FREE "apportion.dev/gpu-memory-free-mib" "resource of a node", value: "MiB",
            written_by: "agent", read_by: "people", "What is left of it";
    }
    "Dynamic resource allocation" {
        DRA_DRIVER "gpu.apportion.dev" "driver of a ResourceSlice; DeviceClass", value: "`gpu.apportion.dev`",
            written_by: "agent, with `--dra on`", read_by: "kube-scheduler, kubelet, scheduler",
            "Driver of the GPUs that resource claims can ask for, and the class with all of them";
        DRA_MEMORY "memory" "capacity of a device", value: "Kubernetes quantity in bytes, such as `2000Mi`",
            written_by: "agent; user in a claim", read_by: "kube-scheduler, scheduler, agent",
            "GPU memory that claims can share; a request without it is for the whole GPU";
        DRA_TAINT_HEALTH "gpu.apportion.dev/health" "taint of a device", value: "`unhealthy` or `lost`",
            written_by: "agent", read_by: "kube-scheduler, scheduler", "The GPU is sick and gets no new claims";
        DRA_TAINT_FULL "gpu.apportion.dev/full" "taint of a device", value: "none",
            written_by: "agent", read_by: "kube-scheduler, scheduler",
            "Others hold all of the GPU: shares by annotation, whole GPUs, or programs outside of pods";
        DRA_TAINT_OWNER "gpu.apportion.dev/other-owner" "taint of a device", value: "none",
            written_by: "agent", read_by: "kube-scheduler, scheduler",
            "A device plugin or another DRA driver gives out the GPUs of the node";
    }
    "CDI devices" {
        CDI_KIND "apportion.dev/grant" "CDI kind", value: "`apportion.dev/grant=SLOT`",
            written_by: "agent", read_by: "container runtime", "Device that stands for a container's grant";
        CDI_POD "apportion.dev/pod" "annotation of a CDI device", value: "UID of a pod or a ResourceClaim",
            written_by: "agent", read_by: "agent", "Pod or claim that a CDI file is for";
        CDI_ALLOCATION "apportion.dev/allocation" "annotation of a CDI device", value: "id of an allocation",
            written_by: "agent", read_by: "agent", "Allocation that a CDI file is for";
    }
    "Variables in a container or program" {
        ENV_GRANT "APPORTION_GRANT" "variable", value: "id of an allocation",
            written_by: "agent", read_by: "agent, from outside",
            "Grant of the container. Nothing inside is decided by it";
        ENV_VISIBLE "NVIDIA_VISIBLE_DEVICES" "variable", value: "UUIDs, `none` or `void`",
            written_by: "agent, webhook, `apportion run`", read_by: "NVIDIA's container runtime",
            "GPUs of the container; `void` where a CDI file or device files bring them";
        ENV_DRIVER_REQUEST "NVIDIA_GPU_MEMORY_REQUEST" "variable", value: "`0`",
            written_by: "agent", read_by: "NVIDIA's container toolkit 1.20",
            "Soft limit that the toolkit's hook sets in the driver, in MiB. A pod's own value is replaced or removed";
        ENV_DRIVER_LIMIT "NVIDIA_GPU_MEMORY_LIMIT" "variable", value: "MiB, such as `2300`",
            written_by: "agent", read_by: "NVIDIA's container toolkit 1.20",
            "Hard limit that the toolkit's hook sets in the driver: the share and a context. Only where the driver keeps limits. A pod's own value is replaced or removed";
        ENV_PORTION "GPU_PORTION" "variable", value: "two decimals, such as `0.50`",
            written_by: "agent, `apportion run`", read_by: "programs written for KAI",
            "Part of a GPU that the program has, as in KAI";
        ENV_MEMORY_LIMIT "CUDA_DEVICE_MEMORY_LIMIT" "variable", value: "amount, such as `2000m`",
            written_by: "agent, `apportion run`", read_by: "programs written for HAMi",
            "Limit of each GPU as HAMi writes it. The limit itself is kept in the account, not here";
        ENV_NUM_OF_GPUS "RUNAI_NUM_OF_GPUS" "variable", value: "number",
            written_by: "KAI's binder", read_by: "programs written for KAI",
            "Older name of `GPU_PORTION`; the webhook removes it from a container with a slot";
    }
}

/// The prefix of all of NVIDIA's resource names. An administrator may name cards, their replicas and partitions
/// freely below it.
const OF_NVIDIA: &str = "nvidia.com/";
/// The prefixes of other plugins' device ids for cards or parts of cards: a UUID, or on GKE the number of the device
/// file.
const CARDS: [&str; 3] = ["GPU-", "MIG-", "nvidia"];

/// Whether a kubelet device is a card of another device plugin. Our device ids are opaque.
#[must_use]
pub fn is_foreign_card(resource: &str, device: &str) -> bool {
    resource.starts_with(OF_NVIDIA) && CARDS.iter().any(|prefix| device.starts_with(prefix))
}

/// How often an agent writes its node's `GpuNode` even if nothing changed. Each write costs the API server 14 ms of
/// processor time, and there may be thousands of nodes. A scheduler that is connected to the agent needs no other
/// sign of life.
pub const HEARTBEAT: Duration = Duration::from_secs(6 * 3600);
/// How often an agent reads its node from the API server's cache, and writes its extended resources again if somebody
/// cleared them. A kubelet that registers its node anew does.
pub const NODE_CHECK: Duration = Duration::from_secs(1800);
/// The pause between two writes for changed usage, when it changed much.
pub const USE_PACE: Duration = Duration::from_secs(30);
/// The pause between two writes if anything but usage keeps changing.
pub const PACE: Duration = Duration::from_secs(5);
/// After this time without a heartbeat, the scheduler considers an agent without an address gone: two were missed.
pub const SILENT_AFTER: Duration = Duration::from_secs(12 * 3600 + 100);
/// After this time without an answer, the scheduler reports an agent with an address as silent.
pub const LOST_AFTER: Duration = Duration::from_secs(100);
