//! The servers and tools: finds them, or builds them.
//!
//! No registry with Kubernetes images is needed. The Go modules are public, and a small `go.mod` below
//! `tests/kubernetes` pins each minor and all modules in it. Builds are kept outside the checkout, by version, so each
//! is built once per machine. Programs in `KUBEBUILDER_ASSETS` are used instead, unless a minor is requested by name.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

mod nvidia;

pub use nvidia::of_nvidia;

/// Names a folder with Kubernetes programs.
const ASSETS: &str = "KUBEBUILDER_ASSETS";
/// The `go.mod` of all programs that belong to no Kubernetes minor.
const TOOLS: &str = "tools";

/// A program and the Go package that it is built from.
struct GoProgram {
    name: &'static str,
    package: &'static str,
}

/// Built from the `go.mod` of the minor.
const KUBERNETES: &[GoProgram] = &[
    GoProgram {
        name: "kube-apiserver",
        package: "k8s.io/kubernetes/cmd/kube-apiserver",
    },
    GoProgram {
        name: "kube-controller-manager",
        package: "k8s.io/kubernetes/cmd/kube-controller-manager",
    },
    GoProgram {
        name: "kube-scheduler",
        package: "k8s.io/kubernetes/cmd/kube-scheduler",
    },
    GoProgram {
        name: "kubelet",
        package: "k8s.io/kubernetes/cmd/kubelet",
    },
    GoProgram {
        name: "kubectl",
        package: "k8s.io/kubernetes/cmd/kubectl",
    },
];

/// Built from the `go.mod` of the tools.
const OTHERS: &[GoProgram] = &[
    GoProgram {
        name: "etcd",
        package: "go.etcd.io/etcd/server/v3",
    },
    GoProgram {
        name: "containerd",
        package: "github.com/containerd/containerd/v2/cmd/containerd",
    },
    GoProgram {
        name: "containerd-shim-runc-v2",
        package: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    },
    GoProgram {
        name: "ctr",
        package: "github.com/containerd/containerd/v2/cmd/ctr",
    },
    GoProgram {
        name: "crictl",
        package: "sigs.k8s.io/cri-tools/cmd/crictl",
    },
    GoProgram {
        name: "helm",
        package: "helm.sh/helm/v3/cmd/helm",
    },
];

/// Operators of other projects, and vCluster, each with a `go.mod` in a folder of its own.
const OPERATORS: &[(&str, GoProgram)] = &[
    (
        "jobset",
        GoProgram {
            name: "jobset-controller",
            package: "sigs.k8s.io/jobset",
        },
    ),
    (
        "kueue",
        GoProgram {
            name: "kueue-controller",
            package: "sigs.k8s.io/kueue/cmd/kueue",
        },
    ),
    (
        "training-operator",
        GoProgram {
            name: "training-operator",
            package: "github.com/kubeflow/training-operator/cmd/training-operator.v1",
        },
    ),
    (
        "lws",
        GoProgram {
            name: "lws-controller",
            package: "sigs.k8s.io/lws/cmd",
        },
    ),
    (
        "kuberay",
        GoProgram {
            name: "kuberay-operator",
            package: "github.com/ray-project/kuberay/ray-operator",
        },
    ),
    (
        "vcluster",
        GoProgram {
            name: "vcluster",
            package: "github.com/loft-sh/vcluster/cmd/vcluster",
        },
    ),
];

/// Every program that a cluster needs, by name.
#[derive(Clone, Debug)]
pub struct ClusterBinaries {
    /// The version of Kubernetes, such as `v1.36.3`.
    pub kubernetes: String,
    paths: BTreeMap<&'static str, PathBuf>,
}

impl ClusterBinaries {
    /// The path of `name`.
    ///
    /// # Panics
    /// If no row of this file names it.
    #[must_use]
    pub fn path(&self, name: &str) -> &Path {
        self.paths.get(name).expect("every program has a row")
    }

    /// A command that runs `name`.
    #[must_use]
    pub fn command(&self, name: &str) -> Command {
        Command::new(self.path(name))
    }
}

