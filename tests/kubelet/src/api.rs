//! An API server with what a DRA driver reads and writes: ResourceClaims, their pods, ResourceSlices and a node. It
//! knows nothing else, and it can be slow.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;

type Body = BoxBody<Bytes, Infallible>;

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

/// The server. Dropping this ends it.
#[derive(Debug)]
pub struct ApiServer {
    state: ApiState,
    server: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct ApiState {
    objects: Arc<Mutex<ApiObjects>>,
    events: broadcast::Sender<Value>,
    /// How long each answer takes, in milliseconds.
    delay: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct ApiObjects {
    /// By namespace and name.
    claims: BTreeMap<String, Value>,
    /// By namespace and name.
    pods: BTreeMap<String, Value>,
    /// By name.
    slices: BTreeMap<String, Value>,
    /// How often a slice was written.
    writes: usize,
    /// The UIDs of pods whose eviction was asked for.
    evictions: Vec<String>,
}

impl ApiServer {
    /// Serves, and writes a kubeconfig to this path.
    ///
    /// # Panics
    /// If it cannot listen or write.
    pub async fn listen(kubeconfig: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        std::fs::write(kubeconfig, config.to_string()).expect("the folder is writable");
        let state = ApiState {
            objects: Arc::default(),
            events: broadcast::channel(64).0,
            delay: Arc::default(),
        };
        let served = state.clone();
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let served = served.clone();
                let service = service_fn(move |request| {
                    let served = served.clone();
                    async move { Ok::<_, Infallible>(served.answer(request).await) }
                });
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { state, server }
    }

    /// Adds a claim that a scheduler has allocated: for each result the device and its memory. The pods have reserved
    /// it.
    pub fn has_claim(&self, uid: &str, name: &str, results: &[(&str, &str)], pods: &[&str]) {
        let result = |(number, (device, memory)): (usize, &(&str, &str))| {
            json!({
                "request": format!("r{number}"), "driver": "gpu.apportion.dev", "pool": "node-1",
                "device": device, "consumedCapacity": {"memory": memory},
                "shareID": format!("00000000-0000-4000-8000-{number:012}"),
            })
        };
        let results: Vec<Value> = results.iter().enumerate().map(result).collect();
        let reserved = pods
            .iter()
            .map(|pod| json!({"resource": "pods", "name": pod, "uid": pod}));
        let reserved: Vec<Value> = reserved.collect();
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "team", "uid": uid},
            "spec": {},
            "status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved},
        });
        self.state
            .objects()
            .claims
            .insert(format!("team/{name}"), claim);
    }

    /// Deletes a claim. Nobody is told.
    pub fn loses_claim(&self, name: &str) {
        self.state.objects().claims.remove(&format!("team/{name}"));
    }

    /// Adds a pending pod of the namespace `team`. Its name is its UID. A Job may control it.
    pub fn has_pod(&self, name: &str, spec: &Value, job: Option<&str>) {
        let owner = job.map(|job| {
            json!({"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": true})
        });
        let owners: Vec<Value> = owner.into_iter().collect();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "team", "uid": name, "ownerReferences": owners},
            "spec": spec,
            "status": {"phase": "Pending"},
        });
        self.state
            .objects()
            .pods
            .insert(format!("team/{name}"), pod);
    }

    /// The UIDs of pods whose eviction was asked for.
    #[must_use]
    pub fn evictions(&self) -> Vec<String> {
        self.state.objects().evictions.clone()
    }

    /// Answers so late from now on.
    pub fn slow_down(&self, delay: Duration) {
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.state.delay.store(millis, Ordering::Relaxed);
    }

    /// The devices of the node's slice, by name, and the generation of its pool.
    #[must_use]
    pub fn offered(&self) -> Option<(BTreeMap<String, Value>, i64)> {
        let objects = self.state.objects();
        let slice = objects.slices.get("node-1-gpu.apportion.dev")?;
        let devices = slice["spec"]["devices"].as_array()?.iter();
        let name = |device: &Value| device["name"].as_str().unwrap_or_default().to_owned();
        let devices = devices.map(|device| (name(device), device.clone()));
        Some((
            devices.collect(),
            slice["spec"]["pool"]["generation"].as_i64()?,
        ))
    }

    /// How often slices were written.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.state.objects().writes
    }

    /// Removes all slices, as a starting kubelet does.
    pub fn wipe(&self) {
        let gone = std::mem::take(&mut self.state.objects().slices);
        for slice in gone.into_values() {
            self.state.tell("DELETED", slice);
        }
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl ApiState {
    fn objects(&self) -> MutexGuard<'_, ApiObjects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, kind: &str, object: Value) {
        // Nobody may be watching.
        let _ = self.events.send(json!({"type": kind, "object": object}));
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let query = request.uri().query().unwrap_or_default().to_owned();
        let body = request.into_body().collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let delay = self.delay.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(delay)).await;
        if path == SLICES {
            return if query.contains("watch=") {
                self.watch()
            } else {
                self.list(&query)
            };
        }
        let found = match path
            .strip_prefix(SLICES)
            .map(|name| name.trim_start_matches('/'))
        {
            Some(name) => self.slice(&method, name, &body),
            None if path.ends_with("/eviction") => self.evict(&body),
            None => self.other(&path),
        };
        match found {
            Some(object) => reply(StatusCode::OK, &object),
            None => missing(),
        }
    }

    fn slice(&self, method: &Method, name: &str, body: &Bytes) -> Option<Value> {
        let mut objects = self.objects();
        match *method {
            Method::PATCH => {
                let slice: Value = serde_json::from_slice(body).ok()?;
                objects.slices.insert(name.to_owned(), slice.clone());
                objects.writes += 1;
                drop(objects);
                self.tell("MODIFIED", slice.clone());
                Some(slice)
            }
            Method::DELETE => {
                let slice = objects.slices.remove(name)?;
                drop(objects);
                self.tell("DELETED", slice.clone());
                Some(slice)
            }
            _ => objects.slices.get(name).cloned(),
        }
    }

    fn evict(&self, body: &Bytes) -> Option<Value> {
        let eviction: Value = serde_json::from_slice(body).ok()?;
        let uid = eviction["deleteOptions"]["preconditions"]["uid"].as_str()?;
        self.objects().evictions.push(uid.to_owned());
        Some(json!({"apiVersion": "v1", "kind": "Status", "status": "Success"}))
    }

    fn other(&self, path: &str) -> Option<Value> {
        if let Some(name) = path.strip_prefix("/api/v1/nodes/") {
            return Some(json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "uid": "n-1"},
            }));
        }
        if let Some(pod) = path.strip_prefix("/api/v1/namespaces/") {
            let name = pod.replacen("/pods/", "/", 1);
            return self.objects().pods.get(&name).cloned();
        }
        let claims = "/apis/resource.k8s.io/v1/namespaces/";
        let (namespace, name) = path.strip_prefix(claims)?.split_once("/resourceclaims/")?;
        self.objects()
            .claims
            .get(&format!("{namespace}/{name}"))
            .cloned()
    }

    fn list(&self, query: &str) -> Response<Body> {
        let objects = self.objects();
        let is_meant =
            |name: &&String| !query.contains("metadata.name") || query.contains(name.as_str());
        let meant = objects.slices.keys().filter(is_meant);
        let items: Vec<&Value> = meant.filter_map(|name| objects.slices.get(name)).collect();
        let list = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList",
            "metadata": {"resourceVersion": "1"}, "items": items,
        });
        reply(StatusCode::OK, &list)
    }

    /// All events from now on, without an end.
    fn watch(&self) -> Response<Body> {
        let events = BroadcastStream::new(self.events.subscribe());
        let lines = events.filter_map(Result::ok).map(|event| {
            let line = format!("{event}\n");
            Ok::<_, Infallible>(Frame::data(Bytes::from(line)))
        });
        Response::new(BodyExt::boxed(StreamBody::new(lines)))
    }
}

fn reply(status: StatusCode, object: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(object.to_string()));
    let mut response = Response::new(BodyExt::boxed(body));
    *response.status_mut() = status;
    response
}

fn missing() -> Response<Body> {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
        "message": "not found",
    });
    reply(StatusCode::NOT_FOUND, &status)
}
