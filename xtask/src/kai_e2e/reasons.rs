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
const NOT_RUN: &[&str] = &["gitops", "upgrade", "scale", "timeaware", "numa"];

const ROWS: &[Row] = &[
    Row {
        folder: "gitops",
        spec: "",
        why: "installs KAI itself, by Argo CD",
    },
    Row {
        folder: "upgrade",
        spec: "",
        why: "installs two versions of KAI itself",
    },
    Row {
        folder: "scale",
        spec: "",
        why: "needs KWOK's operator and up to 500 nodes of it; `cargo xtask bench` measures such sizes",
    },
    Row {
        folder: "numa",
        spec: "",
        why: "needs NodeResourceTopology objects, which Apportion does not read, and KAI's exporter for them",
    },
    Row {
        folder: "timeaware",
        spec: "",
        why: "needs the Prometheus that KAI's operator installs",
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
