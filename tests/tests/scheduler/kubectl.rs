//! `kubectl apportion` with a real API server: its output for a cluster with a running scheduler and agent, and its
//! errors.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use apportion_tests::control_plane::ControlPlane;
use apportion_tests::{CommandOutput, cards, staged};
use serde_json::{Value, json};

use crate::cluster::{Cluster, pod, queue};

const KINDS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/chart/apportion/crds"
);
const NODE: &str = "node-1";
/// The prefix of the program's error messages.
const NAME: &str = "kubectl apportion: ";

fn plugin(kubeconfig: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(staged().join("bin/kubectl-apportion"));
    command.env("KUBECONFIG", kubeconfig).args(arguments);
    command
}

/// Its output if it succeeds.
fn shown(plane: &ControlPlane, arguments: &[&str]) -> String {
    CommandOutput::by(&mut plugin(&plane.kubeconfig(), arguments))
        .well()
        .out
}

fn read(plane: &ControlPlane, arguments: &[&str]) -> Value {
    let text = shown(plane, &[arguments, &["--json"]].concat());
    serde_json::from_str(&text).expect("it prints JSON")
}

/// Its one-line error, and its exit code.
fn failed(kubeconfig: &Path, arguments: &[&str]) -> (String, Option<i32>) {
    let said = CommandOutput::by(&mut plugin(kubeconfig, arguments));
    assert_eq!(said.out, "", "{said:?}");
    let mut lines = said.err.lines();
    let line = lines.next().and_then(|line| line.strip_prefix(NAME));
    let line = line.unwrap_or_else(|| panic!("{said:?}")).to_owned();
    assert_eq!(lines.next(), None, "{said:?}");
    (line, said.code())
}

/// A cluster with two GPUs. One pod has half of one, and for another pod no GPU is large enough.
fn in_use() -> Cluster {
    let mut cluster = Cluster::bare();
    let _ = cluster.plane.kubectl(&["apply", "-f", KINDS]);
    cluster.add_agents();
    cluster.add_remote_node(NODE, &cards(2));
    cluster.start_scheduler();
    let mut below = queue("team", 4);
    below["spec"]["parentQueue"] = "default-queue".into();
    let mut lost = queue("lost", 1);
    lost["spec"]["parentQueue"] = "nowhere".into();
    let mut half = pod("half", json!({"gpu-fraction": "0.5"}));
    half["metadata"]["labels"]["kai.scheduler/queue"] = "team".into();
    let mut late = pod("late", json!({"gpu-memory": "9000000"}));
    late["metadata"]["labels"]["kai.scheduler/queue"] = "team".into();
    cluster.plane.apply(&[below, lost, half, late]);
    cluster.bound(1);
    cluster
}

#[test]
fn a_cluster_is_shown_as_scheduler_and_agent_report_it() {
    let cluster = in_use();
    let plane = &cluster.plane;
    let granted = cluster.granted(NODE);
    let (uuid, shares) = granted
        .iter()
        .find(|(_, shares)| !shares.is_empty())
        .expect("half");
    let limit = shares[0].1;

    cluster.eventually("the GPUs show the share", |_| {
        let gpus = read(plane, &["gpus"]);
        let gpus = gpus.as_array()?;
        let gpu = gpus.iter().find(|gpu| gpu["uuid"] == **uuid)?;
        let is_so = gpus.len() == 2
            && gpu["node"] == NODE
            && gpu["ready"] == "True"
            && gpu["allocatedBytes"] == limit
            && gpu["holders"][0]["pod"] == "half";
        is_so.then_some(())
    });
    let top = read(plane, &["top"]);
    let share = &top["shares"][0];
    assert_eq!(top["shares"].as_array().map(Vec::len), Some(1), "{top}");
    assert_eq!(
        [
            &share["namespace"],
            &share["pod"],
            &share["uuid"],
            &share["limitBytes"],
            &share["percent"]
        ],
        [
            &json!("default"),
            &json!("half"),
            &json!(uuid),
            &json!(limit),
            &json!(50)
        ]
    );
    let table = shown(plane, &["top"]);
    let row = table.lines().last().unwrap_or_default();
    assert!(
        row.starts_with("default    half") && row.ends_with("50%"),
        "{table}"
    );

    cluster.eventually("the queues show who has and who waits", |_| {
        let queues = read(plane, &["queues"]);
        let of = |name: &str| {
            let mut queues = queues.as_array().into_iter().flatten();
            queues
                .find(|queue| queue["queue"] == name)
                .cloned()
                .unwrap_or_default()
        };
        let (team, above, lost) = (of("team"), of("default-queue"), of("lost"));
        let is_so = team["allocated"] == 0.5
            && team["limit"] == 4.0
            && team["parent"] == "default-queue"
            && team["waiting"] == 1
            && above["allocated"] == 0.5
            && above["limit"] == -1.0
            && lost["trouble"].is_string();
        is_so.then_some(())
    });
    let table = shown(plane, &["queues"]);
    assert!(
        table.contains("\ndefault-queue ") && table.contains("\n  team "),
        "{table}"
    );
    assert!(table.contains("queue lost cannot be used: "), "{table}");

    let half = shown(plane, &["explain", "half", "-n", "default"]);
    assert!(half.starts_with("pod default/half\n"), "{half}");
    assert!(half.contains("asks for gpu-fraction: 0.5"), "{half}");
    assert!(half.contains(&format!("({uuid})")), "{half}");
    assert!(half.contains("queue team: 0.5 GPUs allocated"), "{half}");

    let why = cluster.eventually("the scheduler says why the pod waits", |pods| {
        let late = pods.iter().find(|pod| pod["metadata"]["name"] == "late")?;
        let conditions = late["status"]["conditions"].as_array()?;
        let found = conditions
            .iter()
            .find(|one| one["type"] == "PodScheduled")?;
        found["message"].as_str().map(str::to_owned)
    });
    cluster.eventually("the explanation has the scheduler's words", |_| {
        let late = shown(plane, &["explain", "default/late"]);
        let is_so = late.contains(&format!("  waits: {why}\n"))
            && late.contains("  its group waits: ")
            && late.contains(" ago: Warning Unschedulable");
        is_so.then_some(())
    });
}

