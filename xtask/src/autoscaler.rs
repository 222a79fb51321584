//! Asks an unmodified Cluster Autoscaler how many nodes waiting shares need, starting from none, and whether it removes
//! the nodes again.
//!
//! The webhook's own rules complete the pods, and the nodes offer what an agent offers. The autoscaler's loop runs in a
//! checkout that the user names, with its own fake cloud. One test is overlaid on that checkout; nothing in it is
//! changed. Between two loops the pods are placed as the scheduler places them: on the fullest GPU with room.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use apportion_abi::names::{RESOURCE_SHARE_MIB, RESOURCE_SHARE_MICRO, RESOURCE_SLOT};
use apportion_admission::{
    AdmissionSettings, GpuDelivery, Pod, RequestBelowLimit, mutate, validate,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::steps;
use crate::workspace::Workspace;

/// Where the autoscaler is, and how much to ask.
#[derive(clap::Args)]
pub(crate) struct AutoscalerOptions {
    /// The folder cluster-autoscaler of a checkout of kubernetes/autoscaler of July 2026 or before (needs `go`).
    dir: PathBuf,
    /// Mixes of pods to try.
    #[arg(long, default_value_t = 40)]
    cases: u64,
}

/// The package whose tests run the whole loop.
const PACKAGE: &str = "test/integration/inmemory";
/// The test that is overlaid on it.
const LAID: &str = "xtask/autoscaler/shares_test.go";
/// The allocatable memory of a node's GPU, in MiB.
const GPU_MIB: u64 = 22_528;
/// How many nodes more than best fit, largest share first, may be asked for: percent over all mixes together. The
/// autoscaler takes the pods in their order, each to the first node with room.
const SPARE: u64 = 10;

/// The result of a mix.
#[derive(Debug, Deserialize)]
struct AutoscalerResult {
    first: u64,
    all: u64,
    after: u64,
    left: u64,
    #[serde(default)]
    error: String,
}

/// Asks the autoscaler. Returns whether every answer is right.
pub(crate) fn run(workspace: &Workspace, options: &AutoscalerOptions) -> Result<bool> {
    let folder = workspace.root.join(&workspace.target).join("autoscaler");
    fs::create_dir_all(&folder)?;
    let program = build(&options.dir, &workspace.root, &folder)?;
    let mixes: Vec<PendingPodMix> = (0..options.cases).map(PendingPodMix::of).collect();
    let answers = ask(&program, &folder, &mixes, true)?;
    let (mut wrong, mut all, mut needed) = (0, 0, 0);
    for (number, (mix, answer)) in mixes.iter().zip(&answers).enumerate() {
        let best = mix.best_fit();
        let is_fine = answer.error.is_empty() && answer.left == 0 && answer.after == 0;
        wrong += u64::from(!is_fine);
        all += answer.all;
        needed += best;
        let mark = if is_fine { "" } else { "  WRONG" };
        println!(
            "{number:3} {} pods by {}: {} nodes, {} after one loop, best fit {best}, {} in the end {}{mark}",
            mix.shares.len(),
            mix.annotation,
            answer.all,
            answer.first,
            answer.after,
            answer.error
        );
    }
    // Slots alone do not show when a GPU is full: some pods then wait for ever.
    let blind = ask(&program, &folder, &mixes, false)?;
    let left = blind.iter().filter(|answer| answer.left > 0).count();
    println!(
        "autoscaler: {} mixes, {wrong} wrong, {all} nodes where best fit needs {needed}; with slots alone pods of {left} \
         mixes have no place",
        mixes.len()
    );
    let is_tight = all * 100 <= needed * (100 + SPARE);
    Ok(wrong == 0 && is_tight && left > 0)
}

fn build(dir: &Path, ours: &Path, folder: &Path) -> Result<PathBuf> {
    let failed = || format!("failed to find Cluster Autoscaler in {}", dir.display());
    let dir = dir.canonicalize().with_context(failed)?;
    ensure!(
        dir.join(PACKAGE).is_dir(),
        "{}: it has no {PACKAGE}",
        failed()
    );
    let there = dir.join(PACKAGE).join("apportion_shares_test.go");
    let here = ours.join(LAID).display().to_string();
    let overlay = folder.join("overlay.json");
    let replaced = json!({"Replace": {(there.display().to_string()): here}});
    fs::write(&overlay, replaced.to_string())?;
    let program = folder.join("autoscaler.test");
    let mut go = Command::new("go");
    go.args(["test", "-c", "-overlay"]).arg(&overlay);
    go.arg("-o").arg(&program).arg(format!("./{PACKAGE}"));
    steps::run(go.current_dir(dir))?;
    Ok(program)
}

fn ask(
    program: &Path,
    folder: &Path,
    mixes: &[PendingPodMix],
    is_counted: bool,
) -> Result<Vec<AutoscalerResult>> {
    let (asked, answered) = (folder.join("questions.json"), folder.join("answers.json"));
    let questions = mixes.iter().map(|mix| mix.question(is_counted));
    let questions: Result<Vec<Value>> = questions.collect();
    fs::write(&asked, serde_json::to_string(&questions?)?)?;
    let output = Command::new(program)
        .args(["-test.run", "^TestApportionAsks$"])
        .env("APPORTION_QUESTIONS", &asked)
        .env("APPORTION_ANSWERS", &answered)
        .current_dir(folder)
        .output()?;
    let log = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "the autoscaler failed: {log}");
    let answers: Vec<AutoscalerResult> = serde_json::from_str(&fs::read_to_string(&answered)?)?;
    ensure!(answers.len() == mixes.len(), "an answer is missing");
    Ok(answers)
}

