//! Checks the map in `docs/architecture.md`, section "Crates": which crate may depend on which, and where unsafe code
//! is allowed.
//!
//! A crate that is not on the map fails the test, so a new crate must be added to the map.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use cargo_metadata::camino::Utf8Path;
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, TargetKind};

/// A crate of ours: its allowed dependencies, and whether it may use unsafe code.
struct CrateRule {
    name: &'static str,
    knows: &'static [&'static str],
    room: UnsafePolicy,
}

/// Whether a crate may use unsafe code.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnsafePolicy {
    /// It has `#![forbid(unsafe_code)]`.
    Safe,
    /// It may use unsafe code: account pages, interception, the simulated driver, and programs in the role of other
    /// people's (they call the driver's C interface).
    Unsafe,
}

use UnsafePolicy::{Safe, Unsafe};

const MAP: &[CrateRule] = &[
    // Words.
    CrateRule {
        name: "apportion-abi",
        knows: &[],
        room: Unsafe,
    },
    // Pure.
    CrateRule {
        name: "apportion-ledger",
        knows: &["apportion-abi"],
        room: Safe,
    },
    CrateRule {
        name: "apportion-cgroup",
        knows: &[],
        room: Safe,
    },
    CrateRule {
        name: "apportion-runtime-class",
        knows: &["apportion-abi"],
        room: Safe,
    },
    CrateRule {
        name: "apportion-policy",
        knows: &["apportion-abi"],
        room: Safe,
    },
    CrateRule {
        name: "apportion-kubernetes",
        knows: &[],
        room: Safe,
    },
    CrateRule {
        name: "apportion-claims",
        knows: &["apportion-kubernetes"],
        room: Safe,
    },
    CrateRule {
        name: "apportion-groups",
        knows: &["apportion-abi", "apportion-kubernetes"],
        room: Safe,
    },
    CrateRule {
        name: "apportion-admission",
        knows: &["apportion-abi", "apportion-groups", "apportion-kubernetes"],
        room: Safe,
    },
    CrateRule {
        name: "apportion-model",
        knows: &[
            "apportion-abi",
            "apportion-admission",
            "apportion-claims",
            "apportion-groups",
            "apportion-kubernetes",
            "apportion-policy",
        ],
        room: Safe,
    },
    CrateRule {
        name: "apportion-explain",
        knows: &["apportion-abi", "apportion-model", "apportion-policy"],
        room: Safe,
    },
    CrateRule {
        name: "apportion-gate",
        knows: &["apportion-abi"],
        room: Safe,
    },
    // Wire.
    CrateRule {
        name: "apportion-proto",
        knows: &[],
        room: Safe,
    },
    CrateRule {
        name: "apportion-bounded",
        knows: &[],
        room: Safe,
    },
    CrateRule {
        name: "apportion-crds",
        knows: &[],
        room: Safe,
    },
    // It needs no network, but is for programs: what a person reads when one fails, and its exit code.
    CrateRule {
        name: "apportion-exit",
        knows: &["apportion-abi"],
        room: Safe,
    },
    CrateRule {
        name: "apportion-nri",
        knows: &["apportion-abi"],
        room: Safe,
    },
    CrateRule {
        name: "apportion-memory-limits",
        knows: &[],
        room: Unsafe,
    },
    CrateRule {
        name: "apportion-process-checkpoints",
        knows: &[],
        room: Unsafe,
    },
    // Programs.
    CrateRule {
        name: "apportion-agent",
        knows: &[
            "apportion-abi",
            "apportion-bounded",
            "apportion-cgroup",
            "apportion-crds",
            "apportion-exit",
            "apportion-kubernetes",
            "apportion-ledger",
            "apportion-memory-limits",
            "apportion-nri",
            "apportion-process-checkpoints",
            "apportion-proto",
            "apportion-runtime-class",
        ],
        room: Safe,
    },
    CrateRule {
        name: "apportion",
        knows: &[
            "apportion-abi",
            "apportion-admission",
            "apportion-crds",
            "apportion-exit",
            "apportion-intercept",
            "apportion-kubernetes",
            "apportion-policy",
            "apportion-proto",
            "apportion-runtime-class",
        ],
        room: Safe,
    },
    CrateRule {
        name: "apportion-heap",
        knows: &[],
        room: Unsafe,
    },
    CrateRule {
        name: "apportion-webhook",
        knows: &["apportion-admission", "apportion-bounded", "apportion-exit"],
        room: Safe,
    },
    CrateRule {
        name: "apportion-scheduler",
        knows: &[
            "apportion-abi",
            "apportion-admission",
            "apportion-bounded",
            "apportion-claims",
            "apportion-exit",
            "apportion-explain",
            "apportion-groups",
            "apportion-heap",
            "apportion-kubernetes",
            "apportion-model",
            "apportion-policy",
            "apportion-proto",
            "apportion-webhook",
        ],
        room: Safe,
    },
    CrateRule {
        name: "apportion-intercept",
        knows: &["apportion-abi", "apportion-gate"],
        room: Unsafe,
    },
    // Test programs in the role of other people's: they use the driver and nothing of ours.
    CrateRule {
        name: "apportion-probe",
        knows: &[],
        room: Unsafe,
    },
    CrateRule {
        name: "apportion-conformance",
        knows: &[],
        room: Unsafe,
    },
    // It runs such programs with and without the library, and must know which functions are hooked.
    CrateRule {
        name: "apportion-real-drivers",
        knows: &["apportion-abi", "apportion-intercept"],
        room: Unsafe,
    },
    // It compares pages of the book with text that tests generate from the code.
    CrateRule {
        name: "apportion-reference",
        knows: &[],
        room: Safe,
    },
    // It puts programs into memory groups and depends on none of them.
    CrateRule {
        name: "apportion-memory-group",
        knows: &[],
        room: Safe,
    },
    // The simulated driver does not depend on what it tests.
    CrateRule {
        name: "apportion-sim-machine",
        knows: &[],
        room: Safe,
    },
    CrateRule {
        name: "apportion-sim-client",
        knows: &["apportion-sim-machine"],
        room: Unsafe,
    },
    CrateRule {
        name: "apportion-sim-daemon",
        knows: &["apportion-sim-client", "apportion-sim-machine"],
        room: Unsafe,
    },
    CrateRule {
        name: "apportion-sim-cuda",
        knows: &["apportion-sim-client", "apportion-sim-machine"],
        room: Unsafe,
    },
    CrateRule {
        name: "apportion-sim-nvml",
        knows: &["apportion-sim-client", "apportion-sim-machine"],
        room: Unsafe,
    },
    // It uses the driver like any program: by function names.
    CrateRule {
        name: "apportion-sim-cudart",
        knows: &[],
        room: Unsafe,
    },
    // They stand in for other programs in a cluster, and use only the API server.
    CrateRule {
        name: "apportion-stand-in-kubelet",
        knows: &[],
        room: Safe,
    },
    CrateRule {
        name: "apportion-stand-in-operator",
        knows: &[],
        room: Safe,
    },
    // It packs files that others built.
    CrateRule {
        name: "apportion-image",
        knows: &[],
        room: Safe,
    },
    // It starts our programs and links with none.
    CrateRule {
        name: "apportion-cluster",
        knows: &["apportion-image"],
        room: Safe,
    },
    // It builds, and it runs the pure scheduler on files.
    CrateRule {
        name: "xtask",
        knows: &[
            "apportion-abi",
            "apportion-admission",
            "apportion-cluster",
            "apportion-groups",
            "apportion-image",
            "apportion-kubernetes",
            "apportion-policy",
        ],
        room: Safe,
    },
];

