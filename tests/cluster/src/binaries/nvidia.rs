//! NVIDIA's own parts of a node, each with a `go.mod` in a folder of its own. They load the driver's library, which takes C.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{GoModule, GoProgram, pinned};

/// The parts, by their folders.
const PARTS: &[(&str, &[GoProgram])] = &[(
    "device-plugin",
    &[GoProgram {
        name: "nvidia-device-plugin",
        package: "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin",
    }],
)];
/// Old functions of the driver are declared as such, which is of no interest here.
pub(super) const QUIET: &str = "-O2 -Wno-deprecated-declarations";
/// As their own makefiles link them: the driver's functions are found when they are called, and not before.
const LAZY: &str = "-s -w '-extldflags=-Wl,--export-dynamic -Wl,--unresolved-symbols=ignore-in-object-files -Wl,-z,lazy'";

/// Finds the programs of the part whose folder is `of` below `modules`, or builds them.
///
/// # Errors
/// If one cannot be built.
///
/// # Panics
/// If no row of this file names the part.
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
