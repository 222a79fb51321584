//! Applies the manifests of `examples/` unchanged: the pods are scheduled, delivered by the kubelet, and limited.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::path::Path;

use apportion_cluster::eventually;
use apportion_cluster::managed::{MIB, ManagedNode};
use apportion_cluster::programs::{self, StagedProgram, WebhookServer};
use serde_json::{Value, json};

const NAMESPACE: &str = "examples-suite";

/// One example: its file, and a check for afterwards.
struct ManifestExample {
    file: &'static str,
    shows: fn(&FullStack),
}

const EXAMPLES: &[ManifestExample] = &[
    ManifestExample {
        file: "fraction.yaml",
        shows: |stack| {
            stack.runs("gpu-sharing");
            stack.sees("gpu-sharing", "main", stack.share(0.5));
            assert_eq!(stack.group("gpu-sharing"), stack.holder_card("gpu-sharing"));
        },
    },
    ManifestExample {
        file: "memory.yaml",
        shows: |stack| stack.reaches("gpu-pod", "Succeeded"),
    },
    ManifestExample {
        file: "container.yaml",
        shows: |stack| {
            stack.runs("named-container");
            stack.sees("named-container", "worker", stack.share(0.25));
            let other = ["exec", "named-container", "-c", "front", "--", "nvidia-smi"];
            let said = stack.kubectl(&other);
            assert!(!said.contains("nvml 0 "), "it has a card: {said}");
        },
    },
    ManifestExample {
        file: "init-container.yaml",
        shows: |stack| {
            stack.runs("init-container");
            stack.sees("init-container", "convert", 1000 * MIB);
        },
    },
    ManifestExample {
        file: "whole-card.yaml",
        shows: |stack| {
            stack.runs("whole-card");
            let all = stack.cards()[0]["memoryBytes"].as_u64().unwrap();
            stack.sees("whole-card", "main", all);
            let maps = ["exec", "whole-card", "--", "cat", "/proc/1/maps"];
            assert!(!stack.kubectl(&maps).contains("libapportion_cuda"));
        },
    },
    ManifestExample {
        file: "vllm.yaml",
        shows: two_servers_take_most_of_one_card,
    },
    ManifestExample {
        file: "gang.yaml",
        shows: |stack| {
            for pod in ["master-0", "worker-0", "worker-1"] {
                stack.runs(&format!("pytorch-dist-{pod}"));
            }
        },
    },
    ManifestExample {
        file: "priorities.yaml",
        shows: |stack| {
            stack.runs("train-pod");
            stack.kubectl(&["apply", "-f", &path("priorities-build.yaml")]);
            stack.runs("build-pod");
            eventually("the train pod goes", || {
                stack.at("train-pod", ".status.phase") != "Running"
            });
            stack.delete("priorities-build.yaml");
        },
    },
    ManifestExample {
        file: "zenml.yaml",
        shows: |stack| {
            let done = "--for=condition=Complete";
            stack.kubectl(&["wait", done, "job/gpu-step", "--timeout=120s"]);
            let log = stack.kubectl(&["logs", "job/gpu-step"]);
            assert!(log.contains(&format!("nvml 0 {}", 2000 * MIB)), "{log}");
        },
    },
    ManifestExample {
        file: "vcluster.yaml",
        shows: |stack| stack.runs("gpu-sharing-x-default-x-my-vcluster"),
    },
    ManifestExample {
        file: "cpu.yaml",
        shows: |stack| {
            stack.runs("cpu-only");
            assert_eq!(stack.group("cpu-only"), "");
            let limits = stack.at("cpu-only", ".spec.containers[0].resources.limits");
            assert_eq!(limits, "", "something was added");
        },
    },
];

#[test]
fn every_example_does_what_it_says() {
    let stack = FullStack::start();
    eventually("the API server trusts the webhook", || {
        let ask = ["apply", "--dry-run=server", "-f", &path("fraction.yaml")];
        let queues = ["apply", "-f", &path("queues.yaml")];
        [&ask[..], &queues]
            .iter()
            .all(|args| stack.node.cluster.kubectl(args).is_ok())
    });
    for example in EXAMPLES {
        eprintln!("{}", example.file);
        stack.kubectl(&["apply", "-f", &path(example.file)]);
        (example.shows)(&stack);
        stack.delete(example.file);
    }
    stack.delete("queues.yaml");
}

