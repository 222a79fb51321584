//! The committed manifests match the types. `UPDATE_CRDS=1 cargo test -p apportion-crds` regenerates them.

use std::path::Path;

use apportion_crds::{GpuNode, kai};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// The folder from which the kinds are installed.
const FOLDER: &str = "../../deploy/chart/apportion/crds";

/// Each kind and its file.
fn manifests() -> Vec<(CustomResourceDefinition, String)> {
    let all = std::iter::once(GpuNode::crd()).chain(kai::manifests());
    all.map(|kind| {
        let name = kind.metadata.name.clone().unwrap_or_default();
        (kind, format!("{FOLDER}/{name}.yaml"))
    })
    .collect()
}

#[test]
fn the_committed_manifests_are_fresh() {
    for (kind, path) in manifests() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&path);
        let fresh = serde_norway::to_string(&kind).unwrap();
        if std::env::var_os("UPDATE_CRDS").is_some() {
            std::fs::write(&path, &fresh).unwrap();
        }
        let is_fresh = std::fs::read_to_string(&path).unwrap_or_default() == fresh;
        assert!(
            is_fresh,
            "{} is stale; run UPDATE_CRDS=1 cargo test -p apportion-crds",
            path.display()
        );
    }
}

#[test]
fn a_gpu_node_is_of_the_cluster_and_has_a_short_name() {
    let spec = GpuNode::crd().spec;
    assert_eq!(spec.scope, "Cluster");
    assert_eq!(spec.names.short_names, Some(vec!["gpun".to_owned()]));
    let version = &spec.versions[0];
    assert!(version.subresources.as_ref().unwrap().status.is_some());
}

#[test]
fn kais_kinds_say_no_more_than_kais_manifests() {
    for kind in kai::manifests() {
        let text = serde_json::to_string(&kind).unwrap();
        for unsaid in [
            "\"nullable\"",
            "\"default\"",
            "\"double\"",
            "\"int64\"",
            "\"uint32\"",
        ] {
            assert!(!text.contains(unsaid), "{unsaid} in {text}");
        }
    }
}

#[test]
fn a_queue_has_kais_columns_then_its_gpus_and_may_come_without_a_spec() {
    let queue = kai::manifests().remove(0);
    let version = &queue.spec.versions[0];
    let columns = version.additional_printer_columns.as_ref().unwrap();
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(
        names[..4],
        ["Priority", "Parent", "Children", "DisplayName"]
    );
    assert_eq!(
        names[4..],
        ["GPU Quota", "GPU Allocated", "GPU Requested", "Usable"]
    );
    let schema = version.schema.as_ref().unwrap();
    let root = schema.open_api_v3_schema.as_ref().unwrap();
    assert_eq!(root.required, None);
}
