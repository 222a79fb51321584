//! Checks the chart. It renders for every preset and refuses wrong values. The plain manifests are what it renders.
//! Prometheus accepts its rules, and their tests pass.
//!
//! `helm` and `promtool` are other people's programs: `HELM` and `PROMTOOL` name them, or they are in the `PATH`. A
//! missing Helm is built like the cluster's other tools.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::steps::{run, succeeds, typed};
use crate::workspace::Workspace;

const CHART: &str = "deploy/chart/apportion";
const MANIFESTS: &str = "deploy/manifests";
/// The Kubernetes version to render the manifests for; nothing in them depends on it.
const KUBERNETES: &str = "1.36.0";
/// Values that must be refused, one at a time.
const WRONG: &[&str] = &[
    "image.digest=1.2.3",
    "image.digest=sha256:12",
    "scheduler.image.digest=sha512:0000000000000000000000000000000000000000000000000000000000000000",
    "policy=maim",
    "policyOverrides.team=maim",
    "policyOverrides.Team=kill",
    "simulatedGpus=-1",
    "kubeletRoot=relative",
    "metrics.port=0",
    "tcp.port=0",
    "dra.enabled=maybe",
    "cardMemory.GB10=0",
    "schedulerNames={default-scheduler}",
    "schedulerNames={}",
    "scheduler.replicas=0",
    "scheduler.leaseDuration=1",
    "scheduler.leaderElection=maybe",
    // The default is two replicas.
    "scheduler.leaderElection=false",
    "scheduler.leaderElection=false,scheduler.replicas=1,scheduler.kaiNames=true",
    "scheduler.queueDepth.guess=1",
    "scheduler.usageParams.windowSize=soon",
    "scheduler.usageParams.windowType=tumbling",
    "scheduler.kValue=-1",
    "scheduler.podGroups=some",
    "scheduler.kaiNames=binder",
    "webhook.url=http://example.org",
    "webhook.port=70000",
    "webhook.requestBelowLimit=grow",
    "networkPolicy.on=true",
    "nosuch=1",
];
/// Everything that is off by default.
const OPTIONAL: &str = "metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true,\
                        metrics.dashboards.enabled=true,openshift.enabled=true,hostNetwork=true,\
                        tcp.enabled=true,dra.enabled=true,dra.extendedResource=true,cardMemory.GB10=98304,policyOverrides.team=kill,\
                         webhook.clientCaConfigMap=api-server,webhook.requestBelowLimit=charge-limit,\
                         webhook.countShares=true,webhook.hamiResources=true,\
                        webhook.url=https://admission.example.org:9443,webhook.hostNetwork=true,\
                        scheduler.queueDepth.reclaim=10,scheduler.usageParams.windowSize=1w,\
                        scheduler.usageParams.halfLifePeriod=1d,scheduler.kValue=0.5,\
                        scheduler.kaiNames=true,scheduler.kaiSettings=true,\
                        scheduler.podGroups=on";
/// Manifests that are not presets: their names and their values.
const MORE: &[(&str, &[&str])] = &[
    ("default", &[]),
    (
        "in-place-of-kai",
        &[
            "--set",
            "schedulerNames={apportion-scheduler,kai-scheduler}",
        ],
    ),
    (
        "agent-only",
        &["--set", "scheduler.enabled=false,webhook.enabled=false"],
    ),
];
/// The queues are created once, at installation. This is the only manifest with a part of the chart.
const QUEUES: &str = "queues";
/// The namespace of the plain manifests. It is privileged: the agent sees the host's processes and folders.
const NAMESPACE: &str = "apportion-system";