/// Finds all programs and builds the missing ones. `modules` has one folder for each minor; `minor` selects one (else
/// the newest). Programs in the folder `containerd` are taken from there.
///
/// # Errors
/// If the minor is unknown, or a program cannot be built.
pub fn find(
    modules: &Path,
    minor: Option<&str>,
    containerd: Option<&Path>,
) -> Result<ClusterBinaries> {
    if let Some(folder) = containerd {
        ensure!(
            folder.join("containerd").exists(),
            "there is no containerd in {}",
            folder.display()
        );
    }
    let chosen = match minor {
        Some(minor) => minor.to_owned(),
        None => minors(modules)?.pop().context("no minor to build")?,
    };
    let known = minors(modules)?;
    ensure!(
        known.contains(&chosen),
        "--kubernetes {chosen} is not one of {}",
        known.join(", ")
    );
    let version = version(&modules.join(&chosen))?;
    let assets = env::var_os(ASSETS).filter(|_| minor.is_none());
    let kubernetes = GoModule {
        module: modules.join(&chosen),
        made: cache()?.join("kubernetes").join(&version),
        offers: assets.map(PathBuf::from).into_iter().collect(),
        takes_c: false,
        flags: stamp(&version),
    };
    let offers = containerd.map(PathBuf::from).into_iter();
    let others = tools(modules, offers.chain(kubernetes.offers.clone()).collect())?;
    let mut paths = kubernetes.find(KUBERNETES)?;
    paths.extend(others.find(OTHERS)?);
    Ok(ClusterBinaries {
        kubernetes: version,
        paths,
    })
}

/// Finds one of the programs that belong to no Kubernetes minor, or builds it.
///
/// # Errors
/// If it cannot be built.
///
/// # Panics
/// If no row of this file names it.
pub fn tool(modules: &Path, name: &str) -> Result<PathBuf> {
    let assets = env::var_os(ASSETS).map(PathBuf::from);
    let mut rows = OTHERS.chunks(1);
    let row = rows.find(|row| row.iter().any(|program| program.name == name));
    let found = tools(modules, assets.into_iter().collect())?
        .find(row.expect("every program has a row"))?;
    let path = found.into_values().next();
    Ok(path.expect("one program was asked for"))
}

/// Finds the operator whose folder is `of` below `modules`, or builds it.
///
/// # Errors
/// If it cannot be built.
///
/// # Panics
/// If no row of this file names it.
pub fn operator(modules: &Path, of: &str) -> Result<PathBuf> {
    let mut rows = OPERATORS.iter();
    let row = rows.find(|(folder, _)| *folder == of);
    let (_, program) = row.expect("every operator has a row");
    let found = pinned(modules, of, Vec::new())?.find(std::slice::from_ref(program))?;
    let path = found.into_values().next();
    Ok(path.expect("one program was asked for"))
}

/// Builds the missing programs of other projects, except those of some folders: operators, vCluster and NVIDIA's parts
/// of a node.
///
/// # Errors
/// If one cannot be built, or an exception is no folder of one.
pub fn others(modules: &Path, except: &[String]) -> Result<()> {
    let known = OPERATORS.iter().map(|(folder, _)| *folder);
    let known: Vec<&str> = known.chain(nvidia::folders()).collect();
    for folder in except {
        ensure!(
            known.contains(&folder.as_str()),
            "--except {folder} is not one of {}",
            known.join(", ")
        );
    }
    let is_wanted = |folder: &str| !except.iter().any(|one| one == folder);
    for (folder, _) in OPERATORS {
        if is_wanted(folder) {
            operator(modules, folder)?;
        }
    }
    for folder in nvidia::folders().filter(|folder| is_wanted(folder)) {
        of_nvidia(modules, folder)?;
    }
    Ok(())
}

/// Where the programs come from that belong to no Kubernetes minor.
fn tools(modules: &Path, offers: Vec<PathBuf>) -> Result<GoModule> {
    pinned(modules, TOOLS, offers)
}

/// Where the programs of a folder come from if its modules have no common version.
fn pinned(modules: &Path, folder: &str, offers: Vec<PathBuf>) -> Result<GoModule> {
    let module = modules.join(folder);
    Ok(GoModule {
        made: cache()?.join(folder).join(fingerprint(&module)?),
        offers,
        module,
        takes_c: false,
        flags: "-s -w".into(),
    })
}

/// The minors that can be built, oldest first.
///
/// # Errors
/// If the folder cannot be read.
pub fn minors(modules: &Path) -> Result<Vec<String>> {
    let entries =
        fs::read_dir(modules).with_context(|| format!("failed to read {}", modules.display()))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut minors: Vec<(u32, String)> = names
        .filter_map(|name| {
            let name = name.into_string().ok()?;
            Some((name.strip_prefix("1.")?.parse().ok()?, name))
        })
        .collect();
    minors.sort();
    Ok(minors.into_iter().map(|(_, name)| name).collect())
}

