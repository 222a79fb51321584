//! The end-to-end suite of NVIDIA's DRA driver, on the agent's driver and the default kube-scheduler.
//!
//! The suite is a checkout that somebody names; nothing of it is copied here. One thing is changed in a copy: the name
//! of the driver, as docs/kubernetes/dra.md tells people who migrate.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use apportion_cluster::eventually;
use apportion_cluster::managed::{DEVICE_CLASS, ManagedNode, device_class};
use serde_json::Value;

/// The variable with a checkout of github.com/kubernetes-sigs/dra-driver-nvidia-gpu.
const CHECKOUT: &str = "APPORTION_NVIDIA_DRA";
const DRIVER_OF_NVIDIA: &str = "gpu.nvidia.com";
/// What NVIDIA's driver does by a setting, and ours does otherwise: a claim without a size is a whole GPU, so two of
/// them are never on one GPU.
const DIFFERENT: &[&str] = &["[consumable-shares/unlimited]"];

#[test]
#[ignore = "it needs a checkout of NVIDIA's DRA driver in APPORTION_NVIDIA_DRA"]
fn the_specs_of_nvidias_dra_driver_pass_under_the_other_name() {
    let checkout = std::env::var_os(CHECKOUT).map(PathBuf::from);
    let checkout = checkout.expect("APPORTION_NVIDIA_DRA names the checkout");
    let scratch = tempfile::tempdir().unwrap();
    let suite = renamed(&checkout, &scratch.path().join("copy"));

    let node = ManagedNode::with(&["--dra", "on"]);
    node.cluster.apply(&device_class(None)).unwrap();
    eventually("the node's GPUs are offered", || {
        let slices = ["get", "resourceslices", "-o", "name"];
        node.kubectl(&slices).contains(DEVICE_CLASS)
    });
    let results = run(&suite, &node);
    for (spec, state) in &results {
        println!("{state:<8} {spec}");
    }
    let passed = results.values().filter(|state| *state == "passed").count();
    println!(
        "{passed} of {} specs of NVIDIA's DRA driver passed",
        results.len()
    );
    assert!(results.len() >= 8, "the suite has eight specs or more");
    for (spec, state) in &results {
        let is_different = DIFFERENT.iter().any(|name| spec.contains(name));
        assert_eq!(state == "passed", !is_different, "{state}: {spec}");
    }
}

/// A copy of the checkout whose suite looks for our driver. Returns the suite's folder.
fn renamed(checkout: &Path, copy: &Path) -> PathBuf {
    let copied = Command::new("cp")
        .arg("-r")
        .arg(checkout)
        .arg(copy)
        .status();
    assert!(
        copied.unwrap().success(),
        "{} is a folder",
        checkout.display()
    );
    let suite = copy.join("test/e2e");
    let mut open = vec![suite.clone()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            fs::write(&path, text.replace(DRIVER_OF_NVIDIA, DEVICE_CLASS)).unwrap();
        }
    }
    suite
}

/// Runs the suite. Returns the state of each spec.
fn run(suite: &Path, node: &ManagedNode) -> BTreeMap<String, String> {
    let report = suite.join("report.json");
    let status = Command::new("go")
        .current_dir(suite)
        .args(["test", "-mod=vendor", "-vet=off", "-tags=e2e", "."])
        .arg(format!("-ginkgo.json-report={}", report.display()))
        .env("KUBECONFIG", node.cluster.folder().kubeconfig())
        .status();
    // The status says only that a spec failed; the report says which.
    status.expect("Go is there");
    let report = fs::read_to_string(&report).expect("the suite wrote a report");
    let report: Value = serde_json::from_str(&report).unwrap();
    let specs = report[0]["SpecReports"].as_array().unwrap().iter();
    specs
        .filter(|spec| spec["LeafNodeType"] == "It")
        .map(|spec| {
            let text = |key: &str| spec[key].as_str().unwrap_or_default().to_owned();
            (text("LeafNodeText"), text("State"))
        })
        .collect()
}