/// Checks the chart. Writes the plain manifests again if `is_update`.
pub(crate) fn check(workspace: &Workspace, is_update: bool) -> Result<()> {
    let chart = workspace.root.join(CHART);
    let program = helm(workspace)?;
    let helm = || Command::new(&program);
    let presets = presets(&chart)?;
    for (name, values) in &presets {
        run(helm()
            .args(["lint", "--strict", "--quiet"])
            .arg(&chart)
            .args(values))?;
        let fresh = render(helm().args(template(&chart)).arg("--no-hooks").args(values))?;
        let fresh = format!("{}{fresh}", namespace());
        compare(&manifest(workspace, name), &fresh, is_update)?;
    }
    let queues = ["--show-only", "templates/queues.yaml"];
    let queues = render(helm().args(template(&chart)).args(queues))?;
    compare(&manifest(workspace, QUEUES), &queues, is_update)?;
    render(helm().args(template(&chart)).args(["--set", OPTIONAL]))?;
    render(
        helm()
            .args(template(&chart))
            .args(["--set", "networkPolicy.enabled=false"]),
    )?;
    // As `helm upgrade --reuse-values` from a release that did not have the value.
    let kept = ["--set", "scheduler.leaderElection=null"];
    if render(helm().args(template(&chart)).args(kept))?.contains("--leader-elect=false") {
        bail!("without scheduler.leaderElection there is no leader election");
    }
    for wrong in WRONG {
        if succeeds(helm().args(template(&chart)).args(["--set", wrong])) {
            bail!("the chart takes {wrong}");
        }
    }
    check_rules(&chart.join("rules"))?;
    check_dashboards(&chart.join("dashboards"), &workspace.target)?;
    println!(
        "chart: {} manifests, {} wrong values refused",
        presets.len(),
        WRONG.len()
    );
    Ok(())
}

/// Packages the chart into `folder`. With a file of images, the default values name those images by digest.
pub(crate) fn package(workspace: &Workspace, folder: &Path, images: Option<&Path>) -> Result<()> {
    let chart = workspace.root.join(CHART);
    let program = helm(workspace)?;
    let mut helm = Command::new(&program);
    helm.arg("package").arg("--destination").arg(folder);
    let Some(images) = images else {
        return run(helm.arg(chart));
    };
    let reading = || format!("failed to read {}", images.display());
    let text = fs::read_to_string(images).with_context(reading)?;
    let images: Value = serde_json::from_str(&text).with_context(reading)?;
    let copy = workspace.target.join("chart");
    let _ = fs::remove_dir_all(&copy);
    fs::create_dir_all(&copy)?;
    run(Command::new("cp").arg("-R").arg(&chart).arg(&copy))?;
    let copy = copy.join("apportion");
    let values = copy.join("values.yaml");
    fs::write(&values, pinned(&fs::read_to_string(&values)?, &images)?)?;
    let rendered = render(Command::new(&program).args(template(&copy)))?;
    for image in [&images["image"], &images["scheduler"]["image"]] {
        let named = format!("image: {}\n", reference(image)?);
        if !rendered.contains(&named) {
            bail!("the packed chart has no {named}");
        }
    }
    run(helm.arg(copy))
}

/// An image reference, as in a manifest.
fn reference(image: &Value) -> Result<String> {
    let text = |name: &str| {
        let text = image[name].as_str();
        text.with_context(|| format!("an image has no {name}"))
    };
    Ok(format!("{}@{}", text("repository")?, text("digest")?))
}

/// The chart's values with these images; comments are kept.
fn pinned(values: &str, images: &Value) -> Result<String> {
    let mut left = vec![&images["scheduler"]["image"], &images["image"]];
    let (mut pinned, mut image) = (String::new(), None);
    for line in values.lines() {
        let (name, _) = line.split_once(": ").unwrap_or((line, ""));
        if name.trim() == "repository" {
            image = Some(left.pop().context("the values name more images")?);
        }
        let known = image.and_then(|image| image[name.trim()].as_str());
        match known {
            Some(known) => pinned.push_str(&format!("{name}: {known}\n")),
            None => pinned.push_str(&format!("{line}\n")),
        }
        if name.trim() == "digest" {
            image = None;
        }
    }
    if !left.is_empty() {
        bail!("the values name fewer images");
    }
    Ok(pinned)
}

fn check_rules(rules: &Path) -> Result<()> {
    let promtool = || {
        let mut promtool = Command::new(named("PROMTOOL", "promtool"));
        promtool.current_dir(rules);
        promtool
    };
    run(promtool().args(["check", "rules", "apportion.yaml", "scheduler.yaml"]))?;
    let tests = ["apportion.test.yaml", "scheduler.test.yaml"];
    run(promtool().args(["test", "rules"]).args(tests))
}

