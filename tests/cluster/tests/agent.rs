//! The agent as installed by the chart: it finds its cards, publishes them, and may write nothing else.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use apportion_cluster::{LocalCluster, eventually, image};
use serde_json::{Value, json};

const NAMESPACE: &str = "apportion-system";
/// Not the default folder: there the cluster serves its own simulated cards.
const STATE: &str = "/run/apportion/chart";

/// The pod with a share.
const SHARED: &str = "shared";
const LIMIT: u64 = 2000 << 20;

/// The installed chart. Dropping this uninstalls it.
struct AgentRelease {
    cluster: LocalCluster,
    port: u16,
}

impl AgentRelease {
    fn install() -> Self {
        let cluster = LocalCluster::of_tests();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        drop(listener);
        let release = Self { cluster, port };
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/chart/apportion");
        let (repository, tag) = image::AGENT.rsplit_once(':').expect("the image has a tag");
        let apiserver = release.cluster.apiserver_port();
        let values = format!(
            "scheduler.enabled=false,webhook.enabled=false,\
             simulatedGpus=2,slots.unplaced=local-fit,hostNetwork=true,stateDir={STATE},metrics.port={port},\
             image.repository={repository},image.tag={tag},image.pullPolicy=Never"
        );
        // There is no service network, so the cluster's own address would lead nowhere.
        let way = format!(
            "env[0].name=KUBERNETES_SERVICE_HOST,env[0].value=127.0.0.1,\
             env[1].name=KUBERNETES_SERVICE_PORT,env[1].value={apiserver}"
        );
        let ready = release.cluster.wait_for_deletion(NAMESPACE);
        ready.expect("the namespace of the suite before is gone");
        let mut helm = release.cluster.helm_command();
        helm.args(["install", "apportion"]).arg(&chart);
        helm.args([
            "--namespace",
            NAMESPACE,
            "--create-namespace",
            "--set",
            &values,
        ]);
        helm.args(["--set-string", &way]);
        succeed(&mut helm);
        release
    }

    fn kubectl(&self, args: &[&str]) -> String {
        self.cluster.kubectl(args).expect("kubectl succeeds")
    }

    fn gpu_node(&self) -> Option<Value> {
        let node = self.cluster.node();
        let text = self
            .cluster
            .kubectl(&["get", "gpunode", &node, "-o", "json"]);
        serde_json::from_str(&text.ok()?).ok()
    }

    /// The agent's only pod.
    fn pod(&self) -> String {
        let selector = "app.kubernetes.io/name=apportion-agent";
        let name = "jsonpath={.items[0].metadata.name}";
        self.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", selector, "-o", name])
    }

    fn is_ready(&self) -> bool {
        let ready = "jsonpath={.status.numberReady}";
        let set = [
            "get",
            "daemonset",
            "apportion-agent",
            "-n",
            NAMESPACE,
            "-o",
            ready,
        ];
        self.kubectl(&set) == "1"
    }

    fn metrics(&self) -> String {
        let mut answer = String::new();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it is served");
        stream
            .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
            .expect("the agent reads");
        stream
            .read_to_string(&mut answer)
            .expect("the agent answers");
        answer
    }

    /// Creates a pod with a share of 2000 MiB that prints the size of its card and keeps a context.
    fn pod_with_a_share(&self) {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": SHARED, "annotations": {"gpu-memory": "2000"}},
            "spec": {
                "hostNetwork": true,
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main",
                    "image": image::VICTIM,
                    "imagePullPolicy": "Never",
                    "command": ["victim", "total", "alloc", "1000M", "alloc", "1000M", "hold"],
                    "resources": {"limits": {"apportion.dev/gpu-slot": 1}},
                }],
            },
        });
        self.cluster
            .apply(&pod)
            .expect("the API server takes the pod");
    }

    /// The API server's answer to a request with the agent's token.
    fn as_agent(&self, pod: &str, args: &[&str], object: &str) -> Output {
        let uid = "jsonpath={.metadata.uid}";
        let uid = self.kubectl(&["get", "pod", pod, "-n", NAMESPACE, "-o", uid]);
        let bound = ["--bound-object-kind=Pod", "--bound-object-name", pod];
        let mut create = vec!["create", "token", "apportion-agent", "-n", NAMESPACE];
        create.extend(bound);
        create.extend(["--bound-object-uid", &uid]);
        let token = self.kubectl(&create);
        let authority = self.cluster.folder().path().join("certificates/ca.crt");
        let mut kubectl = self.cluster.kubectl_command();
        kubectl
            .env("KUBECONFIG", "/dev/null")
            .arg(format!(
                "--server=https://127.0.0.1:{}",
                self.cluster.apiserver_port()
            ))
            .arg(format!("--certificate-authority={}", authority.display()))
            .arg(format!("--token={}", token.trim()))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = kubectl.spawn().expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        stdin.write_all(object.as_bytes()).expect("kubectl reads");
        drop(stdin);
        child.wait_with_output().expect("kubectl ends")
    }
}