/// The source of the programs of one `go.mod`.
struct GoModule {
    module: PathBuf,
    made: PathBuf,
    /// Folders that may already have the programs.
    offers: Vec<PathBuf>,
    takes_c: bool,
    flags: String,
}

impl GoModule {
    /// The paths of the programs. Builds the missing ones.
    fn find(&self, programs: &[GoProgram]) -> Result<BTreeMap<&'static str, PathBuf>> {
        let mut paths = BTreeMap::new();
        let mut missing = Vec::new();
        for program in programs {
            let folders = self.offers.iter().chain([&self.made]);
            let mut there = folders.map(|folder| folder.join(program.name));
            match there.find(|path| path.exists()) {
                Some(path) => drop(paths.insert(program.name, path)),
                None => missing.push(program),
            }
        }
        if !missing.is_empty() {
            self.build(&missing)?;
        }
        for program in missing {
            paths.insert(program.name, self.made.join(program.name));
        }
        Ok(paths)
    }

    /// Builds all programs with one call of `go`, so that shared packages are compiled once and linking is parallel.
    /// They are built in a folder of this process and then moved, so that an interrupted build leaves no partial
    /// program.
    fn build(&self, programs: &[&GoProgram]) -> Result<()> {
        let names: Vec<_> = programs.iter().map(|program| program.name).collect();
        eprintln!("building {} (once, some minutes)", names.join(", "));
        let folder = self.made.join(format!("new-{}", std::process::id()));
        fs::create_dir_all(&folder)
            .with_context(|| format!("failed to make {}", folder.display()))?;
        let mut go = Command::new("go");
        go.current_dir(&self.module)
            .env("CGO_CFLAGS", nvidia::QUIET)
            .env("CGO_ENABLED", if self.takes_c { "1" } else { "0" })
            .args(["build", "-mod=readonly", "-trimpath", "-buildvcs=false"])
            .args(["-ldflags", &self.flags, "-o"])
            .arg(&folder)
            .args(programs.iter().map(|program| program.package));
        let status = go.status().context(
            "failed to start go, which builds Kubernetes; hint: install Go (https://go.dev/dl), or name a \
             folder with the programs in KUBEBUILDER_ASSETS",
        )?;
        if !status.success() {
            bail!("go build of {} ended with {status}", names.join(", "));
        }
        for program in programs {
            fs::rename(folder.join(program.made()), self.made.join(program.name))
                .with_context(|| format!("failed to place {}", program.name))?;
        }
        fs::remove_dir(&folder).with_context(|| format!("failed to remove {}", folder.display()))
    }
}

impl GoProgram {
    /// Go's name for the program: the last element of its package path that is not a major version.
    fn made(&self) -> &'static str {
        let mut elements = self.package.rsplit('/');
        let last = elements.next().unwrap_or_default();
        let digits = last.strip_prefix('v').unwrap_or_default();
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            elements.next().unwrap_or_default()
        } else {
            last
        }
    }
}

/// What the linker writes into the programs: their version. Strips symbols.
fn stamp(version: &str) -> String {
    let minor = version.split('.').nth(1).unwrap_or_default();
    let mut flags = "-s -w".to_owned();
    for package in [
        "k8s.io/component-base/version",
        "k8s.io/client-go/pkg/version",
    ] {
        for (name, value) in [
            ("gitVersion", version),
            ("gitMajor", "1"),
            ("gitMinor", minor),
            ("gitTreeState", "clean"),
        ] {
            flags += &format!(" -X {package}.{name}={value}");
        }
    }
    flags
}

/// The version that a minor's `go.mod` pins.
fn version(module: &Path) -> Result<String> {
    let path = module.join("go.mod");
    let text =
        fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let line = text.lines().map(str::trim_start);
    let mut pinned = line.filter_map(|line| {
        let line = line.strip_prefix("require ").unwrap_or(line);
        line.strip_prefix("k8s.io/kubernetes ")
    });
    let version = pinned.next().and_then(|rest| rest.split(' ').next());
    Ok(version
        .with_context(|| format!("no version of k8s.io/kubernetes in {}", path.display()))?
        .to_owned())
}

/// The tools have no common version, so the checksums of all their modules replace it.
fn fingerprint(module: &Path) -> Result<String> {
    let path = module.join("go.sum");
    let sums = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let digest = Sha256::digest(sums);
    Ok(digest[..6]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

/// The folder of all builds.
pub(crate) fn cache() -> Result<PathBuf> {
    let named = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = named
        .or_else(home)
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(cache.join("apportion"))
}
