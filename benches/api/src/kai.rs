//! KAI's own programs, built from a checkout of KAI Scheduler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use apportion_cluster::operators::KaiCheckout;
use apportion_tests::control_plane::ControlPlane;

use crate::background::BackgroundProgram;

/// The programs that KAI's operator installs to place pods, and the options that keep their ports on loopback.
const PROGRAMS: [(&str, &[&str]); 5] = [
    (
        "scheduler",
        &["--listen-address=127.0.0.1:0", "--plugin-server-port=0"],
    ),
    ("binder", &[METRICS, PROBES]),
    ("podgrouper", &[METRICS, PROBES]),
    (
        "podgroupcontroller",
        &[METRICS, PROBES, "--enable-podgroup-webhook=false"],
    ),
    (
        "queuecontroller",
        &[
            "--metrics-listen-address=127.0.0.1:0",
            "--enable-webhook=false",
        ],
    ),
];
const METRICS: &str = "--metrics-bind-address=127.0.0.1:0";
const PROBES: &str = "--health-probe-bind-address=127.0.0.1:0";

const NAMESPACES: [&str; 2] = ["kai-scheduler", "kai-resource-reservation"];

/// KAI's programs read the namespace of their leases where a pod has it. So each gets a `/run` of its own.
const IN_A_NAMESPACE: &str = "mount -t tmpfs none /run \
    && mkdir -p /run/secrets/kubernetes.io/serviceaccount \
    && printf kai-scheduler > /run/secrets/kubernetes.io/serviceaccount/namespace \
    && exec setpriv --pdeathsig KILL \"$@\"";

/// Reads the option that names the checkout.
pub(crate) fn checkout(path: &str) -> Result<KaiCheckout> {
    KaiCheckout::at(Path::new(path))
}

/// KAI's programs, in a folder.
pub(crate) struct KaiPrograms {
    folder: PathBuf,
}

impl KaiPrograms {
    /// Builds the programs, and creates what they need and the cluster lacks: KAI's CRDs and namespaces.
    pub(crate) fn install(checkout: &KaiCheckout, plane: &ControlPlane) -> Result<Self> {
        let folder = checkout.build()?;
        let mut create = vec!["create".to_owned()];
        for file in fs::read_dir(checkout.crds())? {
            let path = file?.path();
            if path.extension().is_some_and(|end| end == "yaml") {
                create.push(format!("--filename={}", path.display()));
            }
        }
        let create: Vec<_> = create.iter().map(String::as_str).collect();
        create_missing(plane, &create)?;
        for namespace in NAMESPACES {
            create_missing(plane, &["create", "namespace", namespace])?;
        }
        Ok(Self { folder })
    }

    /// Starts all of them. Leader election is off by default; KAI's operator turns it on for replicas.
    pub(crate) fn start(
        &self,
        plane: &ControlPlane,
        leader_election: bool,
    ) -> Result<Vec<BackgroundProgram>> {
        let start = |(name, options): (&str, &[&str])| {
            let mut command = Command::new("unshare");
            command
                .args([
                    "--mount",
                    "--map-root-user",
                    "sh",
                    "-c",
                    IN_A_NAMESPACE,
                    "sh",
                ])
                .arg(self.folder.join(name))
                .args(options)
                .args(leader_election.then_some("--leader-elect"))
                .env("KUBECONFIG", plane.kubeconfig());
            BackgroundProgram::start(command, &plane.dir().join(format!("kai-{name}.log")))
        };
        PROGRAMS.into_iter().map(start).collect()
    }
}

/// Runs a command of kubectl that creates objects. Those that exist stay as they are.
fn create_missing(plane: &ControlPlane, command: &[&str]) -> Result<()> {
    let refusal = plane.refusal(command).unwrap_or_default();
    for line in refusal.lines().filter(|line| line.starts_with("Error")) {
        ensure!(
            line.contains("AlreadyExists"),
            "kubectl {command:?}: {line}"
        );
    }
    Ok(())
}
