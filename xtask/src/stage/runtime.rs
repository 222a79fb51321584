//! Links the simulated CUDA runtime: one archive, two libraries.
//!
//! Programs name the major version twice, in the needed library and in the version of each symbol, so that both
//! libraries may be in one process. Rust cannot build a library with versioned symbols. The C compiler's linker can,
//! from the archive and a version script. A symbol that the archive does not define gets a weak function that returns
//! `cudaErrorNotSupported`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::steps::run;
use crate::workspace::Workspace;

pub(super) const MAJORS: [u32; 2] = [12, 13];
/// The package and its archive.
pub(super) const PACKAGE: &str = "apportion-sim-cudart";
const ARCHIVE: &str = "libapportion_sim_cudart.a";
const SOURCE: &str = "sim/cudart";

/// The place of a major version's library in the staged tree.
pub(super) fn placed(major: u32) -> String {
    format!("lib/apportion/sim/runtime/libcudart.so.{major}")
}

/// Links one major version's library from the archive in `made`. Returns its path.
pub(super) fn link(workspace: &Workspace, made: &Path, major: u32) -> Result<PathBuf> {
    let list = workspace
        .root
        .join(SOURCE)
        .join(format!("names-{major}.txt"));
    let list =
        fs::read_to_string(&list).with_context(|| format!("failed to read {}", list.display()))?;
    let folder = made.join("sim-cudart").join(major.to_string());
    fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
    // Another build may link the same library at this moment.
    let scratch = tempfile::tempdir_in(&folder)
        .with_context(|| format!("failed to make a folder in {}", folder.display()))?;
    let write = |name: &str, content: String| {
        let path = scratch.path().join(name);
        fs::write(&path, content).with_context(|| format!("failed to write {}", path.display()))?;
        Ok::<_, anyhow::Error>(path)
    };
    let soname = format!("libcudart.so.{major}");
    let names = SymbolList::read(&list);
    let unsupported = write("unsupported.c", names.unsupported())?;
    let versions = write("versions.map", names.versions(&soname))?;
    let linked = scratch.path().join(&soname);

    let mut compiler = workspace.c_tool("cc");
    compiler
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&linked)
        .arg(&unsupported);
    for (name, symbol) in &names.renamed {
        compiler.arg(format!("-Wl,--defsym={name}={symbol}"));
    }
    compiler
        .arg(format!(
            "-Wl,-soname,{soname},--version-script={}",
            versions.display()
        ))
        .arg("-Wl,-Bsymbolic,-z,now,--gc-sections,--whole-archive")
        .arg(made.join(ARCHIVE))
        .args([
            "-Wl,--no-whole-archive",
            "-lgcc_s",
            "-lpthread",
            "-ldl",
            "-lm",
            "-lc",
        ]);
    run(&mut compiler)?;
    let library = folder.join(&soname);
    fs::rename(&linked, &library)
        .with_context(|| format!("failed to write {}", library.display()))?;
    Ok(library)
}

/// A list of names, one a line. If the symbol has another name, it follows.
struct SymbolList<'a> {
    plain: Vec<&'a str>,
    renamed: Vec<(&'a str, &'a str)>,
}

impl<'a> SymbolList<'a> {
    fn read(list: &'a str) -> Self {
        let lines = list.lines().map(str::trim);
        let mut names = Self {
            plain: Vec::new(),
            renamed: Vec::new(),
        };
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match line.split_once(" = ") {
                Some(pair) => names.renamed.push(pair),
                None => names.plain.push(line),
            }
        }
        names
    }

    fn unsupported(&self) -> String {
        let mut code = "int apportion_runtime_not_supported(const char *name);\n".to_owned();
        for name in &self.plain {
            let _ = writeln!(
                code,
                "__attribute__((weak)) int {name}(void) {{ return apportion_runtime_not_supported(\"{name}\"); }}"
            );
        }
        code
    }

    fn versions(&self, soname: &str) -> String {
        let renamed = self.renamed.iter().map(|(name, _)| *name);
        let names: Vec<&str> = self.plain.iter().copied().chain(renamed).collect();
        format!("{soname} {{ global: {}; local: *; }};\n", names.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_symbol_is_exported_and_has_no_function_of_its_own() {
        let names =
            SymbolList::read("# a remark\n\ncudaMalloc\ncudaMemAdvise = cudaMemAdvise_for_place\n");
        assert!(names.unsupported().contains(" cudaMalloc(void)"));
        assert!(!names.unsupported().contains("cudaMemAdvise"));
        assert_eq!(
            names.versions("libcudart.so.13"),
            "libcudart.so.13 { global: cudaMalloc; cudaMemAdvise; local: *; };\n"
        );
    }
}