/// Checks that Prometheus parses every query of the dashboards. promtool reads them as rules.
fn check_dashboards(dashboards: &Path, target: &Path) -> Result<()> {
    let entries = fs::read_dir(dashboards).context("failed to list the dashboards")?;
    let mut rules = Vec::new();
    for entry in entries {
        let text = fs::read_to_string(entry?.path())?;
        let board: Value = serde_json::from_str(&text).context("a dashboard is not JSON")?;
        let panels = board["panels"].as_array().into_iter().flatten();
        let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
        for query in targets.map(|target| &target["expr"]) {
            let name = format!("query:{}", rules.len());
            rules.push(json!({"record": name, "expr": query}));
        }
    }
    let path = target.join("dashboard-queries.yaml");
    let groups = json!({"groups": [{"name": "dashboards", "rules": rules}]});
    fs::write(&path, groups.to_string()).context("failed to write the queries")?;
    let mut promtool = Command::new(named("PROMTOOL", "promtool"));
    run(promtool.args(["check", "rules"]).arg(path))
}

fn helm(workspace: &Workspace) -> Result<OsString> {
    let named = named("HELM", "helm");
    if env::var_os("HELM").is_some() || succeeds(Command::new(&named).arg("version")) {
        return Ok(named);
    }
    let modules = workspace.root.join("tests/kubernetes");
    Ok(apportion_cluster::binaries::tool(&modules, "helm")?.into())
}

fn manifest(workspace: &Workspace, name: &str) -> PathBuf {
    workspace.root.join(MANIFESTS).join(format!("{name}.yaml"))
}

fn named(variable: &str, usual: &str) -> OsString {
    env::var_os(variable).unwrap_or_else(|| usual.into())
}

/// The values and the name of each manifest.
fn presets(chart: &Path) -> Result<Vec<(String, Vec<OsString>)>> {
    let folder = chart.join("presets");
    let more = MORE.iter().map(|(name, values)| {
        let values = values.iter().map(OsString::from).collect();
        ((*name).to_owned(), values)
    });
    let mut presets: Vec<(String, Vec<OsString>)> = more.collect();
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder)
        .and_then(|entries| entries.map(|entry| entry.map(|e| e.path())).collect())
        .with_context(|| format!("failed to read {}", folder.display()))?;
    paths.sort();
    for path in paths {
        let name = path
            .file_stem()
            .context("a preset without a name")?
            .to_string_lossy()
            .into_owned();
        presets.push((name, vec!["--values".into(), path.into()]));
    }
    Ok(presets)
}

fn template(chart: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["template".into(), "apportion".into(), chart.into()];
    let more = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES];
    words.extend(more.map(OsString::from));
    words
}

fn namespace() -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n  labels:\n    \
         pod-security.kubernetes.io/enforce: privileged\n"
    )
}

fn render(helm: &mut Command) -> Result<String> {
    let output = helm
        .output()
        .with_context(|| format!("failed to start {}", typed(helm)))?;
    if !output.status.success() {
        bail!(
            "{}: {}",
            typed(helm),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    String::from_utf8(output.stdout).context("helm rendered no text")
}

fn compare(path: &Path, fresh: &str, is_update: bool) -> Result<()> {
    if is_update {
        return fs::write(path, fresh)
            .with_context(|| format!("failed to write {}", path.display()));
    }
    if fs::read_to_string(path).unwrap_or_default() != fresh {
        bail!(
            "{} is stale: run cargo xtask chart --update",
            path.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_packed_chart_names_its_images_by_their_digests() {
        let values = include_str!("../../deploy/chart/apportion/values.yaml");
        let image = |name: &str, digest: &str| json!({"repository": format!("example.org/{name}"), "digest": digest});
        let images = json!({"image": image("agent", "sha256:a"), "scheduler": {"image": image("scheduler", "sha256:b")}});
        let pinned = pinned(values, &images).unwrap();
        let changed = values
            .lines()
            .zip(pinned.lines())
            .filter(|(old, new)| old != new);
        let changed: Vec<&str> = changed.map(|(_, new)| new).collect();
        assert_eq!(
            changed,
            [
                "  repository: example.org/agent",
                "  digest: sha256:a",
                "    repository: example.org/scheduler",
                "    digest: sha256:b",
            ]
        );
        assert_eq!(values.lines().count(), pinned.lines().count());
    }
}
