//! `cargo xtask cluster`: a real Kubernetes on this machine, to explore and to test.
//!
//! `tests/cluster` builds and runs the cluster. This module has the commands, and decides which folder, which minor
//! version and which programs to use.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use apportion_cluster::binaries::{self, ClusterBinaries};
use apportion_cluster::requirements::missing;
use apportion_cluster::{
    ClusterFolder, ClusterSpec, ClusterState, LocalCluster, down, image, install, leftovers, up,
};
use clap::{Args, Subcommand};

use crate::kai_e2e;
use crate::stage;
use crate::steps::run;
use crate::workspace::Workspace;

mod suite_run;

use suite_run::SuiteRun;

/// The variable for another cluster folder than `cluster` in Cargo's target folder.
const FOLDER: &str = "APPORTION_CLUSTER_DIR";

/// The programs that allocate.
const VICTIMS: [&str; 2] = ["victim", "victim-linked"];

/// The commands for a cluster.
#[derive(Subcommand)]
pub(crate) enum ClusterCommand {
    /// Build the Kubernetes programs of the cluster (`up` does so if they are missing).
    Build {
        #[command(flatten)]
        shape: ClusterOptions,
        /// Also build the programs of other projects that suites run: operators, Kueue, vCluster and NVIDIA's parts of a
        /// node.
        #[arg(long)]
        others: bool,
        /// Leave out the programs of this folder of tests/kubernetes, such as vcluster; can be repeated.
        #[arg(long, value_name = "FOLDER", requires = "others")]
        except: Vec<String>,
    },
    /// Start the cluster: etcd, the control plane, containerd, a kubelet and simulated GPUs.
    Up(ClusterOptions),
    /// Stop the cluster and remove its processes, mounts, cgroups and files.
    Down,
    /// Show the state of the cluster and of its programs.
    Status,
    /// Build the programs of Apportion again and load their images into the cluster.
    Load,
    /// Install Apportion in the cluster with helm.
    Install {
        /// Install programs built with optimisation.
        #[arg(long)]
        release: bool,
        /// More arguments for helm, such as --set policy=observe.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Run kubectl on the cluster.
    Kubectl(PassthroughArguments),
    /// Run helm on the cluster.
    Helm(PassthroughArguments),
    /// Run crictl on the cluster's containerd.
    Crictl(PassthroughArguments),
    /// Run ctr on the cluster's containerd.
    Ctr(PassthroughArguments),
    /// Run the test suites that need a cluster, on the running one or on a new one.
    Test {
        #[command(flatten)]
        shape: ClusterOptions,
        /// Run only this suite, such as delivery; can be repeated.
        #[arg(long, value_name = "NAME")]
        suite: Vec<String>,
        /// Arguments for the test programs, such as a test name.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Run KAI Scheduler's own end-to-end suite on a cluster with Apportion in place of KAI.
    KaiE2e(kai_e2e::KaiE2eOptions),
}

/// Arguments that are passed on as they are.
#[derive(Args)]
pub(crate) struct PassthroughArguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// The shape of the cluster.
#[derive(Args)]
pub(crate) struct ClusterOptions {
    /// Nodes; the first has a kubelet, the others exist in the API only.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    nodes: u32,
    /// Simulated GPUs of the machine.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus: u32,
    /// Memory of each simulated GPU, in MiB or with a unit (46068, 46068Mi, 44Gi) [default: the simulated driver's].
    #[arg(long, value_name = "SIZE")]
    gpu_memory: Option<String>,
    /// Kubernetes minor version, such as 1.36 [default: the newest in tests/kubernetes].
    #[arg(long, value_name = "MINOR")]
    kubernetes: Option<String>,
    /// Folder of another containerd with its shim and ctr, such as a distribution's.
    #[arg(long, value_name = "FOLDER")]
    containerd: Option<PathBuf>,
    /// Run the programs of Apportion built with optimisation.
    #[arg(long)]
    release: bool,
    /// Whether stand-in nodes without a kubelet are added later.
    #[arg(skip)]
    stand_ins: bool,
}

impl ClusterOptions {
    /// One node, with room for stand-in nodes.
    fn for_stand_ins() -> Self {
        Self {
            nodes: 1,
            gpus: 1,
            gpu_memory: None,
            kubernetes: None,
            containerd: None,
            release: false,
            stand_ins: true,
        }
    }
}

pub(crate) fn perform(workspace: &Workspace, task: ClusterCommand) -> Result<ExitCode> {
    let folder = folder(workspace)?;
    match task {
        ClusterCommand::Build {
            shape,
            others,
            except,
        } => {
            let kubernetes = programs(workspace, &shape)?.kubernetes;
            println!("Kubernetes {kubernetes} and the tools are built");
            if others {
                binaries::others(&workspace.root.join("tests/kubernetes"), &except)?;
                println!("the programs of other projects are built");
            }
        }
        ClusterCommand::Up(shape) => start(workspace, &folder, &shape)?,
        ClusterCommand::Down => {
            if let Ok(second) = suite_run::second_folder(&folder)
                && second.path().exists()
            {
                end(&second)?;
            }
            end(&folder)?;
        }
        ClusterCommand::Status => return Ok(status(&folder)),
        ClusterCommand::Load => load(workspace, &running(&folder)?)?,
        ClusterCommand::Install { release, args } => {
            install(workspace, &running(&folder)?, release, &args)?;
        }
        ClusterCommand::Kubectl(rest) => {
            return become_it(running(&folder)?.kubectl_command(), &rest);
        }
        ClusterCommand::Helm(rest) => return become_it(running(&folder)?.helm_command(), &rest),
        ClusterCommand::Crictl(rest) => {
            return become_it(running(&folder)?.crictl_command(), &rest);
        }
        ClusterCommand::Ctr(rest) => return become_it(running(&folder)?.ctr_command(), &rest),
        ClusterCommand::Test { shape, suite, args } => {
            let run = SuiteRun {
                workspace,
                folder: &folder,
                shape: &shape,
                args: &args,
            };
            run.test(&suite)?;
        }
        ClusterCommand::KaiE2e(options) => return run_kais(workspace, &folder, &options),
    }
    Ok(ExitCode::SUCCESS)
}

fn folder(workspace: &Workspace) -> Result<ClusterFolder> {
    let named = env::var_os(FOLDER).map(PathBuf::from);
    ClusterFolder::new(&named.unwrap_or_else(|| workspace.target.join("cluster")))
}

fn start(workspace: &Workspace, folder: &ClusterFolder, shape: &ClusterOptions) -> Result<()> {
    if let Some(cluster) =
        LocalCluster::at(folder).filter(|cluster| cluster.state() == ClusterState::Up)
    {
        println!("{} is already running", described(&cluster));
        return Ok(());
    }
    let cluster = bring_up(workspace, folder, shape)?;
    println!("{} is running", described(&cluster));
    println!("export KUBECONFIG={}", folder.kubeconfig().display());
    Ok(())
}

fn bring_up(
    workspace: &Workspace,
    folder: &ClusterFolder,
    shape: &ClusterOptions,
) -> Result<LocalCluster> {
    let missing = missing();
    if !missing.is_empty() {
        bail!("a cluster cannot run here\n{}", missing.join("\n"));
    }
    // The longest step comes first. It is also the only one that can refuse the options.
    let programs = programs(workspace, shape)?;
    let wanted = ClusterSpec {
        silent_nodes: shape.nodes - 1,
        stand_ins: shape.stand_ins,
        gpus: shape.gpus,
        gpu_memory: shape.gpu_memory.clone(),
        staged: stage::build(workspace, shape.release)?,
        victims: victims(workspace)?,
    };
    up(folder, &wanted, &programs)
}

/// Runs KAI's suite on the running cluster or on a new one. A new one is stopped afterwards, unless it is to stay.
fn run_kais(
    workspace: &Workspace,
    folder: &ClusterFolder,
    options: &kai_e2e::KaiE2eOptions,
) -> Result<ExitCode> {
    if options.only_prints() {
        return kai_e2e::show(workspace, options);
    }
    let found = LocalCluster::at(folder).filter(|cluster| cluster.state() == ClusterState::Up);
    let ran_before = found.is_some();
    let mut cluster = match found {
        Some(cluster) => cluster,
        None => bring_up(workspace, folder, &ClusterOptions::for_stand_ins())?,
    };
    let result = kai_e2e::run(workspace, &mut cluster, options);
    if !ran_before && !options.keeps() {
        end(folder)?;
    }
    result
}

fn programs(workspace: &Workspace, shape: &ClusterOptions) -> Result<ClusterBinaries> {
    let modules = workspace.root.join("tests/kubernetes");
    let containerd = shape.containerd.as_deref().map(std::path::absolute);
    binaries::find(
        &modules,
        shape.kubernetes.as_deref(),
        containerd.transpose()?.as_deref(),
    )
}

/// Running containers keep their files; containers that start from now on get the new ones.
fn load(workspace: &Workspace, cluster: &LocalCluster) -> Result<()> {
    let staged = stage::build(workspace, false)?;
    for image in image::images(&staged, &victims(workspace)?)? {
        image::import(cluster, &image)?;
        println!("{}", image.name);
    }
    Ok(())
}

/// Installs the repository's chart with images of the current build.
fn install(
    workspace: &Workspace,
    cluster: &LocalCluster,
    release: bool,
    args: &[String],
) -> Result<()> {
    let staged = stage::build(workspace, release)?;
    let chart = workspace.root.join("deploy/chart/apportion");
    install::install(cluster, &staged, &chart, args)?;
    let node = cluster.node();
    println!("{}", cluster.kubectl(&["get", "gpunode", &node])?);
    println!(
        "Apportion runs in the namespace {}; `cargo xtask cluster helm uninstall {} -n {}` removes it",
        install::NAMESPACE,
        install::RELEASE,
        install::NAMESPACE
    );
    Ok(())
}

/// Builds the programs that allocate.
fn victims(workspace: &Workspace) -> Result<PathBuf> {
    run(workspace
        .cargo_build_for_tests()
        .args(VICTIMS.iter().flat_map(|name| ["--bin", name])))?;
    Ok(workspace.target.join("debug"))
}

fn end(folder: &ClusterFolder) -> Result<()> {
    down(folder)?;
    let left = leftovers(folder);
    if !left.is_empty() {
        bail!("failed to remove\n{}", left.join("\n"));
    }
    println!("no cluster in {}", folder.path().display());
    Ok(())
}

fn status(folder: &ClusterFolder) -> ExitCode {
    let Some(cluster) = LocalCluster::at(folder) else {
        println!("no cluster in {}", folder.path().display());
        return ExitCode::FAILURE;
    };
    println!("{}", described(&cluster));
    for (name, pid) in cluster.servers() {
        println!("{name:<24} {pid:>8}  {}", folder.log(name).display());
    }
    match cluster.state() {
        ClusterState::Up => ExitCode::SUCCESS,
        ClusterState::Half(dead) => {
            println!(
                "stopped: {}; hint: `cargo xtask cluster up` starts a new cluster",
                dead.join(", ")
            );
            ExitCode::FAILURE
        }
    }
}

/// One line that distinguishes this cluster from others.
fn described(cluster: &LocalCluster) -> String {
    format!(
        "cluster {} (Kubernetes {}, {} simulated GPUs, API server on 127.0.0.1:{}, in {})",
        cluster.folder().name(),
        cluster.kubernetes(),
        cluster.gpus(),
        cluster.apiserver_port(),
        cluster.folder().path().display(),
    )
}

fn running(folder: &ClusterFolder) -> Result<LocalCluster> {
    LocalCluster::at(folder).with_context(|| {
        format!(
            "no cluster in {}; hint: start one with `cargo xtask cluster up`",
            folder.path().display()
        )
    })
}

/// Replaces this process by the program, so that terminal, signals and status are the program's.
fn become_it(mut command: Command, rest: &PassthroughArguments) -> Result<ExitCode> {
    let error = command.args(&rest.args).exec();
    let program = Path::new(command.get_program()).display().to_string();
    Err(error).with_context(|| format!("failed to start {program}"))
}
