//! Removes each artefact that limits a container, one at a time: the container does not start, the pod's events say why
//! in one sentence, and the next pod starts once the artefact is back.
//!
//! The pod has run before, so that every artefact exists. Its container exits at a signal file, and the kubelet
//! restarts it. Each start appends to a file in a volume.

use std::fs;
use std::path::{Path, PathBuf};

use apportion_cluster::eventually;
use apportion_cluster::managed::{LIMIT, ManagedNode, ManagedPod};
use serde_json::json;

/// Records its start, and exits when the signal file exists.
const SCRIPT: &str = "echo >> /kept/starts; until test -e /kept/leave; do sleep 0.1; done; exit 1";

/// One artefact.
struct ArtifactCase {
    /// Also the pod's name.
    artefact: &'static str,
    /// Removes the artefact.
    take: fn(&mut ManagedNode),
    /// The expected text in the events.
    event: &'static str,
}

const ROWS: &[ArtifactCase] = &[
    ArtifactCase {
        artefact: "grant",
        // Make the agent write grants where the runtime does not look, and do not let it ask the runtime where it
        // looks.
        take: |node| {
            node.kill_agent();
            for grant in node.grants() {
                fs::remove_file(grant).expect("it is there");
            }
            let elsewhere = ["--cdi-dir", "/run/apportion/elsewhere"];
            let unasked = ["--cdi", "on", "--cri-socket", "/run/apportion/nobody"];
            node.start_agent(&[elsewhere.as_slice(), &unasked].concat());
        },
        event: "unresolvable CDI devices apportion.dev/grant=",
    },
    ArtifactCase {
        artefact: "limits",
        take: |node| remove_of_account(node, "limits"),
        event: "the account of pod default/limits at /run/apportion/sim/accounts/",
    },
    ArtifactCase {
        artefact: "usage",
        take: |node| remove_of_account(node, "usage"),
        event: "the account of pod default/usage at /run/apportion/sim/accounts/",
    },
    ArtifactCase {
        artefact: "library",
        take: |node| fs::remove_file(library(node)).expect("it is there"),
        event: "libapportion_cuda.so is missing, so the limit of pod default/library cannot be enforced",
    },
    ArtifactCase {
        artefact: "cut-library",
        take: |node| {
            let library = fs::File::options().write(true).open(library(node));
            let library = library.expect("it is there");
            library.set_len(1000).expect("the disk takes it");
        },
        event: "libapportion_cuda.so is damaged, so the limit of pod default/cut-library cannot be enforced",
    },
    ArtifactCase {
        artefact: "binding",
        // No scheduler has placed the pod, and the agent does not place it either.
        take: |node| {
            node.kill_agent();
            for file in ["checkpoint.json", "accounts"] {
                let path = node.instance().join(file);
                let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
            }
            node.start_agent(&["--unplaced", "deny"]);
        },
        event: "pod default/binding has no GPU share on this node: its scheduler reserved none",
    },
    ArtifactCase {
        artefact: "agent",
        take: ManagedNode::kill_agent,
        event: "PreStartContainer rpc failed",
    },
];

/// Removes a file of the only account.
fn remove_of_account(node: &mut ManagedNode, file: &str) {
    let accounts = fs::read_dir(node.instance().join("accounts")).expect("it is there");
    let accounts: Vec<_> = accounts.flatten().map(|account| account.path()).collect();
    assert_eq!(accounts.len(), 1, "{accounts:?}");
    fs::remove_file(accounts[0].join(file)).expect("it is there");
}

fn library(node: &ManagedNode) -> PathBuf {
    let folder = node
        .cluster
        .folder()
        .kubelet()
        .join("plugins/apportion/lib");
    let versions = fs::read_dir(folder).expect("it is there");
    let mut versions = versions.flatten().map(|version| version.path());
    let version = versions.next().expect("one is installed");
    version.join("libapportion_cuda.so")
}

/// A pod whose container records its starts. Returns also the volume's path.
fn marking(node: &ManagedNode, name: &str) -> (ManagedPod, PathBuf) {
    let pod = node.pod(name, SCRIPT, |pod| {
        pod["spec"]["restartPolicy"] = json!("OnFailure");
        pod["spec"]["volumes"] = json!([{"name": "kept", "emptyDir": {}}]);
        pod["spec"]["containers"][0]["volumeMounts"] =
            json!([{"name": "kept", "mountPath": "/kept"}]);
    });
    pod.runs();
    let volume = format!("pods/{}/volumes/kubernetes.io~empty-dir/kept", pod.uid);
    (pod, node.cluster.folder().kubelet().join(volume))
}

fn starts(volume: &Path) -> usize {
    fs::read(volume.join("starts")).map_or(0, |marks| marks.len())
}

#[test]
fn without_any_of_its_artefacts_a_container_does_not_start_and_the_events_say_why() {
    let mut node = ManagedNode::with(&[]);
    // Without CDI in the runtime there is no grant to remove.
    let has_cdi = node.has_cdi();
    for row in ROWS.iter().filter(|row| has_cdi || row.artefact != "grant") {
        let (pod, volume) = marking(&node, row.artefact);
        (row.take)(&mut node);
        fs::write(volume.join("leave"), "").expect("the volume is there");
        eventually(row.event, || pod.events().contains(row.event));
        assert_eq!(starts(&volume), 1, "{}: {}", row.artefact, pod.events());
        // A restarted agent restores what is missing, except the account of the existing pod, so use a new pod.
        drop(pod);
        node.kill_agent();
        node.start_agent(&[]);
        let next = node.pod("next", "victim total", |_| {});
        next.succeeds();
        let log = next.logs("main");
        assert!(
            log.contains(&format!("total 0 {LIMIT}")),
            "{}: {log}",
            row.artefact
        );
    }
}
