//! A cluster starts and ends completely. It runs beside that of the other suites, like the clusters of two people.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use apportion_cluster::binaries::{self, ClusterBinaries};
use apportion_cluster::{
    ClusterFolder, ClusterSpec, ClusterState, LocalCluster, down, eventually, image, leftovers, up,
};
use serde_json::json;

#[test]
fn what_is_left_of_a_broken_cluster_is_found_and_removed() {
    let place = tempfile::Builder::new().prefix("apc-").tempdir().unwrap();
    let folder = ClusterFolder::new(&place.path().join("c")).unwrap();
    let cluster = up(&folder, &wanted(), &programs()).unwrap();
    assert_eq!(cluster.state(), ClusterState::Up);
    start_pod(&cluster);
    assert!(!leftovers(&folder).is_empty());
    assert!(!traces(&folder).is_empty());

    // Without these two, nobody has cleaned up after the pod.
    for name in ["kubelet", "containerd"] {
        let (_, pid) = cluster.servers().find(|server| server.0 == name).unwrap();
        let killed = Command::new("kill").args(["-9", &pid.to_string()]).status();
        assert!(killed.unwrap().success());
    }
    eventually("the cluster is half there", || {
        cluster.state() == ClusterState::Half(vec!["containerd".into(), "kubelet".into()])
    });

    down(&folder).unwrap();
    assert_eq!(leftovers(&folder), Vec::<String>::new());
    // A killed process is visible until its new parent has reaped it.
    eventually("all traces are gone", || traces(&folder).is_empty());
    assert!(!folder.path().exists());
}

#[test]
fn a_second_up_finds_the_first() {
    let first = LocalCluster::of_tests();
    let second = up(first.folder(), &wanted(), &programs()).unwrap();
    assert!(first.servers().eq(second.servers()));
}

#[test]
fn a_server_that_cannot_start_leaves_nothing_running() {
    let place = tempfile::Builder::new().prefix("apc-").tempdir().unwrap();
    let folder = ClusterFolder::new(&place.path().join("c")).unwrap();
    let wanted = ClusterSpec {
        staged: place.path().join("no-such-tree"),
        ..wanted()
    };
    let error = format!("{:#}", up(&folder, &wanted, &programs()).unwrap_err());
    assert!(error.contains("failed to start cards"), "{error}");
    assert_eq!(leftovers(&folder), Vec::<String>::new());
    down(&folder).unwrap();
}

fn start_pod(cluster: &LocalCluster) {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stays"},
        "spec": {
            "hostNetwork": true,
            "containers": [{
                "name": "main",
                "image": image::VICTIM,
                "imagePullPolicy": "Never",
                "command": ["/bin/sleep", "1000"],
            }],
        },
    });
    cluster.apply(&pod).expect("the API server takes a pod");
    let phase = ["get", "pod", "stays", "-o", "jsonpath={.status.phase}"];
    eventually("the pod runs", || {
        cluster
            .kubectl(&phase)
            .is_ok_and(|phase| phase == "Running")
    });
}

/// Processes in the cluster's control groups, and mounts below its folder that any process sees. They are searched in
/// another way than `leftovers` does.
fn traces(folder: &ClusterFolder) -> Vec<String> {
    let processes = fs::read_dir("/proc")
        .expect("Linux has /proc")
        .flatten()
        .map(|entry| entry.path());
    let told = processes.flat_map(|process| {
        let within = |file: &str, what: &str| {
            let text = fs::read_to_string(process.join(file)).unwrap_or_default();
            text.contains(what)
                .then(|| format!("{}: {what}", process.join(file).display()))
        };
        let path = folder.path().display().to_string();
        [within("cgroup", folder.name()), within("mountinfo", &path)]
    });
    told.flatten().collect()
}

fn wanted() -> ClusterSpec {
    let test = env::current_exe().expect("a running program has a path");
    ClusterSpec {
        silent_nodes: 0,
        stand_ins: false,
        gpu_memory: None,
        gpus: 1,
        staged: env::var_os("APPORTION_STAGED")
            .map(PathBuf::from)
            .unwrap_or_default(),
        victims: test
            .ancestors()
            .nth(2)
            .map(Path::to_owned)
            .unwrap_or_default(),
    }
}

/// The programs of the running cluster.
fn programs() -> ClusterBinaries {
    let version = LocalCluster::of_tests().kubernetes().to_owned();
    let minor = version
        .trim_start_matches('v')
        .rsplit_once('.')
        .map(|(minor, _)| minor.to_owned());
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kubernetes");
    binaries::find(&modules, minor.as_deref(), None)
        .expect("the programs were built for the cluster that runs")
}
