//! Installing, upgrading and uninstalling the chart: pods without shares notice nothing, and running pods keep running.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use apportion_cluster::release::{ChartRelease, NAMESPACE, chart, example, free_port, succeed};
use apportion_cluster::{LocalCluster, eventually};
use apportion_reference::ProcessPrivileges;
use serde_json::{Value, json};

/// Not the default folder: there the cluster serves its own simulated cards.
const STATE: &str = "/run/apportion/one-chart";
/// The pod of examples/fraction.yaml.
const SHARED: &str = "gpu-sharing";
/// Namespace for pods that no scheduler places: only their admission matters.
const OTHERS: &str = "chart-suite-others";

/// The chart and its state.
struct ChartSuite {
    release: ChartRelease,
    /// The port of the agent.
    agent: u16,
}

impl Deref for ChartSuite {
    type Target = ChartRelease;

    fn deref(&self) -> &ChartRelease {
        &self.release
    }
}

impl ChartSuite {
    fn prepare() -> Self {
        let agent = free_port();
        let values = format!("simulatedGpus=2,tcp.port={agent}");
        let release = ChartRelease::prepare(STATE, &values, &[SHARED, "gpu-pod"]);
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OTHERS}});
        release.cluster.apply(&namespace).unwrap();
        Self { release, agent }
    }

    /// The running containers of the chart: their names and the pids of their first processes.
    fn processes(&self) -> Vec<(String, u32)> {
        let pods = self.kubectl(&["get", "pods", "-n", NAMESPACE, "-o", "json"]);
        let pods: Value = serde_json::from_str(&pods).unwrap();
        let tasks = self.cluster.ctr_command().args(["tasks", "list"]).output();
        let tasks = String::from_utf8_lossy(&tasks.unwrap().stdout).into_owned();
        let process = |container: &Value| {
            let id = container["containerID"].as_str()?;
            let (_, id) = id.split_once("://")?;
            let task = tasks.lines().find(|line| line.starts_with(id))?;
            let process = task.split_whitespace().nth(1)?.parse().ok()?;
            Some((container["name"].as_str()?.to_owned(), process))
        };
        let kinds = ["containerStatuses", "initContainerStatuses"];
        let pods = pods["items"].as_array().into_iter().flatten();
        let containers = pods.flat_map(|pod| kinds.map(|kind| &pod["status"][kind]));
        let containers = containers.filter_map(Value::as_array).flatten();
        containers.filter_map(process).collect()
    }

    fn has_kais_classes(&self) {
        let names = ["train", "build-preemptible", "build", "inference"];
        self.kubectl(&[&["get", "priorityclass"][..], &names].concat());
    }

    fn reaches(&self, pod: &str, phase: &str) {
        let mut last = String::new();
        eventually(&format!("{pod} is {phase}"), || {
            let now = self.at(pod, ".status.phase");
            let why = self.at(pod, ".status.conditions[?(@.status==\"False\")].message");
            if last != why {
                eprintln!("{pod}: {now} {why}");
                last = why;
            }
            now == phase
        });
    }

    /// Waits until the agent at `port` has published that the pod has its share.
    ///
    /// The simulated driver is a container of the agent's pod, and the running program lost it with the old agent. So
    /// the pod itself cannot be asked.
    fn is_kept_by_agent_at(&self, port: u16, share: u64) {
        let address = json!(format!("127.0.0.1:{port}"));
        eventually("the new agent knows the share", || {
            let status = &self.gpu_node()["status"];
            let cards = status["cards"].as_array().into_iter().flatten();
            let holders = cards.flat_map(|card| card["holders"].as_array().into_iter().flatten());
            let mut ours = holders.filter(|holder| holder["pod"] == SHARED);
            status["agentAddress"] == address
                && ours
                    .next()
                    .is_some_and(|holder| holder["limitBytes"] == share)
                && ours.next().is_none()
        });
        assert_eq!(self.at(SHARED, ".status.phase"), "Running");
        assert_eq!(
            self.at(SHARED, ".status.containerStatuses[0].restartCount"),
            "0"
        );
    }

    /// The size of the pod's card, as its driver reports it.
    fn told(&self) -> u64 {
        let log = self.kubectl(&["logs", SHARED]);
        let line = log.lines().find(|line| line.starts_with("nvml 0 "));
        line.and_then(|line| line.split_whitespace().nth(2))
            .unwrap()
            .parse()
            .unwrap()
    }

    /// The requests of the programs that the API server forbade.
    fn refusals(&self) -> Vec<String> {
        let logs = ["scheduler", "webhook", "agent"]
            .map(|part| self.log(part))
            .concat();
        let lines = logs
            .lines()
            .filter(|line| line.to_lowercase().contains("forbidden"));
        lines.map(str::to_owned).collect()
    }
}

