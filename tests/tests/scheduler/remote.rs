//! Agents over TCP: certificates, their rotation, and schedulers that have lost the lease.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use apportion_proto::v1;
use apportion_tests::{MIB, cards, eventually};
use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE, placed, pod};

fn over_tcp(nodes: &[&str], options: &[&str]) -> Cluster {
    let mut cluster = Cluster::bare();
    cluster.add_agents();
    cluster.options = options.iter().map(|option| (*option).to_owned()).collect();
    for node in nodes {
        cluster.add_remote_node(node, &cards(2));
    }
    cluster.start_scheduler();
    cluster
}

fn halves(prefix: &str, count: usize) -> Vec<Value> {
    (0..count)
        .map(|number| {
            pod(
                &format!("{prefix}-{number}"),
                json!({"gpu-fraction": "0.5"}),
            )
        })
        .collect()
}

fn address(cluster: &Cluster, node: &str) -> String {
    let path = "-o=jsonpath={.status.agentAddress}";
    cluster.plane.kubectl(&["get", "gpunode", node, path])
}

/// Waits for a line of the scheduler's log with all of these parts.
fn logged(cluster: &Cluster, parts: &[&str]) -> String {
    let mut found = None;
    eventually(PATIENCE, &format!("the scheduler says {parts:?}"), || {
        let log = cluster.whole_log();
        let mut lines = log.lines().rev();
        found = lines
            .find(|line| parts.iter().all(|part| line.contains(part)))
            .map(str::to_owned);
        found.is_some()
    });
    found.unwrap_or_default()
}

#[test]
fn pods_are_placed_across_nodes_whose_agents_are_elsewhere() {
    let mut cluster = over_tcp(&["node-1", "node-2", "node-3"], &[]);
    cluster.plane.apply(&halves("first", 11));
    cluster.bound(11);
    let held = |cluster: &Cluster| -> usize {
        let nodes = cluster.nodes.keys();
        let held = nodes.map(|node| cluster.granted(node).values().flatten().count());
        held.sum()
    };
    assert_eq!(held(&cluster), 11);
    // The certificate is kept: a restarted agent needs no new one.
    let requests = cluster.plane.all("csr").len();
    let node = cluster.nodes.get_mut("node-2").expect("it is there");
    node.replace_agent();
    cluster.plane.apply(&halves("last", 1));
    cluster.bound(12);
    assert_eq!(held(&cluster), 12);
    assert_eq!(cluster.plane.all("csr").len(), requests);
    // Each request was answered once.
    let log = cluster.whole_log();
    let count = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count("Agent certificate signed"), requests, "{log}");
    assert_eq!(count("Failed to answer a CertificateSigningRequest"), 0);
}

#[test]
fn one_nodes_agent_is_not_taken_for_anothers() {
    let cluster = over_tcp(&["node-1"], &[]);
    cluster.plane.apply(&halves("first", 1));
    cluster.bound(1);
    let elsewhere = address(&cluster, "node-1");
    cluster.add_named_node("node-2", &elsewhere);
    let line = logged(&cluster, &["Agent unreachable", "node-2"]);
    for part in [
        "not valid for name",
        "node-2.agent.apportion.dev",
        "hint: another program listens",
    ] {
        assert!(line.contains(part), "{line}");
    }
    cluster.plane.apply(&halves("more", 5));
    let bound = cluster.bound(4);
    assert_eq!(bound.len(), 4, "node-1 has two cards, node-2 has none");
}