#[test]
fn what_is_missing_or_forbidden_is_one_line() {
    let mut plane = ControlPlane::new();
    let config = plane.kubeconfig();
    let (line, code) = failed(&config, &["gpus"]);
    assert!(
        line.contains("no such kind") && line.contains("is Apportion installed?"),
        "{line}"
    );
    assert_eq!(code, Some(1));

    let (line, code) = failed(&config, &["explain", "nobody"]);
    assert!(
        line.starts_with("there is no pod nobody in the namespace default"),
        "{line}"
    );
    assert_eq!(code, Some(1));
    assert_eq!(failed(&config, &["explain", "a/b/c"]).1, Some(64));
    assert_eq!(failed(&config, &["explode"]).1, Some(64));
    assert_eq!(failed(Path::new("/nowhere"), &["top"]).1, Some(64));
    assert_eq!(failed(&config, &["top", "--context", "other"]).1, Some(64));

    let text = fs::read_to_string(&config).expect("it was written");
    let written = |name: &str, text: String| {
        let path = plane.dir().join(name);
        fs::write(&path, text).expect("the folder is writable");
        path
    };
    let stranger = written("stranger", text.replace("everybody", "stranger"));
    let (line, code) = failed(&stranger, &["queues"]);
    assert!(line.contains("does not accept the credentials"), "{line}");
    assert_eq!(code, Some(1));
    let server = text
        .split('"')
        .find(|word| word.starts_with("https://"))
        .expect("a server");
    let gone = written("gone", text.replace(server, "https://127.0.0.1:1"));
    let (line, code) = failed(&gone, &["top"]);
    assert!(
        line.contains("failed to reach the API server at https://127.0.0.1:1"),
        "{line}"
    );
    assert_eq!(code, Some(1));

    let _ = plane.kubectl(&["apply", "-f", KINDS]);
    let nobody = plane.kubeconfig_of("default", "nobody");
    plane.ask_for_rights();
    for (command, kind) in [
        ("gpus", "gpunodes"),
        ("queues", "queues"),
        ("top", "gpunodes"),
    ] {
        let (line, code) = failed(&nobody, &[command]);
        assert!(
            line.contains(&format!("failed to list {kind}: {kind}")),
            "{line}"
        );
        assert!(line.contains("serviceaccount:default:nobody"), "{line}");
        assert_eq!(code, Some(1));
    }
}

#[test]
fn the_scheduler_that_leads_is_asked_through_kubectl() {
    let plane = ControlPlane::new();
    let labels = json!({"app.kubernetes.io/name": "apportion-scheduler"});
    let named = |name: &str| json!({"name": name, "namespace": "kube-system", "labels": labels});
    let replica = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": named(name), "spec": {"containers": [
            {"name": "scheduler", "image": "none", "ports": [{"name": "metrics", "containerPort": 9555}]}]}})
    };
    plane.apply(&[
        pod("late", json!({})),
        replica("scheduler-a"),
        replica("scheduler-b"),
    ]);
    let (line, _) = failed(&plane.kubeconfig(), &["explain", "late", "--scheduler"]);
    assert!(line.starts_with("no scheduler leads"), "{line}");
    plane.apply(&[
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": named("apportion-scheduler"),
        "spec": {"holderIdentity": "scheduler-b_1_17c"}}),
    ]);

    // There is no kubelet for exec, so this fake kubectl prints its arguments.
    let kubectl = plane.dir().join("kubectl");
    fs::write(&kubectl, "#!/bin/sh\necho \"$@\"\n").expect("the folder is writable");
    fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let path = format!("{}:/usr/bin:/bin", plane.dir().display());
    let mut command = plugin(
        &plane.kubeconfig(),
        &["explain", "late", "--scheduler", "--json"],
    );
    let said = CommandOutput::by(command.env("PATH", path)).well();
    let asked = "exec --namespace kube-system scheduler-b -- apportion-scheduler explain default/late \
                 --address 127.0.0.1:9555 --json\n";
    assert_eq!(said.out, asked);
}