/// Crates that may depend on all others: only tests and benchmarks.
const ONLOOKERS: &[&str] = &[
    "apportion-tests",
    "apportion-kubelet-tests",
    "apportion-benches",
    "apportion-bench-api",
];

/// Dependencies that only crates from the wire layer upwards may use.
const WIRE: &[&str] = &["tokio", "tonic", "prost", "kube"];
const ON_THE_WIRE: &[&str] = &[
    "apportion-proto",
    "apportion-bounded",
    "apportion-crds",
    "apportion-nri",
    "apportion-agent",
    "apportion",
    "apportion-scheduler",
    "apportion-webhook",
    "apportion-stand-in-kubelet",
    "apportion-stand-in-operator",
];

/// The dependencies of the library in other people's programs, besides our own crates.
const IN_THE_HOOKED_PROCESS: &[&str] = &["hashbrown", "libc"];
const HOOKED: &[&str] = &["apportion-abi", "apportion-gate", "apportion-intercept"];

fn metadata() -> Metadata {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    MetadataCommand::new()
        .manifest_path(manifest)
        .no_deps()
        .exec()
        .expect("cargo knows the workspace")
}

/// The names of a package's dependencies, without those that only its tests need.
fn needs(package: &Package) -> BTreeSet<&str> {
    let dependencies = package.dependencies.iter();
    let built = dependencies.filter(|dependency| {
        let is_for_loom = dependency
            .target
            .as_ref()
            .is_some_and(|t| t.to_string().contains("loom"));
        dependency.kind != DependencyKind::Development && !is_for_loom
    });
    built.map(|dependency| dependency.name.as_str()).collect()
}

