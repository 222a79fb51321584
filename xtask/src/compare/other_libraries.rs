//! Builds the other libraries from checkouts that the user names: with their own build files and options, in copies
//! below the target folder.
//!
//! Left out is what needs `nvcc` or a GPU and is not part of the library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::memory_limiter::{MemoryLimiter, VGPU_MANAGER_LIBRARY};
use crate::clients;
use crate::steps::{run, succeeds};
use crate::workspace::Workspace;

/// The folders of the CUDA 12 headers: each unpacked package has its own.
const HEADERS: [&str; 2] = ["nvidia/cuda_runtime/include", "nvidia/nvml_dev/include"];
/// Ways to get a private `/etc`; the one without privileges comes first.
const UNSHARE: [&[&str]; 2] = [
    &["unshare", "--user", "--map-root-user", "--mount"],
    &["unshare", "--mount"],
];

/// Appended to the version of a checkout with uncommitted changes.
const CHANGED: &str = ", changed";

/// Builds HAMi-core as its `build.sh` does: without optimisation, as it is shipped. Its tests need nvcc.
pub(crate) fn hami_core(
    workspace: &Workspace,
    staged: &Path,
    checkout: &Path,
    folder: &Path,
) -> Result<MemoryLimiter> {
    let library = folder.join("hami-core/build/libvgpu.so");
    let version = version(checkout);
    println!("HAMi-core {version}");
    if is_built(&library, &version) {
        return Ok(MemoryLimiter::HamiCore { library });
    }
    let copy = copied(checkout, &folder.join("hami-core"))?;
    fs::write(copy.join("test/CMakeLists.txt"), "").context("this is no checkout of HAMi-core")?;
    let options = [
        "-DDLSYM_HOOK_ENABLE=1",
        "-DMULTIPROCESS_LIMIT_ENABLE=1",
        "-DHOOK_MEMINFO_ENABLE=1",
        "-DHOOK_NVML_ENABLE=1",
        "-DCMAKE_BUILD_TYPE=Debug",
        "-DTEST_DEVICE_ID=0",
    ];
    cmake(workspace, staged, &copy, &options, "vgpu")?;
    record_build(&library, &version)?;
    Ok(MemoryLimiter::HamiCore { library })
}

/// Builds vgpu-manager's library as its `build.sh` does. It finds itself in `/etc` and writes there, so its programs
/// get a private `/etc`.
pub(crate) fn vgpu_manager(
    workspace: &Workspace,
    staged: &Path,
    checkout: &Path,
    folder: &Path,
) -> Result<MemoryLimiter> {
    let unshare = UNSHARE
        .iter()
        .find(|words| succeeds(Command::new(words[0]).args(&words[1..]).arg("true")))
        .context("vgpu-manager wants files in /etc, and this machine lets nobody mount them for one program")?;
    let built = folder.join("vgpu-manager/build/libvgpu-control.so");
    let version = version(checkout);
    println!("vgpu-manager {version}");
    if !is_built(&built, &version) {
        let copy = copied(&checkout.join("library"), &folder.join("vgpu-manager"))?;
        let options = ["-DCMAKE_BUILD_TYPE=Release"];
        cmake(workspace, staged, &copy, &options, "vgpu-control")?;
        record_build(&built, &version)?;
    }
    let etc = folder.join("vgpu-manager-etc");
    if !etc.exists() {
        // Files that cannot be read are not needed by this user's programs.
        let _ = succeeds(Command::new("cp").args(["-a", "/etc"]).arg(&etc));
    }
    let library = etc.join(VGPU_MANAGER_LIBRARY);
    let place = library.parent().context("the library has a folder")?;
    fs::create_dir_all(place).with_context(|| format!("failed to make {}", place.display()))?;
    fs::create_dir_all(etc.join("vgpu-manager/config"))?;
    fs::copy(&built, &library).context("vgpu-manager's build made no library")?;
    Ok(MemoryLimiter::VgpuManager {
        etc,
        unshare: unshare.to_vec(),
    })
}