impl Drop for ChartSuite {
    fn drop(&mut self) {
        let delete = ["delete", "namespace", OTHERS, "--wait=false"];
        let _ = self.cluster.kubectl(&delete);
    }
}

/// Creates pods all the time and collects refusals.
struct PodCreator {
    is_over: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    creates: JoinHandle<Vec<String>>,
}

impl PodCreator {
    /// Creates pods of others, and with `shares` also pods with a share.
    fn start(shares: bool) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let asked = Arc::new(AtomicUsize::new(0));
        let (seen, count) = (is_over.clone(), asked.clone());
        let creates = std::thread::spawn(move || {
            let cluster = LocalCluster::of_tests();
            let mut refused = Vec::new();
            let kinds = [
                ("default-scheduler", json!({})),
                ("default-scheduler", json!({"gpu-fraction": "0.5"})),
                ("kai-scheduler", json!({})),
                ("kai-scheduler", json!({"gpu-fraction": "0.5"})),
            ];
            let kinds = &kinds[..if shares { 4 } else { 3 }];
            for (number, (scheduler, annotations)) in kinds.iter().cycle().enumerate() {
                if seen.load(Ordering::Relaxed) {
                    break;
                }
                let pod = json!({"apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": format!("other-{number}"), "namespace": OTHERS, "annotations": annotations},
                    "spec": {"schedulerName": scheduler, "nodeSelector": {"nowhere": "true"},
                        "containers": [{"name": "main", "image": "none"}]}});
                if let Err(why) = cluster.apply(&pod) {
                    refused.push(format!("{scheduler} {annotations}: {why:#}"));
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
            refused
        });
        Self {
            is_over,
            asked,
            creates,
        }
    }

    fn finds_nothing_refused(self) {
        // Create some more pods of each kind after the change.
        let before = self.asked.load(Ordering::Relaxed);
        eventually("more pods are created", || {
            self.creates.is_finished() || self.asked.load(Ordering::Relaxed) >= before + 4
        });
        self.is_over.store(true, Ordering::Relaxed);
        let refused = self.creates.join().unwrap();
        let cluster = LocalCluster::of_tests();
        let all = [
            "delete",
            "pods",
            "--all",
            "-n",
            OTHERS,
            "--force",
            "--grace-period=0",
        ];
        cluster.kubectl(&all).unwrap();
        assert!(refused.is_empty(), "{refused:?}");
    }
}

#[test]
fn installing_upgrading_and_uninstalling_disturb_nobody() {
    let release = ChartSuite::prepare();
    release.install();
    release.kubectl(&["get", "queue", "default-queue"]);
    release.has_kais_classes();
    release.rolled_out();
    release.shares_are_taken("the webhook is trusted");
    runs_with_the_rights_that_are_documented(&release);
    lets_the_scheduler_write_its_own_fields_only(&release);
    release.kubectl(&["apply", "-f", &example("queues.yaml")]);
    release.kubectl(&["apply", "-f", &example("fraction.yaml")]);
    release.reaches(SHARED, "Running");
    let node = release.gpu_node();
    let all = node["status"]["cards"][0]["allocatableBytes"]
        .as_u64()
        .unwrap();
    eventually("the pod says how large its card is", || {
        release.kubectl(&["logs", SHARED]).contains("nvml 0 ")
    });
    let half = release.told();
    assert!(half.abs_diff(all / 2) <= 1 << 20, "{half} of {all}");

    upgrades_under_load(&release, half);
    lives_without_the_webhook(&release);
    assert_eq!(release.refusals(), Vec::<String>::new());
    leaves_what_runs(&release, half);
}

