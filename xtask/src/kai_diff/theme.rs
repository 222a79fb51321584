//! Themes of random clusters: which features of the scheduler occur, and how often.

/// A theme. Every `u64` is a probability in percent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterTheme {
    pub(crate) name: &'static str,
    /// The depth of the queue tree.
    pub(crate) levels: usize,
    pub(crate) nodes: (usize, usize),
    pub(crate) jobs: (usize, usize),
    /// Quotas and limits of CPU and memory, and jobs that need much of them.
    pub(crate) cpu_quotas: bool,
    /// Priorities of queues, and fractional quotas.
    pub(crate) queue_priorities: bool,
    /// Minimum run times of queues.
    pub(crate) min_runtimes: bool,
    /// Topologies, and nodes in racks and zones.
    pub(crate) topology: bool,
    pub(crate) spread: bool,
    /// A GPU or two of each node are in use.
    pub(crate) fragmented: bool,
    /// Jobs that share GPUs by fraction or by memory; those that share several GPUs.
    pub(crate) fraction: u64,
    pub(crate) memory: u64,
    pub(crate) several_devices: u64,
    /// Elastic jobs; jobs with subgroups; jobs with topology constraints.
    pub(crate) elastic: u64,
    pub(crate) subgroups: u64,
    pub(crate) constrained: u64,
    /// Pods with affinity or anti-affinity terms, or with node affinity.
    pub(crate) affinity: u64,
    pub(crate) releasing: u64,
    pub(crate) stale: u64,
    pub(crate) delayed: u64,
    /// Jobs that cannot be preempted, and jobs above the usual priority.
    pub(crate) urgent: u64,
}

const PLAIN: ClusterTheme = ClusterTheme {
    name: "plain",
    levels: 2,
    nodes: (1, 4),
    jobs: (4, 9),
    cpu_quotas: false,
    queue_priorities: false,
    min_runtimes: false,
    topology: false,
    spread: false,
    fragmented: false,
    fraction: 0,
    memory: 0,
    several_devices: 0,
    elastic: 10,
    subgroups: 0,
    constrained: 0,
    affinity: 0,
    releasing: 0,
    stale: 0,
    delayed: 0,
    urgent: 25,
};

pub(crate) const ALL: [ClusterTheme; 22] = [
    PLAIN,
    ClusterTheme {
        name: "deep",
        levels: 4,
        jobs: (5, 11),
        ..PLAIN
    },
    ClusterTheme {
        name: "cpu-quotas",
        cpu_quotas: true,
        ..PLAIN
    },
    ClusterTheme {
        name: "order",
        queue_priorities: true,
        levels: 3,
        ..PLAIN
    },
    ClusterTheme {
        name: "fraction",
        fraction: 75,
        ..PLAIN
    },
    ClusterTheme {
        name: "devices",
        fraction: 75,
        several_devices: 50,
        ..PLAIN
    },
    ClusterTheme {
        name: "gpu-memory",
        memory: 70,
        ..PLAIN
    },
    ClusterTheme {
        name: "priority",
        urgent: 60,
        levels: 1,
        ..PLAIN
    },
    ClusterTheme {
        name: "min-runtime",
        min_runtimes: true,
        elastic: 40,
        ..PLAIN
    },
    ClusterTheme {
        name: "elastic",
        elastic: 75,
        ..PLAIN
    },
    ClusterTheme {
        name: "gang",
        jobs: (3, 7),
        elastic: 0,
        ..PLAIN
    },
    ClusterTheme {
        name: "subgroups",
        subgroups: 70,
        elastic: 40,
        ..PLAIN
    },
    ClusterTheme {
        name: "topology",
        topology: true,
        constrained: 60,
        nodes: (3, 8),
        ..PLAIN
    },
    ClusterTheme {
        name: "subtopology",
        topology: true,
        constrained: 50,
        subgroups: 60,
        elastic: 30,
        nodes: (3, 8),
        ..PLAIN
    },
    ClusterTheme {
        name: "affinity",
        affinity: 50,
        topology: true,
        nodes: (2, 5),
        ..PLAIN
    },
    ClusterTheme {
        name: "releasing",
        releasing: 35,
        ..PLAIN
    },
    ClusterTheme {
        name: "stale",
        stale: 40,
        elastic: 30,
        ..PLAIN
    },
    ClusterTheme {
        name: "delay",
        delayed: 50,
        ..PLAIN
    },
    ClusterTheme {
        name: "spread",
        spread: true,
        fraction: 40,
        ..PLAIN
    },
    ClusterTheme {
        name: "fragmentation",
        fragmented: true,
        nodes: (3, 6),
        ..PLAIN
    },
    ClusterTheme {
        name: "mixed",
        levels: 3,
        queue_priorities: true,
        min_runtimes: true,
        topology: true,
        fraction: 25,
        memory: 10,
        several_devices: 15,
        elastic: 30,
        subgroups: 15,
        constrained: 15,
        affinity: 15,
        releasing: 10,
        stale: 10,
        delayed: 10,
        nodes: (2, 5),
        ..PLAIN
    },
    ClusterTheme {
        name: "large",
        nodes: (6, 12),
        jobs: (18, 36),
        elastic: 25,
        levels: 3,
        ..PLAIN
    },
];
