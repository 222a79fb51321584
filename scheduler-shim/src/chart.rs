//! Tests the chart against this program: the chart uses options that exist, and grants the permissions that are used
//! and no others.
//!
//! Read permissions follow from the tables of kinds. Write permissions are listed here once more, with the file that
//! needs them, because no table of the program has them.

use std::collections::BTreeSet;
use std::path::Path;

use clap::{Arg, CommandFactory, Parser};
use serde::Deserialize;
use serde_json::Value;

use crate::options::SchedulerOptions;
use apportion_model::object_kinds;

/// API group, resource and verb.
type Right = (String, String, String);

/// Permissions beside list and watch.
const DONE: &[(&str, &str, &[&str])] = &[
    // live/api.rs
    ("", "pods", &["get", "patch"]),
    ("", "pods/binding", &["create"]),
    ("", "pods/eviction", &["create"]),
    ("", "pods/status", &["patch"]),
    ("apportion.dev", "gpunodes/status", &["patch"]),
    // live/api/grouping.rs
    ("scheduling.run.ai", "podgroups", &["create", "patch"]),
    ("scheduling.run.ai", "queues/status", &["patch"]),
    ("scheduling.run.ai", "podgroups/status", &["patch"]),
    ("kai.scheduler", "schedulingshards/status", &["patch"]),
    ("kai.scheduler", "configs/status", &["patch"]),
    ("events.k8s.io", "events", &["create", "patch"]),
    // live/api/claims.rs, live/api/extended_claims.rs
    (
        "resource.k8s.io",
        "resourceclaims",
        &["create", "delete", "get", "patch"],
    ),
    ("resource.k8s.io", "resourceclaims/status", &["patch"]),
    ("resource.k8s.io", "resourceclaims/binding", &["patch"]),
    // live/volumes.rs
    ("", "persistentvolumes", &["get", "update"]),
    ("", "persistentvolumeclaims", &["get", "update"]),
    // live/certificate_authority/sign.rs
    (
        "certificates.k8s.io",
        "certificatesigningrequests",
        &["list", "watch"],
    ),
    (
        "certificates.k8s.io",
        "certificatesigningrequests/approval",
        &["patch"],
    ),
    (
        "certificates.k8s.io",
        "certificatesigningrequests/status",
        &["patch"],
    ),
    ("certificates.k8s.io", "signers", &["approve", "sign"]),
];

/// Permissions in the scheduler's own namespace.
const DONE_AT_HOME: &[(&str, &str, &[&str])] = &[
    // live/leader_election.rs
    (
        "coordination.k8s.io",
        "leases",
        &["create", "get", "update", "watch"],
    ),
    // live/certificate_authority.rs, live/usage_recorder/store.rs
    ("", "secrets", &["create", "get", "update"]),
    ("", "configmaps", &["create", "get", "update"]),
];

fn objects() -> Vec<Value> {
    let path = "../deploy/manifests/in-place-of-kai.yaml";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(path).unwrap();
    let documents = serde_norway::Deserializer::from_str(&text);
    documents
        .map(|one| Value::deserialize(one).unwrap())
        .collect()
}

fn named(kind: &str, name: &str) -> Value {
    let mut objects = objects().into_iter();
    let found = objects.find(|one| one["kind"] == kind && one["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(Value::as_str)
}

fn granted(role: &Value) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in strings(&rule["apiGroups"]) {
            for resource in strings(&rule["resources"]) {
                for verb in strings(&rule["verbs"]) {
                    rights.insert((group.to_owned(), resource.to_owned(), verb.to_owned()));
                }
            }
        }
    }
    rights
}

fn rights<'a>(rows: &'a [(&str, &str, &[&str])]) -> impl Iterator<Item = Right> + 'a {
    rows.iter().flat_map(|(group, resource, verbs)| {
        let verbs = verbs.iter();
        verbs.map(|verb| {
            (
                (*group).to_owned(),
                (*resource).to_owned(),
                (*verb).to_owned(),
            )
        })
    })
}

/// The plural of a kind in a path. All kinds that are read follow the rules of English.
fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if kind.ends_with('s') => format!("{kind}es"),
        None => format!("{kind}s"),
    }
}

#[test]
fn the_scheduler_may_do_what_it_does_and_no_more() {
    let read = object_kinds::kinds().flat_map(|(group, kind)| {
        ["list", "watch"].map(|verb| (group.to_owned(), plural(kind), verb.to_owned()))
    });
    let done: BTreeSet<Right> = read.chain(rights(DONE)).collect();
    let role = granted(&named("ClusterRole", "apportion-scheduler"));
    let missing: Vec<&Right> = done.difference(&role).collect();
    assert!(missing.is_empty(), "it may not: {missing:?}");
    let unused: Vec<&Right> = role.difference(&done).collect();
    assert!(unused.is_empty(), "it need not: {unused:?}");
    let at_home = granted(&named("Role", "apportion-scheduler"));
    assert_eq!(at_home, rights(DONE_AT_HOME).collect());
}

#[test]
fn what_can_be_bound_to_a_name_is() {
    for (kind, name) in [
        ("ClusterRole", "apportion-webhook"),
        ("Role", "apportion-webhook"),
        ("Role", "apportion-scheduler"),
    ] {
        let role = named(kind, name);
        for rule in role["rules"].as_array().unwrap() {
            let may_create = strings(&rule["verbs"]).eq(["create"]);
            let only_reads = strings(&rule["verbs"]).eq(["list", "watch"]);
            let is_bound = strings(&rule["resourceNames"]).count() == 1;
            assert!(
                is_bound || may_create || only_reads,
                "{kind} {name}: {rule}"
            );
        }
    }
}

/// Also options that no rendered manifest uses.
#[test]
fn the_scheduler_has_every_option_that_the_chart_may_give_it() {
    let path = "../deploy/chart/apportion/templates/scheduler.yaml";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let template = std::fs::read_to_string(path).unwrap();
    let given = template.lines().filter_map(|line| {
        let option = line.trim().strip_prefix("- --")?;
        option.split_once('=').map(|(name, _)| name)
    });
    let given: Vec<&str> = given.collect();
    assert!(given.contains(&"k-value"), "{given:?}");
    let command = SchedulerOptions::command();
    let run = command.find_subcommand("run").unwrap();
    let known: BTreeSet<&str> = run.get_arguments().filter_map(Arg::get_long).collect();
    for name in given {
        assert!(known.contains(name), "{name}");
    }
}

#[test]
fn the_programs_have_the_options_that_the_chart_gives_them() {
    for name in ["apportion-scheduler", "apportion-webhook"] {
        let deployment = named("Deployment", name);
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let words = strings(&container["command"]).chain(strings(&container["args"]));
        let words: Vec<&str> = words.collect();
        assert!(words.len() > 5, "{words:?}");
        let parsed = SchedulerOptions::try_parse_from(&words);
        assert!(parsed.is_ok(), "{}", parsed.unwrap_err());
    }
}