#[test]
fn every_file_is_an_example() {
    let known = |name: &str| EXAMPLES.iter().any(|example| example.file == name);
    for entry in std::fs::read_dir(path("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_part = ["queues.yaml", "priorities-build.yaml"].contains(&name.as_str());
        // The suite `dra` applies these.
        let is_claim = name.starts_with("dra-");
        assert!(
            known(&name) || is_part || is_claim,
            "nothing applies {name}"
        );
    }
}

/// The example of the guides: two servers that take 90 % of what they see.
fn two_servers_take_most_of_one_card(stack: &FullStack) {
    let namespace = ["-n", "ai-workloads"];
    for (app, fraction) in [("vllm-test-07", 0.7), ("vllm-test-02", 0.2)] {
        let of = format!("deployment/{app}");
        let wait = ["wait", "--for=condition=Available", &of, "--timeout=120s"];
        stack.kubectl(&[&wait[..], &namespace].concat());
        let mut log = String::new();
        eventually("the server has its memory", || {
            log = stack.kubectl(&[&["logs", &of][..], &namespace].concat());
            log.contains("take 0")
        });
        let taken: u64 = log.split_whitespace().last().unwrap().parse().unwrap();
        let share = stack.share(fraction);
        assert!((share / 2..=share).contains(&taken), "{taken} of {share}");
    }
    let columns = "custom-columns=NAME:.metadata.name,STATUS:.status.phase,NODE:.spec.nodeName,\
         GPU-FRACTION:.metadata.annotations.gpu-fraction,GPU-GROUP:.metadata.labels.runai-gpu-group";
    let list = ["get", "pods", "--no-headers", "-o", columns];
    let list = stack.kubectl(&[&list[..], &namespace].concat());
    let rows: Vec<Vec<&str>> = list
        .lines()
        .map(|row| row.split_whitespace().collect())
        .collect();
    let node = stack.node.cluster.node();
    let mut fractions: Vec<&str> = rows.iter().map(|row| row[3]).collect();
    fractions.sort_unstable();
    assert_eq!(fractions, ["0.2", "0.7"], "{list}");
    assert!(
        rows.iter().all(|row| row[1] == "Running" && row[2] == node),
        "{list}"
    );
    assert_eq!(rows[0][4], rows[1][4], "not on one card: {list}");
}

fn path(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    folder.join(file).display().to_string()
}

/// A complete installation: agent, scheduler, webhook, KAI's CRDs.
struct FullStack {
    node: ManagedNode,
    _scheduler: StagedProgram,
    _webhook: WebhookServer,
}

impl FullStack {
    fn start() -> Self {
        let node = ManagedNode::with(&["--unplaced", "deny", "--whole-cards", "on"]);
        let cluster = &node.cluster;
        programs::install_kinds(cluster);
        let socket = node.instance().join("agent.sock");
        let address = format!("apportion.dev/agent-address=unix:{}", socket.display());
        let annotate = ["annotate", "node", &cluster.node(), &address, "--overwrite"];
        cluster.kubectl(&annotate).unwrap();
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        cluster.apply(&namespace).unwrap();
        let webhook = WebhookServer::start(cluster, NAMESPACE, 0, &[]);
        webhook.install(cluster);
        let scheduler = StagedProgram::scheduler(
            cluster,
            &["run", "--address", "127.0.0.1:0", "--lease-duration", "3"],
        );
        Self {
            _scheduler: scheduler,
            _webhook: webhook,
            node,
        }
    }

    fn kubectl(&self, args: &[&str]) -> String {
        self.node.cluster.kubectl(args).unwrap()
    }

    fn at(&self, pod: &str, path: &str) -> String {
        let path = format!("jsonpath={{{path}}}");
        let get = ["get", "pod", pod, "--ignore-not-found", "-o", &path];
        self.node.kubectl(&get)
    }

    fn delete(&self, file: &str) {
        let delete = [
            "delete",
            "-f",
            &path(file),
            "--ignore-not-found",
            "--grace-period=1",
        ];
        self.kubectl(&delete);
    }

    fn reaches(&self, pod: &str, phase: &str) {
        let mut last = String::new();
        eventually(&format!("{pod} is {phase}"), || {
            let now = self.at(pod, ".status.phase");
            if now != last {
                let why = self.at(pod, ".status.conditions[?(@.status==\"False\")].message");
                eprintln!("{pod}: {now} {why}");
                last.clone_from(&now);
            }
            now == phase
        });
    }

    fn runs(&self, pod: &str) {
        self.reaches(pod, "Running");
    }

    /// Waits until a container has reported that its card has `bytes` bytes.
    fn sees(&self, pod: &str, container: &str, bytes: u64) {
        let mut log = String::new();
        eventually(&format!("{pod} says how large its card is"), || {
            log = self.node.kubectl(&["logs", pod, "-c", container]);
            log.contains("nvml ")
        });
        let told: u64 = log.split_whitespace().nth(2).unwrap().parse().unwrap();
        assert!(told.abs_diff(bytes) <= MIB, "{log}: {bytes} expected");
    }

    fn group(&self, pod: &str) -> String {
        self.at(pod, ".metadata.labels.runai-gpu-group")
    }

    fn cards(&self) -> Vec<Value> {
        let text = self.kubectl(&["get", "gpunode", &self.node.cluster.node(), "-o", "json"]);
        let object: Value = serde_json::from_str(&text).unwrap();
        object["status"]["cards"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    }

    /// The card on which the node reports the pod's share.
    fn holder_card(&self, pod: &str) -> String {
        let mut uuid = None;
        eventually(&format!("{pod} shows as a holder"), || {
            let holds = |card: &&Value| {
                let holders = card["holders"].as_array().into_iter().flatten();
                holders.filter(|holder| holder["pod"] == pod).count() == 1
            };
            let cards = self.cards();
            let card = cards.iter().find(holds);
            uuid = card.and_then(|card| card["uuid"].as_str().map(str::to_owned));
            uuid.is_some()
        });
        uuid.unwrap_or_default()
    }

    /// A fraction of a card's allocatable memory.
    fn share(&self, fraction: f64) -> u64 {
        let bytes = self.cards()[0]["allocatableBytes"].as_u64().unwrap();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is compared to within a MiB"
        )]
        let share = (bytes as f64 * fraction) as u64;
        share
    }
}

impl Drop for FullStack {
    fn drop(&mut self) {
        programs::uninstall_webhook(&self.node.cluster);
        let node = self.node.cluster.node();
        let forget = ["annotate", "node", &node, "apportion.dev/agent-address-"];
        let _ = self.node.cluster.kubectl(&forget);
        let delete = ["delete", "namespace", NAMESPACE, "--wait=false"];
        let _ = self.node.cluster.kubectl(&delete);
    }
}
