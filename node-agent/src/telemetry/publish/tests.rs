//! Tests against an API server that accepts only the expected calls.

use std::pin::pin;

use hyper::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock::{self, Handle};

use super::*;

type Server = Handle<Request<Body>, Response<Body>>;

fn cluster() -> (Client, Server) {
    let (service, server) = mock::pair();
    (Client::new(service, "default"), server)
}

/// Takes the next call, which must be this one, answers it, and returns its body.
async fn expect(
    server: &mut std::pin::Pin<&mut Server>,
    call: (Method, &str),
    answer: Value,
) -> Value {
    let (request, respond) = server.next_request().await.expect("no call came");
    let (method, uri) = (request.method().clone(), request.uri().to_string());
    assert_eq!((method, uri.as_str()), call);
    let body = request.into_body().collect_bytes().await.unwrap();
    let answer = serde_json::to_vec(&answer).unwrap();
    respond.send_response(Response::new(Body::from(answer)));
    serde_json::from_slice(&body).unwrap_or(Value::Null)
}

fn gpu_node(status: Value) -> Value {
    json!({
        "apiVersion": "apportion.dev/v1alpha1", "kind": "GpuNode",
        "metadata": { "name": "n1" }, "spec": {}, "status": status,
    })
}

fn node() -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1", "uid": "u-1" } })
}

fn a_card() -> GpuNodeStatus {
    let ready = json!({
        "agentVersion": "1",
        "cards": [{
            "uuid": "GPU-1", "model": "A", "index": 0, "memoryBytes": 0, "reservedBytes": 0,
            "allocatableBytes": 8 << 20, "allocatedBytes": 2 << 20, "freeBytes": 6 << 20,
            "usedBytes": 0, "unmanagedBytes": 0, "health": "Healthy",
        }],
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "Serving", "message": "",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }],
    });
    serde_json::from_value(ready).unwrap()
}

const GPU_NODE: &str =
    "/apis/apportion.dev/v1alpha1/gpunodes/n1?&force=true&fieldManager=apportion-agent";
const GPU_NODE_STATUS: &str =
    "/apis/apportion.dev/v1alpha1/gpunodes/n1/status?&force=true&fieldManager=apportion-agent";
const NODE_STATUS: &str = "/api/v1/nodes/n1/status?";

#[tokio::test]
async fn the_object_is_made_once_and_owned_by_its_node() {
    let (client, server) = cluster();
    let serve = async {
        let mut server = pin!(server);
        expect(&mut server, (Method::GET, "/api/v1/nodes/n1"), node()).await;
        let old = json!({ "conditions": [{
            "type": "Ready", "status": "True", "reason": "Serving", "message": "",
            "lastTransitionTime": "2026-01-02T03:04:05Z",
        }]});
        let made = expect(&mut server, (Method::PATCH, GPU_NODE), gpu_node(old)).await;
        assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "u-1");
        for _ in 0..2 {
            let call = (Method::PATCH, GPU_NODE_STATUS);
            let written = expect(&mut server, call, gpu_node(json!({}))).await;
            assert_eq!(written["status"]["cards"][0]["allocatedBytes"], 2 << 20);
            let since = &written["status"]["conditions"][0]["lastTransitionTime"];
            assert_eq!(since, "2026-01-02T03:04:05Z");
            assert!(written["status"]["lastHeartbeatTime"].is_string());
            let node = expect(&mut server, (Method::PATCH, NODE_STATUS), node()).await;
            let free = &node["status"]["capacity"]["apportion.dev/gpu-memory-free-mib"];
            assert_eq!(free, "6");
            for kind in ["capacity", "allocatable"] {
                let of = &node["status"][kind];
                let counted = &of["apportion.dev/gpu-share-mib"];
                assert_eq!(counted, &of["apportion.dev/gpu-memory-mib"]);
                assert!(of["apportion.dev/gpu-share-micro"].is_string(), "{of}");
            }
        }
    };
    let write = async {
        let mut remote = GpuNodePublisher::new(client, "n1".to_owned());
        remote.write(&a_card()).await.unwrap();
        remote.write(&a_card()).await.unwrap();
    };
    tokio::join!(serve, write);
}

#[tokio::test]
async fn resources_are_written_again_only_if_somebody_changed_them() {
    let (client, server) = cluster();
    let shown = |memory: &str| {
        let of = json!({"apportion.dev/gpu-memory-mib": memory, "apportion.dev/gpu-memory-free-mib": "6",
            "apportion.dev/gpu-share-mib": "8", "apportion.dev/gpu-share-micro": "32984k"});
        let mut node = node();
        node["status"] = json!({"capacity": of, "allocatable": of});
        node
    };
    let cached = (Method::GET, "/api/v1/nodes/n1?&resourceVersion=0");
    let serve = async {
        let mut server = pin!(server);
        for memory in ["8", "0"] {
            expect(&mut server, cached.clone(), shown(memory)).await;
        }
        let written = expect(&mut server, (Method::PATCH, NODE_STATUS), node()).await;
        let memory = &written["status"]["capacity"]["apportion.dev/gpu-memory-mib"];
        assert_eq!(memory, "8");
    };
    let check = async {
        let remote = GpuNodePublisher::new(client, "n1".to_owned());
        assert!(!remote.restore_resources(&a_card()).await.unwrap());
        assert!(remote.restore_resources(&a_card()).await.unwrap());
    };
    tokio::join!(serve, check);
}