/// The commit of a checkout, marked if there are uncommitted changes.
fn version(checkout: &Path) -> String {
    let git = |words: &[&str]| {
        let asked = Command::new("git")
            .arg("-C")
            .arg(checkout)
            .args(words)
            .output();
        asked.map_or_else(
            |_| String::new(),
            |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        )
    };
    let changed = if git(&["status", "--porcelain"]).is_empty() {
        ""
    } else {
        CHANGED
    };
    git(&["log", "-1", "--format=%h (%cs)"]) + changed
}

/// Whether an earlier run built the library from the same commit.
fn is_built(library: &Path, version: &str) -> bool {
    let is_known = !version.is_empty() && !version.ends_with(CHANGED);
    is_known && fs::read_to_string(build_record(library)).is_ok_and(|built| built == version)
}

/// Records the commit that the library was built from.
fn record_build(library: &Path, version: &str) -> Result<()> {
    fs::write(build_record(library), version).context("the build made no library")
}

fn build_record(library: &Path) -> PathBuf {
    library.with_extension("commit")
}

/// Copies a folder, and replaces an earlier copy.
fn copied(from: &Path, to: &Path) -> Result<PathBuf> {
    if !from.is_dir() {
        bail!("{} is no folder", from.display());
    }
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("failed to remove {}", to.display()))?;
    }
    run(Command::new("cp").arg("-a").arg(from).arg(to))?;
    Ok(to.to_owned())
}

/// Builds one target of a copied checkout.
fn cmake(
    workspace: &Workspace,
    staged: &Path,
    copy: &Path,
    options: &[&str],
    target: &str,
) -> Result<()> {
    if !succeeds(Command::new("cmake").arg("--version")) {
        bail!("the others' libraries need cmake; hint: apt-get install cmake make");
    }
    let home = toolkit(workspace, staged)?;
    let build = copy.join("build");
    let _ = fs::remove_dir_all(&build);
    // CMake 4 refuses files from before CMake 3.5 without the first option.
    let mut configure = Command::new("cmake");
    configure
        .args(["-DCMAKE_POLICY_VERSION_MINIMUM=3.5", "-Wno-dev", "-S"])
        .arg(copy)
        .arg("-B")
        .arg(&build)
        .args(options);
    let mut make = Command::new("cmake");
    make.arg("--build").arg(&build).args(["--target", target]);
    for command in [&mut configure, &mut make] {
        let made = command
            .env("CUDA_HOME", &home)
            .env("LIBRARY_PATH", home.join("lib64"))
            .output()
            .context("failed to start cmake")?;
        if !made.status.success() {
            let output = [made.stdout, made.stderr].concat();
            bail!(
                "cmake failed in {}: {}",
                copy.display(),
                String::from_utf8_lossy(&output)
            );
        }
    }
    Ok(())
}

/// A folder laid out like the CUDA toolkit: NVIDIA's headers from PyPI, and the simulated driver to link with.
fn toolkit(workspace: &Workspace, staged: &Path) -> Result<PathBuf> {
    let python = clients::python(workspace).context("NVIDIA's headers come from PyPI")?;
    let headers = clients::headers(workspace, &python)?;
    let home = workspace.target.join("compare/cuda");
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(home.join("lib64"))?;
    for package in HEADERS {
        run(Command::new("cp")
            .arg("-a")
            .arg(headers.join(package))
            .arg(&home))?;
    }
    for (name, file) in [
        ("libcuda.so", "libcuda.so.1"),
        ("libnvidia-ml.so", "libnvidia-ml.so.1"),
    ] {
        let driver = staged.join("lib/apportion/sim").join(file);
        std::os::unix::fs::symlink(driver, home.join("lib64").join(name))?;
    }
    Ok(home)
}
