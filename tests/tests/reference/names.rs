//! Annotations, labels, resources and variables.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use apportion_abi::names::{
    ANNOTATION_CONTAINER_COMPUTE, ANNOTATION_CONTAINER_DEVICES, ANNOTATION_CONTAINER_LIMIT,
    ANNOTATION_CONTAINER_MODE, ANNOTATION_CONTAINER_REQUEST, ANNOTATION_PORTION_LIMIT, NAMES,
};
use apportion_admission::names::{
    KAI_CONTAINER, PER_CONTAINER, PER_CONTAINER_COMPUTE, PER_CONTAINER_DEVICES,
    PER_CONTAINER_LIMIT, PER_CONTAINER_MODE, PER_CONTAINER_REQUEST, PORTION_LIMIT,
};
use apportion_reference::{cell, code, hold, table};

#[test]
fn the_reference_has_every_name() {
    let mut text = String::new();
    for (title, names) in NAMES {
        let rows = names.iter().map(|name| {
            let way = format!("{} → {}", name.written_by, name.read_by);
            let [meaning, value, place, way] =
                [name.meaning, name.value, name.place, &way].map(cell);
            [code(name.name), meaning, value, place, way]
        });
        let titles = ["name", "meaning", "value", "where", "writer → reader"];
        let _ = writeln!(text, "## {title}\n\n{}", table(titles, rows));
    }
    hold("annotations", "names", &text);
}

#[test]
fn names_with_a_container_in_them_are_what_the_webhook_reads() {
    for (name, end) in [
        (ANNOTATION_CONTAINER_REQUEST, PER_CONTAINER_REQUEST),
        (ANNOTATION_CONTAINER_LIMIT, PER_CONTAINER_LIMIT),
        (ANNOTATION_CONTAINER_MODE, PER_CONTAINER_MODE),
        (ANNOTATION_CONTAINER_DEVICES, PER_CONTAINER_DEVICES),
        (ANNOTATION_CONTAINER_COMPUTE, PER_CONTAINER_COMPUTE),
    ] {
        assert_eq!(name, format!("{PER_CONTAINER}NAME{end}"));
    }
    assert_eq!(
        ANNOTATION_PORTION_LIMIT,
        format!("{KAI_CONTAINER}NAME{PORTION_LIMIT}")
    );
}

/// Prefixes of our names, KAI's and NVIDIA's.
const BEGINNINGS: [&str; 7] = [
    "apportion.dev/",
    "kai.scheduler/",
    "runai/",
    "runai-",
    "run.ai/",
    "nvidia.com/",
    "amd.com/",
];
/// Strings with these prefixes that are not such names.
const ELSE: [&str; 8] = [
    // The signer of agents' certificates, and versions of our API and KAI's.
    "apportion.dev/agent",
    "apportion.dev/v1alpha1",
    "kai.scheduler/v1",
    // Prefixes of several resources.
    "nvidia.com/",
    "nvidia.com/container.",
    "kai.scheduler/container.",
    // A part of KAI's statuses that the oracles query.
    "run.ai/gpu.memory",
    // Other projects' annotations by which a container requests devices from the runtime.
    "nvidia.com/gpu",
];

/// A name that is written outside the table would be used without being in the reference.
#[test]
fn no_program_has_a_name_of_its_own() {
    let known: BTreeSet<&str> = NAMES
        .iter()
        .flat_map(|(_, names)| *names)
        .map(|name| name.name)
        .collect();
    let mut looked_at = 0;
    for folder in [
        "apportion/src",
        "node-agent",
        "proto",
        "runtime-class/src",
        "scheduler-shim",
    ] {
        for path in sources(
            &Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("..")
                .join(folder),
        ) {
            looked_at += 1;
            let text = fs::read_to_string(&path).expect("a source is readable");
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            let literals = text.split('"').skip(1).step_by(2);
            for name in
                literals.filter(|name| BEGINNINGS.iter().any(|begin| name.starts_with(begin)))
            {
                let is_word = name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "./-_".contains(c));
                assert!(
                    !is_word || known.contains(name) || ELSE.contains(&name),
                    "{} has {name:?}, which is not in proto/abi/src/names.rs",
                    path.display()
                );
            }
        }
    }
    assert!(looked_at > 100, "{looked_at}");
}

/// The source files below a folder, without tests.
fn sources(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)
        .expect("a source folder is readable")
        .flatten()
    {
        let path = entry.path();
        let name = entry.file_name();
        let is_test = ["tests", "tests.rs", "target"]
            .iter()
            .any(|test| name == *test);
        if is_test {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
    found
}