#[tokio::test]
async fn an_object_that_somebody_removed_is_made_again() {
    let (client, server) = cluster();
    let serve = async {
        let mut server = pin!(server);
        for is_gone in [true, false] {
            expect(&mut server, (Method::GET, "/api/v1/nodes/n1"), node()).await;
            expect(&mut server, (Method::PATCH, GPU_NODE), gpu_node(json!({}))).await;
            if is_gone {
                let (_, respond) = server.next_request().await.unwrap();
                let gone = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 });
                let gone = Response::builder()
                    .status(404)
                    .body(Body::from(gone.to_string().into_bytes()));
                respond.send_response(gone.unwrap());
            }
        }
        expect(
            &mut server,
            (Method::PATCH, GPU_NODE_STATUS),
            gpu_node(json!({})),
        )
        .await;
        expect(&mut server, (Method::PATCH, NODE_STATUS), node()).await;
    };
    let write = async {
        let mut remote = GpuNodePublisher::new(client, "n1".to_owned());
        assert!(remote.write(&a_card()).await.is_err());
        remote.write(&a_card()).await.unwrap();
    };
    tokio::join!(serve, write);
}

#[tokio::test]
async fn the_very_pod_of_an_offender_is_evicted() {
    let (client, server) = cluster();
    let event = v1::Event {
        kind: v1::EventKind::Evicted.into(),
        allocation: "a-1".to_owned(),
        name: "team-a/train/main".to_owned(),
        ..v1::Event::default()
    };
    let other = v1::Event {
        kind: v1::EventKind::Bypassed.into(),
        ..event.clone()
    };
    let list = v1::ListReply {
        allocations: vec![v1::Allocation {
            id: "a-1".to_owned(),
            holder: Some(v1::Holder {
                kind: Some(v1::holder::Kind::PodUid("p-1".to_owned())),
            }),
            ..v1::Allocation::default()
        }],
        ..v1::ListReply::default()
    };
    let serve = async {
        let mut server = pin!(server);
        let path = "/api/v1/namespaces/team-a/pods/train/eviction?";
        let answer = json!({"kind": "Status", "apiVersion": "v1", "status": "Success"});
        let asked = expect(&mut server, (Method::POST, path), answer).await;
        assert_eq!(asked["deleteOptions"]["preconditions"]["uid"], "p-1");
        assert!(
            server.next_request().await.is_none(),
            "it was asked for more"
        );
    };
    let evict = async {
        eviction::evict(&client, &other, &list).await;
        eviction::evict(&client, &event, &list).await;
        drop(client);
    };
    tokio::join!(serve, evict);
}

#[tokio::test]
async fn a_pod_that_bypasses_its_limit_is_told_once() {
    let (client, server) = cluster();
    let event = v1::Event {
        kind: v1::EventKind::Bypassed.into(),
        allocation: "a-1".to_owned(),
        name: "team-a/train/main".to_owned(),
        card: "GPU-1".to_owned(),
        message: "Process bypasses accounting, and its allocation exceeds its limit".to_owned(),
        ..v1::Event::default()
    };
    let list = v1::ListReply {
        allocations: vec![v1::Allocation {
            id: "a-1".to_owned(),
            holder: Some(v1::Holder {
                kind: Some(v1::holder::Kind::PodUid("p-1".to_owned())),
            }),
            ..v1::Allocation::default()
        }],
        ..v1::ListReply::default()
    };
    let serve = async {
        let mut server = pin!(server);
        let (request, respond) = server.next_request().await.unwrap();
        let path = request.uri().path().to_owned();
        assert_eq!(path, "/apis/events.k8s.io/v1/namespaces/team-a/events");
        let body = request.into_body().collect_bytes().await.unwrap();
        let told: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(told["regarding"]["uid"], "p-1");
        assert_eq!(told["reason"], "GpuLimitBypassed");
        respond.send_response(Response::new(Body::from(body.to_vec())));
        assert!(server.next_request().await.is_none(), "it was told twice");
    };
    let publish = async {
        let mut teller = events::EventPublisher::new(client, "n1".to_owned());
        for _ in 0..3 {
            teller.publish(&event, &list).await;
        }
    };
    tokio::join!(serve, publish);
}

#[tokio::test]
async fn a_pod_is_told_when_it_sleeps_for_others_and_why_it_cannot_sleep_but_not_that_it_is_idle() {
    let (client, server) = cluster();
    let event = |kind: v1::EventKind, message: &str| v1::Event {
        kind: kind.into(),
        allocation: "a-1".to_owned(),
        name: "team-a/serve".to_owned(),
        message: message.to_owned(),
        ..v1::Event::default()
    };
    let told = [
        ("GpuMemorySuspended", "Allocation suspended: 5900 MiB"),
        ("GpuMemoryResumed", "Allocation resumed: 5900 MiB"),
        (
            "GpuMemoryStaysAwake",
            "Share is not suspended when idle: driver 550",
        ),
    ];
    let serve = async {
        let mut server = pin!(server);
        for (reason, note) in told {
            let (request, respond) = server.next_request().await.unwrap();
            let body = request.into_body().collect_bytes().await.unwrap();
            let event: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(event["regarding"]["name"], "serve");
            assert_eq!(
                (&event["reason"], &event["note"]),
                (&reason.into(), &note.into())
            );
            respond.send_response(Response::new(Body::from(body.to_vec())));
        }
        assert!(server.next_request().await.is_none(), "that is all");
    };
    let publish = async {
        let mut teller = events::EventPublisher::new(client, "n1".to_owned());
        let list = v1::ListReply::default();
        for quiet in [v1::EventKind::Idle, v1::EventKind::Called] {
            teller.publish(&event(quiet, "it is idle"), &list).await;
        }
        let kinds = [
            v1::EventKind::Suspended,
            v1::EventKind::Resumed,
            v1::EventKind::StaysAwake,
        ];
        for (kind, (_, note)) in kinds.into_iter().zip(told) {
            teller.publish(&event(kind, note), &list).await;
        }
    };
    tokio::join!(serve, publish);
}
