//! Why specs do not pass: one row for each cause. A spec that fails without a row is our fault.

struct KnownFailure {
    /// The start of the suite's folder.
    folder: &'static str,
    /// A part of the spec's name.
    spec: &'static str,
    why: &'static str,
}

/// Suites that need programs or kinds which do not exist here. Each spec would wait until its timeout.
const NOT_RUN: &[&str] = &["gitops", "scale", "timeaware", "upgrade"];

/// The texts of several rows.
const CLAIMS: &str = "needs GPUs of NVIDIA's DRA driver, which this cluster lacks";
const EXPORTER: &str =
    "waits for the DaemonSet of KAI's numa-placement-exporter, which KAI's operator starts";
const CONFIG_MAPS: &str =
    "reads the ConfigMaps that KAI makes for each shared pod; Apportion needs none";

const ROWS: &[KnownFailure] = &[
    KnownFailure {
        folder: "gitops",
        spec: "",
        why: "installs KAI itself, by Argo CD",
    },
    KnownFailure {
        folder: "upgrade",
        spec: "",
        why: "waits until an upgrade by Helm changes the Config; Apportion's chart leaves a Config as its users set it",
    },
    KnownFailure {
        folder: "scale",
        spec: "",
        why: "needs KWOK's operator and up to 500 nodes of it; `cargo xtask bench -- api` measures such sizes",
    },
    KnownFailure {
        folder: "numa",
        spec: "deploys",
        why: EXPORTER,
    },
    KnownFailure {
        folder: "numa",
        spec: "explicit disabled overrides",
        why: EXPORTER,
    },
    KnownFailure {
        folder: "numa",
        spec: "prunes the DaemonSet",
        why: EXPORTER,
    },
    KnownFailure {
        folder: "numa",
        spec: "Burstable cross-zone request",
        why: "wants a pod on a node whose Topology Manager refuses it; KAI's scheduler does not put it there either",
    },
    KnownFailure {
        folder: "timeaware",
        spec: "",
        why: "needs the Prometheus that KAI's operator installs",
    },
    KnownFailure {
        folder: "allocate/resources",
        spec: "ynamic resource",
        why: CLAIMS,
    },
    KnownFailure {
        folder: "allocate/resources",
        spec: "DRA-backed",
        why: CLAIMS,
    },
    KnownFailure {
        folder: "preempt",
        spec: "Dynamic Resources",
        why: CLAIMS,
    },
    KnownFailure {
        folder: "preempt",
        spec: "DRA claims",
        why: CLAIMS,
    },
    KnownFailure {
        folder: "reclaim",
        spec: "Reclaim DRA",
        why: CLAIMS,
    },
    KnownFailure {
        folder: "allocate/topology",
        spec: "8 nodes",
        why: "needs eight nodes with GPUs: `--gpu-nodes 8`",
    },
    KnownFailure {
        folder: "api/config",
        spec: "routes the Service to the lease holder",
        why: "reads the EndpointSlice of KAI's operator and a Lease of KAI's name; Apportion needs no Service for its leader",
    },
    KnownFailure {
        folder: "allocate/node_order",
        spec: "Schedule on same GPU",
        why: CONFIG_MAPS,
    },
    KnownFailure {
        folder: "allocate/node_order",
        spec: "Schedule on different gpus",
        why: CONFIG_MAPS,
    },
    KnownFailure {
        folder: "integrations/k8s_native",
        spec: "leak config maps",
        why: CONFIG_MAPS,
    },
    KnownFailure {
        folder: "integrations/third_party/knative",
        spec: "Non-Gang scheduling",
        why: "reads the options of a pod of KAI's pod grouper",
    },
    KnownFailure {
        folder: "integrations/third_party/karta",
        spec: "",
        why: "needs Karta's kinds and the Deployment of KAI's pod grouper",
    },
    KnownFailure {
        folder: "integrations/third_party/hamicore",
        spec: "",
        why: "needs a GPU, and the plugin for HAMi-core of KAI's binder",
    },
];

/// Whether a suite is listed but not run.
pub(super) fn not_run(folder: &str) -> bool {
    NOT_RUN.iter().any(|prefix| folder.starts_with(prefix))
}

/// Why a spec does not pass.
pub(super) fn why(folder: &str, spec: &str) -> Option<&'static str> {
    let row = ROWS
        .iter()
        .find(|row| folder.starts_with(row.folder) && spec.contains(row.spec));
    row.map(|row| row.why)
}
