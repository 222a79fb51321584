//! `simulate`: files of Kubernetes objects in, decisions out.
//!
//! Warnings about single objects go to standard error, one sentence each. Standard output has the decisions. The
//! order of files and objects has no influence.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use apportion_abi::EscapedText;
use apportion_abi::names::ANNOTATION_BURST;
use apportion_admission::Pod;
use apportion_admission::limits::growing;
use apportion_claims::binding::BindingClock;
use apportion_kubernetes::since_epoch;
use jiff::Timestamp;
use serde_json::Value;

use crate::options::{LimitAboveRequest, SimulateOptions};
use apportion_exit::CommandFailure;
use apportion_explain::report::{self, DecisionReport};
use apportion_explain::{decided_cluster, explain};
use apportion_model::inventory::ObjectInventory;
use apportion_model::object_warnings::ObjectWarnings;
use apportion_model::snapshot::{self, ClusterSnapshot};
use apportion_model::usage_history::UsageHistory;
use apportion_model::{claims, gpu_nodes, numa, pods};

mod read;
mod templates;

pub(crate) fn run(asked: &SimulateOptions) -> Result<(), CommandFailure> {
    let now = since_epoch(asked.now.unwrap_or_else(Timestamp::now));
    let mut objects = Vec::new();
    for file in &asked.files {
        objects.extend(read::objects(file)?);
    }
    let mut warnings = ObjectWarnings::default();
    let usage = UsageHistory::take(&mut objects, &mut warnings);
    let mut inventory = ObjectInventory::of(objects, &mut warnings);
    templates::expand(&mut inventory, &mut warnings);
    if asked.request_below_limit == LimitAboveRequest::Burst {
        for pod in bursting_pods(&inventory) {
            inventory.put(pod, &mut warnings);
        }
    }
    let nobody = BTreeMap::new();
    let made = claims::of_templates(&inventory);
    inventory.extend(made, &mut warnings);
    let cards = gpu_nodes::known(&inventory);
    let schedulers = &asked.schedulers;
    let mut snapshot =
        snapshot::snapshot(&inventory, schedulers, &nobody, &cards, now, &mut warnings);
    gpu_nodes::enter_strangers(&inventory, &mut snapshot.cluster);
    let clock = BindingClock::at(now);
    claims::enter(&inventory, &mut snapshot.cluster, &BTreeMap::new(), clock);
    asked.choices.enter(&inventory, &mut snapshot.cluster);
    numa::charge(&inventory, &mut snapshot.cluster);
    if let Some(mut usage) = usage {
        usage.settle(now);
        usage.enter(&mut snapshot.cluster);
    }
    let decided = decided_cluster::decide(now, &snapshot.cluster);
    let mut report = report::report(&snapshot, &decided, warnings);
    if let Some(name) = &asked.explain {
        let pod = find(&snapshot, name)?;
        report.explanation = Some(explain::explain(&snapshot, &decided, &report, &pod));
    }
    print_warnings(&report);
    print(&report, asked.json)
}

/// The waiting pods that the webhook would have marked, with the mark: they may burst up to their limit.
fn bursting_pods(inventory: &ObjectInventory) -> Vec<Value> {
    let waiting = inventory
        .all("Pod")
        .filter(|pod| pods::node(*pod).is_none());
    let marked = waiting.filter_map(|pod| {
        let mut json = pod.read_apart().into_owned();
        growing(&Pod::read(&json).ok()?)?;
        json["metadata"]["annotations"][ANNOTATION_BURST] = "true".into();
        Some(json)
    });
    marked.collect()
}

/// The pod with this name, which may lack its namespace.
fn find(snapshot: &ClusterSnapshot<'_>, name: &str) -> Result<String, CommandFailure> {
    let pods: BTreeSet<String> = snapshot.inventory.all("Pod").map(pods::name).collect();
    let found: Vec<&String> = pods
        .iter()
        .filter(|pod| *pod == name || pod.split_once('/').is_some_and(|(_, own)| own == name))
        .collect();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => {
            let known: Vec<&str> = pods.iter().take(5).map(String::as_str).collect();
            let hint = match known.as_slice() {
                [] => "there are no pods in these files".to_owned(),
                known => format!("the files have pods such as {}", known.join(", ")),
            };
            Err(CommandFailure::usage(format!("there is no pod {name}")).hint(hint))
        }
        many => {
            let many: Vec<&str> = many.iter().map(|pod| pod.as_str()).collect();
            Err(
                CommandFailure::usage(format!("more than one pod is named {name}"))
                    .hint(format!("use one of {}", many.join(", "))),
            )
        }
    }
}

/// Prints the warnings, and what was ignored.
fn print_warnings(report: &DecisionReport) {
    for warning in &report.warnings.0 {
        eprintln!("{warning}");
    }
    if !report.ignored.is_empty() {
        let kinds: Vec<String> = (report.ignored.iter())
            .map(|(kind, count)| format!("{count} {}", EscapedText(kind)))
            .collect();
        let count: usize = report.ignored.values().sum();
        eprintln!(
            "ignored {count} objects of kinds that do not affect scheduling: {}",
            kinds.join(", ")
        );
    }
    if report.other_schedulers_pods > 0 {
        eprintln!(
            "skipped {} pods of other schedulers",
            report.other_schedulers_pods
        );
    }
}

fn print(report: &DecisionReport, as_json: bool) -> Result<(), CommandFailure> {
    let text = if as_json {
        let json = serde_json::to_string_pretty(report);
        json.map_err(|error| CommandFailure::new(format!("failed to write JSON: {error}")))? + "\n"
    } else {
        report.to_string()
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(CommandFailure::from),
    }
}