impl Drop for AgentRelease {
    fn drop(&mut self) {
        let mut helm = self.cluster.helm_command();
        let _ = helm
            .args(["uninstall", "apportion", "--namespace", NAMESPACE, "--wait"])
            .status();
        let _ = self.cluster.kubectl(&["delete", "gpunodes", "--all"]);
        let _ = self
            .cluster
            .kubectl(&["delete", "pod", SHARED, "--now", "--ignore-not-found"]);
    }
}

fn succeed(command: &mut Command) {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

#[test]
fn the_installed_agent_publishes_what_its_node_has_and_may_say_no_more() {
    let release = AgentRelease::install();
    eventually("the agent is ready", || release.is_ready());
    let ready = |node: &Value| node["status"]["conditions"][0].clone();
    eventually("the node's cards are published", || {
        release
            .gpu_node()
            .is_some_and(|node| ready(&node)["status"] == "True")
    });
    let published = release.gpu_node().expect("it was there");
    let cards = published["status"]["cards"].as_array().expect("cards");
    assert_eq!(cards.len(), 2);
    assert_eq!(published["metadata"]["ownerReferences"][0]["kind"], "Node");
    assert!(
        release
            .metrics()
            .contains("apportion_gpu_healthy{gpu_uuid=")
    );
    let all = published["status"]["cards"][0]["freeBytes"].as_i64();

    let slots = "jsonpath={.status.allocatable.apportion\\.dev/gpu-slot}";
    let node = release.cluster.node();
    eventually("the node offers slots", || {
        release.kubectl(&["get", "node", &node, "-o", slots]) == "128"
    });
    release.pod_with_a_share();
    eventually("the pod has said how large its card is", || {
        let log = release
            .cluster
            .kubectl(&["logs", SHARED])
            .unwrap_or_default();
        log.contains(&format!("total 0 {LIMIT}")) && log.contains("alloc 2")
    });
    eventually("the share shows", || {
        let node = release.gpu_node().unwrap_or_default();
        let cards = node["status"]["cards"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let holders = cards
            .iter()
            .flat_map(|card| card["holders"].as_array().cloned());
        let mut holders = holders.flatten();
        holders.any(|holder| {
            holder["namespace"] == "default"
                && holder["pod"] == SHARED
                && holder["limitBytes"] == LIMIT
        })
    });
    eventually("the node shows less", || {
        let what = "jsonpath={.status.capacity.apportion\\.dev/gpu-memory-free-mib}";
        let free = release.kubectl(&["get", "node", &release.cluster.node(), "-o", what]);
        let whole = all.map(|bytes| 2 * (bytes >> 20)).unwrap_or_default();
        free.parse() == Ok(whole - 2000)
    });

    let series =
        format!("apportion_container_memory_limit_bytes{{namespace=\"default\",pod=\"{SHARED}\"");
    assert!(release.metrics().contains(&series));
    assert!(release.metrics().contains("apportion_nri_connected 1"));

    // The published node does not change while another agent takes over.
    let since = ready(&published)["lastTransitionTime"].clone();
    let first = release.pod();
    release.kubectl(&["delete", "pod", &first, "-n", NAMESPACE, "--wait"]);
    eventually("a new agent is ready", || {
        release.is_ready() && release.pod() != first
    });
    let node = release.gpu_node().expect("it outlives the agent");
    assert_eq!(ready(&node)["lastTransitionTime"], since);

    let pod = release.pod();
    let foreign = r#"{"apiVersion":"apportion.dev/v1alpha1","kind":"GpuNode","metadata":{"name":"other"},"spec":{}}"#;
    let denied = release.as_agent(&pod, &["create", "-f", "-"], foreign);
    let said = String::from_utf8_lossy(&denied.stderr);
    assert!(
        said.contains("may change objects of that node only"),
        "{said}"
    );
    let secrets = release.as_agent(&pod, &["get", "secrets", "-A"], "");
    assert!(!secrets.status.success(), "the agent reads secrets");
}