/// Connects to an agent over TLS, with a certificate and its key or without.
fn knock(address: &str, files: Option<(&str, &str)>) {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", address, "-alpn", "h2"]);
    if let Some((certificate, key)) = files {
        command.args(["-cert", certificate, "-key", key]);
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl starts");
    eventually(PATIENCE, "the connection ends", || {
        child.try_wait().expect("it is our child").is_some()
    });
}

#[test]
fn nobody_but_the_scheduler_may_ask() {
    let cluster = over_tcp(&["node-1", "node-2"], &[]);
    cluster.plane.apply(&halves("first", 1));
    cluster.bound(1);
    let to = address(&cluster, "node-1");
    // On a busy machine a handshake may take longer than the agent's timeout.
    let is_refused = |files: Option<(&str, &str)>, hint: &str| {
        let host = &cluster.nodes["node-1"].host;
        eventually(PATIENCE, &format!("the agent says: {hint}"), || {
            knock(&to, files);
            host.agent_log().contains(hint)
        });
    };
    is_refused(None, "only the scheduler may connect here");
    // Another node's agent has a serving certificate of the same CA.
    let host = &cluster.nodes["node-2"].host;
    let mut held = Value::Null;
    eventually(PATIENCE, "the other agent has its certificate", || {
        let read = std::fs::read(host.instance().join("certificate.json"));
        let read = read
            .ok()
            .and_then(|read| serde_json::from_slice(&read).ok());
        held = read.unwrap_or_default();
        held["certificate"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    });
    let file = |name: &str| {
        let path = host.dir().join(name);
        std::fs::write(&path, held[name].as_str().unwrap_or_default()).expect("it is writable");
        path.display().to_string()
    };
    let (certificate, key) = (file("certificate"), file("key"));
    is_refused(Some((&certificate, &key)), "a scheduler's for a TLS client");
}

#[test]
fn a_certificate_is_for_agents_only() {
    let cluster = over_tcp(&["node-1"], &[]);
    let path = |name: &str| cluster.plane.dir().join(name).display().to_string();
    let made = Command::new("openssl")
        .args(["req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj"])
        .args(["/CN=node-1.agent.apportion.dev", "-keyout", &path("key")])
        .args(["-out", &path("csr")])
        .stderr(Stdio::null())
        .status();
    assert!(made.is_ok_and(|made| made.success()));
    let request = std::fs::read(path("csr")).expect("it was made");
    cluster.plane.apply(&[json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "pretender"},
        "spec": {"signerName": "apportion.dev/agent", "request": base64(&request),
            "usages": ["digital signature", "server auth"]}})]);
    eventually(PATIENCE, "the request is refused", || {
        let all = cluster.plane.all("csr");
        let mut pretender = all
            .iter()
            .filter(|one| one["metadata"]["name"] == "pretender");
        pretender.any(|one| {
            let condition = &one["status"]["conditions"][0];
            let message = condition["message"].as_str().unwrap_or_default();
            condition["type"] == "Denied" && message.contains("everybody is not system:service")
        })
    });
}

fn base64(bytes: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), bytes).expect("it is writable");
    let output = Command::new("base64").arg("-w0").arg(file.path()).output();
    String::from_utf8(output.expect("base64 starts").stdout).expect("it is text")
}

fn authority(cluster: &Cluster) -> String {
    let path = "-o=jsonpath={.data.ca\\.crt}";
    cluster
        .plane
        .kubectl(&["get", "secret", "apportion-authority", path])
}

#[test]
fn certificates_change_under_load_and_nobody_is_refused() {
    let mut cluster = over_tcp(&["node-1", "node-2"], &["--certificate-life", "16"]);
    cluster.plane.apply(&halves("start", 1));
    cluster.bound(1);
    let before = authority(&cluster);
    let began = Instant::now();
    let mut round = 0;
    // A CA lives for four certificate lifetimes. When two are left, the next CA is made. It signs a quarter of a
    // lifetime later.
    while authority(&cluster) == before || began.elapsed() < Duration::from_secs(40) {
        assert!(
            began.elapsed() < PATIENCE * 3,
            "no other authority: {}",
            cluster.said()
        );
        round += 1;
        let name = format!("round-{round}");
        cluster
            .plane
            .apply(&[pod(&name, json!({"gpu-fraction": "0.01"}))]);
        cluster.eventually("the pod is bound", |pods| {
            placed(pods).contains_key(&name).then_some(())
        });
        // This makes a new connection, from either side.
        if round % 8 == 0 {
            cluster.kill_scheduler();
            cluster.start_scheduler();
        } else if round % 2 == 0 {
            let names = ["node-1", "node-2"];
            let node = cluster.nodes.get_mut(names[round / 2 % 2]);
            node.expect("it is there").replace_agent();
        }
    }
    let log = cluster.whole_log();
    for wrong in ["UnknownIssuer", "certificate expired", "fatal alert"] {
        assert!(!log.contains(wrong), "{wrong}: {log}");
    }
    let signed = cluster.plane.all("csr").len();
    assert!(signed >= 4, "each agent asked again, {signed} requests");
}

