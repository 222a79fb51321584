//! NVIDIA's own components of a node, each with a `go.mod` in its own folder. They load the driver's library, which
//! needs cgo.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{GoModule, GoProgram, pinned};

/// The components, by their folders.
const PARTS: &[(&str, &[GoProgram])] = &[
    (
        "device-plugin",
        &[GoProgram {
            name: "nvidia-device-plugin",
            package: "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin",
        }],
    ),
    (
        "container-toolkit",
        &[
            GoProgram {
                name: "nvidia-container-runtime",
                package: "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-container-runtime",
            },
            GoProgram {
                name: "nvidia-ctk",
                package: "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk",
            },
            GoProgram {
                name: "nvidia-cdi-hook",
                package: "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook",
            },
        ],
    ),
];
/// The driver's headers mark old functions as deprecated. The warnings do not matter here.
pub(super) const QUIET: &str = "-O2 -Wno-deprecated-declarations";
/// As in NVIDIA's makefiles: the driver's functions are resolved when they are called.
const LAZY: &str = "-s -w '-extldflags=-Wl,--export-dynamic -Wl,--unresolved-symbols=ignore-in-object-files -Wl,-z,lazy'";

/// Finds the programs of the component whose folder is `of` below `modules`, or builds them.
///
/// # Errors
/// If one cannot be built.
///
/// # Panics
/// If no row of this file names the component.
pub fn of_nvidia(modules: &Path, of: &str) -> Result<BTreeMap<&'static str, PathBuf>> {
    let mut rows = PARTS.iter();
    let row = rows.find(|(folder, _)| *folder == of);
    let (_, programs) = row.expect("every part has a row");
    let source = GoModule {
        takes_c: true,
        flags: LAZY.into(),
        ..pinned(modules, of, Vec::new())?
    };
    source.find(programs)
}

/// The folders of all components.
pub(super) fn folders() -> impl Iterator<Item = &'static str> {
    PARTS.iter().map(|(folder, _)| *folder)
}
