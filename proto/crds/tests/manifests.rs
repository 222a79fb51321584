//! The committed manifests are what the types say. `UPDATE_CRDS=1 cargo test -p apportion-crds` writes
//! them anew.

use std::path::Path;

use apportion_crds::GpuNode;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// Each kind, and from where it is installed.
fn manifests() -> Vec<(CustomResourceDefinition, &'static str)> {
    vec![(
        GpuNode::crd(),
        "../../runtime-class/chart/apportion-agent/crds/gpunodes.apportion.dev.yaml",
    )]
}

#[test]
fn the_committed_manifests_are_fresh() {
    for (kind, path) in manifests() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
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
