//! In which order writes reach the API server.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::{Args, FromArgMatches};
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tower::service_fn;

use super::{ApiWriter, LeadershipGuard};
use crate::live::event::{PodEventReason, PodRef, SchedulerEffect, SchedulerEvent};
use crate::live::grouper::{GroupMembership, GroupWrite};
use crate::live::usage_recorder::UsageRecordStore;
use crate::options::SchedulerRunOptions;

const fn size_of_future<A, B, F: Future>(_: &impl Fn(A, B) -> F) -> usize {
    size_of::<F>()
}

#[test]
fn an_effect_that_waits_for_its_turn_takes_little_memory() {
    let bytes = size_of_future(&ApiWriter::perform_in_turn);
    assert!(bytes <= 2048, "{bytes} bytes, times thousands of pods");
}

/// The beginnings and ends of requests, in their order.
type RequestLog = Arc<Mutex<Vec<String>>>;

/// An API server that takes this long for each request, and accepts it.
fn slow_server(takes: Duration) -> (Client, RequestLog) {
    let log = RequestLog::default();
    let noted = Arc::clone(&log);
    let service = service_fn(move |request: Request<Body>| {
        let noted = Arc::clone(&noted);
        async move {
            let path = request.uri().path();
            let resource = ["binding", "status", "podgroups", "events", "pods"]
                .into_iter()
                .find(|resource| path.contains(&format!("/{resource}")));
            let what = format!("{} {}", request.method(), resource.unwrap_or(path));
            let note = |text| noted.lock().expect("no test panics with it").push(text);
            note(format!("{what} begins"));
            tokio::time::sleep(takes).await;
            note(format!("{what} ends"));
            let object = json!({"metadata": {"name": "any", "namespace": "team"}});
            Ok::<_, Infallible>(Response::new(Body::from(object.to_string().into_bytes())))
        }
    });
    (Client::new(service, "default"), log)
}

struct WriterOnServer {
    writer: Arc<ApiWriter>,
    log: RequestLog,
    answers: mpsc::UnboundedReceiver<SchedulerEvent>,
    _leads_until: watch::Sender<Instant>,
}

impl WriterOnServer {
    fn new(takes: Duration) -> Self {
        let (client, log) = slow_server(takes);
        let command = SchedulerRunOptions::augment_args(clap::Command::new("run"));
        let matches = command.get_matches_from(["run"]);
        let options = SchedulerRunOptions::from_arg_matches(&matches).expect("all have defaults");
        let store = UsageRecordStore::new(client.clone(), &options);
        let (leads_until, leading) = watch::channel(Instant::now() + Duration::from_secs(3600));
        let leading = LeadershipGuard::new(leading);
        let (to, answers) = mpsc::unbounded_channel();
        let writer = ApiWriter::new(client, &options.schedulers, store, leading, to);
        Self {
            writer,
            log,
            answers,
            _leads_until: leads_until,
        }
    }

    /// Performs these effects. Returns what the server saw when so many requests have ended.
    async fn perform(
        &mut self,
        effects: impl IntoIterator<Item = SchedulerEffect>,
        requests: usize,
    ) -> Vec<String> {
        for effect in effects {
            self.writer.perform(effect);
        }
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let log = self.log.lock().expect("no test panics with it").clone();
            if log.iter().filter(|of| of.ends_with("ends")).count() >= requests {
                return log;
            }
        }
    }
}

fn pod() -> PodRef {
    PodRef {
        namespace: "team".to_owned(),
        name: "worker".to_owned(),
        uid: "1".to_owned(),
    }
}

fn membership() -> GroupMembership {
    GroupMembership {
        group: "pg".to_owned(),
        part: None,
    }
}

fn group() -> serde_json::Value {
    json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": "pg", "namespace": "team"}})
}

fn waits() -> SchedulerEffect {
    SchedulerEffect::PublishEvent {
        pod: pod(),
        reason: PodEventReason::Unschedulable,
        message: "no nodes with enough resources were found".to_owned(),
    }
}

fn binds() -> SchedulerEffect {
    SchedulerEffect::Bind {
        node: "node".to_owned(),
        pod: pod(),
        cards: Vec::new(),
        received: None,
        allocated: None,
        zones: Vec::new(),
        volumes: Vec::new(),
        claims: Vec::new(),
        are_claims_reserved: true,
        joins: Some(membership()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_told_to_wait_after_its_group_and_its_mark() {
    let mut server = WriterOnServer::new(Duration::from_millis(100));
    let mark = SchedulerEffect::Group(GroupWrite::Mark(pod(), membership()));
    let create = SchedulerEffect::Group(GroupWrite::Create(group()));
    let log = server.perform([create, mark, waits()], 4).await;
    let expected = [
        "POST podgroups begins",
        "POST podgroups ends",
        "PATCH pods begins",
        "PATCH pods ends",
        "PATCH status begins",
        "PATCH status ends",
        "POST events begins",
        "POST events ends",
    ];
    assert_eq!(log, expected);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_told_to_wait_although_its_group_takes_long() {
    let mut server = WriterOnServer::new(Duration::from_secs(30));
    let mark = SchedulerEffect::Group(GroupWrite::Mark(pod(), membership()));
    let create = SchedulerEffect::Group(GroupWrite::Create(group()));
    let log = server.perform([create, mark, waits()], 1).await;
    let told = "PATCH status begins".to_owned();
    assert!(log.contains(&told), "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn a_binding_waits_for_a_group_that_is_created_with_it_and_for_no_other() {
    let mut server = WriterOnServer::new(Duration::from_millis(100));
    let found = SchedulerEffect::Group(GroupWrite::Found(group()));
    let log = server.perform([found, binds()], 2).await;
    assert_eq!(log[1..3], ["POST podgroups ends", "POST binding begins"]);
    let bound = server.answers.recv().await;
    assert!(
        matches!(bound, Some(SchedulerEvent::Grouped(_, true))),
        "{bound:?}"
    );

    let mut server = WriterOnServer::new(Duration::from_millis(100));
    let later = SchedulerEffect::Group(GroupWrite::Create(group()));
    let log = server.perform([later, binds()], 2).await;
    let begins = ["POST podgroups begins", "POST binding begins"];
    assert!(
        begins
            .into_iter()
            .all(|of| log[..2].contains(&of.to_owned())),
        "{log:?}"
    );
}