/// Calls a node's agent over its Unix socket, as the scheduler with this term.
fn ask<T>(
    cluster: &Cluster,
    node: &str,
    term: Option<u64>,
    request: impl AsyncFnOnce(
        v1::agent_client::AgentClient<
            tonic::service::interceptor::InterceptedService<
                tonic::transport::Channel,
                TermInterceptor,
            >,
        >,
    ) -> T,
) -> T {
    let socket = cluster.nodes[node].host.instance().join("agent.sock");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let channel = apportion_proto::channel(&socket).await;
        let channel = channel.expect("the agent answers");
        request(v1::agent_client::AgentClient::with_interceptor(
            channel,
            TermInterceptor(term),
        ))
        .await
    })
}

#[derive(Clone)]
struct TermInterceptor(Option<u64>);

impl tonic::service::Interceptor for TermInterceptor {
    fn call(
        &mut self,
        mut request: tonic::Request<()>,
    ) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(term) = self.0 {
            request
                .metadata_mut()
                .insert(apportion_proto::identity::TERM, term.into());
        }
        Ok(request)
    }
}

fn allocation(cluster: &Cluster, node: &str, key: &str) -> v1::AllocateRequest {
    v1::AllocateRequest {
        idempotency_key: key.to_owned(),
        name: format!("default/{key}"),
        shares: vec![v1::Share {
            card: cluster.cards(node).remove(0),
            bytes: 100 * MIB,
            limit_bytes: 0,
        }],
        ttl_ms: 0,
        ..v1::AllocateRequest::default()
    }
}

#[test]
fn a_scheduler_that_lost_the_lease_is_refused_by_agents() {
    let mut cluster = over_tcp(&["node-1"], &[]);
    cluster.plane.apply(&halves("first", 1));
    cluster.bound(1);
    let known = cluster.nodes["node-1"].host.instance().join("term");
    let term = std::fs::read_to_string(known).expect("the agent heard of it");
    let term: u64 = term.trim().parse().expect("a number");
    let allocate = |cluster: &Cluster, term| {
        let wanted = allocation(cluster, "node-1", "stale");
        ask(cluster, "node-1", term, async |mut agent| {
            agent.allocate(wanted).await.map(|_| ())
        })
    };
    let refused = allocate(&cluster, Some(term - 1)).expect_err("it is stale");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().contains("has lost the lease"));
    let node = cluster.nodes.get_mut("node-1").expect("it is there");
    node.replace_agent();
    let refused = allocate(&cluster, Some(term - 1)).expect_err("the next agent knows");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    allocate(&cluster, Some(term)).expect("the one that leads may");
    // Another scheduler becomes leader, and the previous term is over.
    cluster.kill_scheduler();
    cluster.start_scheduler();
    cluster.plane.apply(&halves("second", 1));
    cluster.bound(2);
    allocate(&cluster, Some(term)).expect_err("it leads no more");
}

#[test]
fn what_is_asked_twice_is_done_once() {
    let mut cluster = over_tcp(&["node-1"], &[]);
    // A running scheduler would release an allocation of a missing pod.
    cluster.kill_scheduler();
    let wanted = allocation(&cluster, "node-1", "twice");
    let holder = Some(v1::Holder {
        kind: Some(v1::holder::Kind::PodUid("twice".to_owned())),
    });
    ask(&cluster, "node-1", None, async |mut agent| {
        let mut ids = Vec::new();
        for _ in 0..2 {
            let reply = agent.allocate(wanted.clone()).await;
            let reply = reply.expect("there is room").into_inner();
            let Some(v1::allocate_reply::Result::Allocation(made)) = reply.result else {
                panic!("{reply:?}");
            };
            let commit = v1::CommitRequest {
                id: made.id.clone(),
                holder: holder.clone(),
            };
            agent.commit(commit).await.expect("it is there");
            ids.push(made.id);
        }
        assert_eq!(ids[0], ids[1]);
        let other = v1::AllocateRequest {
            name: "default/other".to_owned(),
            ..wanted
        };
        let reused = agent.allocate(other).await.expect_err("the key is taken");
        assert_eq!(reused.code(), tonic::Code::AlreadyExists);
        for _ in 0..2 {
            let id = ids[0].clone();
            let released = agent.release(v1::ReleaseRequest { id }).await;
            assert!(released.expect("gone is gone").into_inner().gone);
        }
    });
}