/// All packages of the workspace by name.
fn packages(metadata: &Metadata) -> BTreeMap<&str, &Package> {
    metadata
        .workspace_packages()
        .into_iter()
        .map(|package| (package.name.as_str(), package))
        .collect()
}

#[test]
fn every_crate_knows_only_whom_the_map_lets_it_know() {
    let metadata = metadata();
    let packages = packages(&metadata);
    for (name, package) in &packages {
        let Some(row) = MAP.iter().find(|row| row.name == *name) else {
            assert!(ONLOOKERS.contains(name), "{name} is not on the map");
            continue;
        };
        let ours = needs(package)
            .into_iter()
            .filter(|needed| packages.contains_key(needed));
        let wrong: Vec<_> = ours.filter(|needed| !row.knows.contains(needed)).collect();
        assert!(wrong.is_empty(), "{name} must not know {wrong:?}");
    }
}

#[test]
fn everything_on_the_map_is_there() {
    let metadata = metadata();
    let packages = packages(&metadata);
    for row in MAP {
        assert!(
            packages.contains_key(row.name),
            "{} is not in the workspace",
            row.name
        );
    }
}

#[test]
fn the_network_is_known_on_two_floors_only() {
    let metadata = metadata();
    for (name, package) in packages(&metadata) {
        if !ON_THE_WIRE.contains(&name) && !ONLOOKERS.contains(&name) {
            let wrong: Vec<_> = needs(package)
                .into_iter()
                .filter(|n| WIRE.contains(n))
                .collect();
            assert!(wrong.is_empty(), "{name} must not know {wrong:?}");
        }
    }
}

#[test]
fn the_hooked_process_gets_a_closed_list_of_crates() {
    let metadata = metadata();
    let packages = packages(&metadata);
    for name in HOOKED {
        let wrong: Vec<_> = needs(packages[name])
            .into_iter()
            .filter(|n| !(HOOKED.contains(n) || IN_THE_HOOKED_PROCESS.contains(n)))
            .collect();
        assert!(
            wrong.is_empty(),
            "{name} must not bring {wrong:?} into other people's programs"
        );
    }
}

#[test]
fn crates_outside_the_rooms_forbid_unsafe_code() {
    let metadata = metadata();
    let packages = packages(&metadata);
    for row in MAP.iter().filter(|row| row.room == Safe) {
        for root in roots(packages[row.name]) {
            let text = fs::read_to_string(root).expect("the root of a crate is readable");
            assert!(
                text.contains("#![forbid(unsafe_code)]"),
                "{root} does not forbid unsafe code"
            );
        }
    }
}

/// The root files of a package's libraries and programs.
fn roots(package: &Package) -> impl Iterator<Item = &Utf8Path> {
    let targets = package.targets.iter();
    targets
        .filter(move |target| {
            target.kind.iter().any(|kind| {
                matches!(
                    kind,
                    TargetKind::Lib | TargetKind::RLib | TargetKind::CDyLib | TargetKind::Bin
                )
            })
        })
        .map(|target| target.src_path.as_path())
}

#[test]
fn no_module_is_called_mod_rs() {
    let root = metadata().workspace_root;
    let mut folders = vec![root.into_std_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)
            .expect("a source folder is readable")
            .flatten()
        {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                folders.push(path);
                continue;
            }
            assert!(
                name != "mod.rs",
                "{} has another name in this house",
                path.display()
            );
        }
    }
}
