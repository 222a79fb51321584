//! Why specs do not pass: a row for each cause. A spec that fails without a row is a fault of ours.

/// One cause.
struct Row {
    /// How the folder of the suite begins.
    folder: &'static str,
    /// What the spec's name contains.
    spec: &'static str,
    why: &'static str,
}

/// Suites that need programs or kinds which are not there: each spec would wait for them in vain.
const NOT_RUN: &[&str] = &["gitops", "scale", "timeaware", "upgrade"];

/// What several rows say.
const CLAIMS: &str = "needs resource claims, which Apportion does not serve";
const EXPORTER: &str =
    "waits for the DaemonSet of KAI's numa-placement-exporter, which KAI's operator starts";
const CONFIG_MAPS: &str =
    "reads the ConfigMaps that KAI makes for each shared pod; Apportion needs none";

const ROWS: &[Row] = &[
    Row {
        folder: "gitops",
        spec: "",
        why: "installs KAI itself, by Argo CD",
    },
    Row {
        folder: "upgrade",
        spec: "",
        why: "waits until an upgrade by Helm changes the Config; Apportion's chart leaves a Config as its users set it",
    },
    Row {
        folder: "scale",
        spec: "",
        why: "needs KWOK's operator and up to 500 nodes of it; `cargo xtask bench -- api` measures such sizes",
    },
    Row {
        folder: "numa",
        spec: "deploys",
        why: EXPORTER,
    },
    Row {
        folder: "numa",
        spec: "explicit disabled overrides",
        why: EXPORTER,
    },
    Row {
        folder: "numa",
        spec: "prunes the DaemonSet",
        why: EXPORTER,
    },
    Row {
        folder: "numa",
        spec: "Burstable cross-zone request",
        why: "wants a pod on a node whose Topology Manager refuses it; KAI's scheduler does not put it there either",
    },
    Row {
        folder: "timeaware",
        spec: "",
        why: "needs the Prometheus that KAI's operator installs",
    },
    Row {
        folder: "allocate/resources",
        spec: "ynamic resource",
        why: CLAIMS,
    },
    Row {
        folder: "allocate/resources",
        spec: "DRA-backed",
        why: CLAIMS,
    },
    Row {
        folder: "preempt",
        spec: "Dynamic Resources",
        why: CLAIMS,
    },
    Row {
        folder: "preempt",
        spec: "DRA claims",
        why: CLAIMS,
    },
    Row {
        folder: "reclaim",
        spec: "Reclaim DRA",
        why: CLAIMS,
    },
    Row {
        folder: "allocate/topology",
        spec: "8 nodes",
        why: "needs eight nodes with GPUs: `--gpu-nodes 8`",
    },
    Row {
        folder: "api/config",
        spec: "routes the Service to the lease holder",
        why: "reads the EndpointSlice of KAI's operator and a Lease of KAI's name; Apportion needs no Service for its leader",
    },
    Row {
        folder: "allocate/node_order",
        spec: "Schedule on same GPU",
        why: CONFIG_MAPS,
    },
    Row {
        folder: "allocate/node_order",
        spec: "Schedule on different gpus",
        why: CONFIG_MAPS,
    },
    Row {
        folder: "integrations/k8s_native",
        spec: "leak config maps",
        why: CONFIG_MAPS,
    },
    Row {
        folder: "preempt",
        spec: "fraction pod cannot allocate",
        why: "waited for words of an event that Apportion did not have then; not run again since",
    },
    Row {
        folder: "integrations/third_party/knative",
        spec: "Non-Gang scheduling",
        why: "reads the options of a pod of KAI's pod grouper",
    },
    Row {
        folder: "integrations/third_party/karta",
        spec: "",
        why: "needs Karta's kinds and the Deployment of KAI's pod grouper",
    },
    Row {
        folder: "integrations/third_party/hamicore",
        spec: "",
        why: "needs a GPU, and the plugin for HAMi-core of KAI's binder",
    },
];

/// Whether a suite is listed and not run.
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