fn runs_with_the_rights_that_are_documented(release: &ChartSuite) {
    let processes = release.processes();
    for program in ["agent", "simulated-driver", "scheduler", "webhook"] {
        let documented = ProcessPrivileges::documented(program);
        let found = processes.iter().find(|(name, _)| name == program);
        let (_, process) = found.unwrap_or_else(|| panic!("{program}: {processes:?}"));
        let folder = format!("/proc/{process}");
        assert_eq!(
            ProcessPrivileges::of(Path::new(&folder)),
            documented,
            "{program}"
        );
    }
}

/// The suite `scheduler` covers every field. This test covers the account and the role that the chart creates.
fn lets_the_scheduler_write_its_own_fields_only(release: &ChartSuite) {
    let account = format!("--as=system:serviceaccount:{NAMESPACE}:apportion-scheduler");
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "own-fields", "namespace": OTHERS},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}});
    release.cluster.apply(&pod).unwrap();
    let patch = |patch: Value| {
        let text = patch.to_string();
        let words = ["patch", "pod", "own-fields", "-n", OTHERS, &account, "-p"];
        release.cluster.kubectl(&[&words[..], &[&text]].concat())
    };
    for refused in [
        json!({"spec": {"containers": [{"name": "main", "image": "other"}]}}),
        json!({"metadata": {"annotations": {"note": "1"}}}),
    ] {
        let said = format!("{:#}", patch(refused).unwrap_err());
        assert!(said.contains("apportion-scheduler-own-fields"), "{said}");
    }
    patch(json!({"metadata": {"labels": {"runai-gpu-group": "GPU-0"}}})).unwrap();
    let delete = ["delete", "pod", "own-fields", "-n", OTHERS, "--now"];
    release.kubectl(&delete);
}

fn upgrades_under_load(release: &ChartSuite, half: u64) {
    let load = PodCreator::start(true);
    let agent = free_port();
    let more = format!("tcp.port={agent},scheduler.port={}", free_port());
    let upgrade = [
        "upgrade",
        "apportion",
        &chart(),
        "--reuse-values",
        "--set",
        &more,
    ];
    succeed(&mut release.helm(&upgrade));
    release.rolled_out();
    release.has_kais_classes();
    load.finds_nothing_refused();
    release.is_kept_by_agent_at(agent, half);
    release.kubectl(&["apply", "-f", &example("memory.yaml")]);
    release.reaches("gpu-pod", "Succeeded");
    release.kubectl(&["delete", "-f", &example("memory.yaml")]);
}

fn lives_without_the_webhook(release: &ChartSuite) {
    let load = PodCreator::start(false);
    let selector = [
        "-l",
        "app.kubernetes.io/name=apportion-webhook",
        "-n",
        NAMESPACE,
    ];
    let kill = ["delete", "pod", "--force", "--grace-period=0"];
    release.kubectl(&[&kill[..], &selector].concat());
    release.shares_are_taken("another webhook answers");

    let kind = "mutatingwebhookconfiguration";
    let trusted = "jsonpath={.webhooks[*].clientConfig.caBundle}";
    let trusted = ["get", kind, "apportion-admission", "-o", trusted];
    let before = release.kubectl(&trusted);
    release.kubectl(&["delete", "secret", "apportion-webhook-tls", "-n", NAMESPACE]);
    eventually("another authority is trusted", || {
        release.kubectl(&trusted) != before
    });
    release.shares_are_taken("the new certificate is shown");
    load.finds_nothing_refused();
}

fn leaves_what_runs(release: &ChartSuite, half: u64) {
    let load = PodCreator::start(false);
    succeed(&mut release.helm(&["uninstall", "apportion", "--wait"]));
    load.finds_nothing_refused();
    assert_eq!(release.at(SHARED, ".status.phase"), "Running");
    let kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations,validatingadmissionpolicies,\
         clusterroles,clusterrolebindings,priorityclasses,all,roles,rolebindings,secrets,configmaps,leases,\
         serviceaccounts,poddisruptionbudgets";
    let selector = "app.kubernetes.io/instance=apportion";
    let left = ["get", kinds, "-A", "-l", selector, "-o", "name"];
    eventually("nothing is left of the release", || {
        release.kubectl(&left).is_empty()
    });
    let home = ["get", "secrets,leases", "-n", NAMESPACE, "-o", "name"];
    assert_eq!(release.kubectl(&home), "");
    release.kubectl(&["get", "queue", "default-queue"]);

    release.install();
    release.rolled_out();
    release.is_kept_by_agent_at(release.agent, half);
}