/// Waiting pods that all use the same annotation.
struct PendingPodMix {
    annotation: &'static str,
    /// What each pod takes of a GPU, in MiB or thousandths.
    shares: Vec<u64>,
    /// The capacity of a GPU, in the same unit.
    capacity: u64,
}

impl PendingPodMix {
    /// A random mix: some kinds of pods, and some pods of each.
    fn of(seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut any = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (annotation, capacity) = match seed % 2 {
            0 => ("gpu-memory", GPU_MIB),
            _ => ("gpu-fraction", 1000),
        };
        let mut shares = Vec::new();
        for _ in 0..=any(6) {
            let share = (capacity / 50 + any(capacity * 9 / 10)) / 2 * 2;
            let count = usize::try_from(1 + any(8)).unwrap_or(1);
            shares.extend(vec![share; count]);
        }
        Self {
            annotation,
            shares,
            capacity,
        }
    }

    /// The pods as the webhook completes them, and the capacity of a node.
    fn question(&self, is_counted: bool) -> Result<Value> {
        let pods = self.shares.iter().enumerate().map(|(number, share)| {
            let value = match self.annotation {
                "gpu-memory" => share.to_string(),
                _ => format!("0.{share:03}"),
            };
            let pod = json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": format!("pod-{number}"), "namespace": "default",
                    "annotations": {(self.annotation): value},
                    "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "controller": true,
                        "name": format!("job-{share}"), "uid": format!("job-{share}")}]},
                "spec": {"schedulerName": "apportion-scheduler", "containers": [{"name": "main",
                    "resources": {"requests": {"cpu": "10m"}}}]}});
            completed(&pod, is_counted)
        });
        let pods: Result<Vec<Value>> = pods.collect();
        let offer = json!({(RESOURCE_SLOT): "128", (RESOURCE_SHARE_MIB): GPU_MIB.to_string(),
            (RESOURCE_SHARE_MICRO): "1000000"});
        Ok(json!({"pods": pods?, "offer": offer, "takes": self.shares, "capacity": self.capacity}))
    }

    /// How many GPUs best fit needs: largest share first, each on the fullest GPU with room.
    fn best_fit(&self) -> u64 {
        let mut shares = self.shares.clone();
        shares.sort_unstable_by(|left, right| right.cmp(left));
        let mut gpus: Vec<u64> = Vec::new();
        for share in shares {
            let fits = gpus.iter_mut().filter(|free| **free >= share);
            match fits.min() {
                Some(free) => *free -= share,
                None => gpus.push(self.capacity - share),
            }
        }
        gpus.len() as u64
    }
}

fn completed(pod: &Value, is_counted: bool) -> Result<Value> {
    let settings = AdmissionSettings {
        sharing: true,
        delivery: GpuDelivery::Slot(RESOURCE_SLOT.to_owned()),
        block_visible_devices: false,
        runtime_class: None,
        strict: None,
        count_shares: is_counted,
        request_below_limit: RequestBelowLimit::default(),
    };
    let mut pod = Pod::read(pod)?;
    mutate(&mut pod, &settings, 0)?;
    validate(&pod, &settings)?;
    Ok(json!(pod))
}
