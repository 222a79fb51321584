//! What the running scheduler serves over HTTP: health, metrics, why a pod is where it is, and all objects.
//!
//! Questions about the cluster go to the scheduling loop and are answered from its model, so an answer is about one
//! moment. `/snapshot` is what `simulate` reads.
//!
//! In a pod the address is open to every other pod. Everybody may read metrics. Objects of all namespaces are shown
//! only to callers on the same machine or in the same pod, as with `kubectl exec` and `kubectl port-forward`.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use apportion_bounded::{HttpLimiter, Text};
use apportion_groups::ObjectView;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc, oneshot};

use super::metrics::SchedulerMetrics;
use super::model::ClusterModel;
use super::suspensions::share_of_pod;
use super::usage_recorder::UsageRecorder;
use super::view::{gpu_node, now};
use apportion_exit::CommandFailure;
use apportion_explain::{decided_cluster, explain, report};
use apportion_model::object_kinds::GPU_NODE;
use apportion_model::object_warnings::ObjectWarnings;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long the scheduling loop may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a client may take to read an answer. The snapshot of a large cluster is large.
const READ: Duration = Duration::from_secs(60);
/// How long the metrics of one answer are served again.
const FRESH: Duration = Duration::from_secs(1);

/// What a caller wants to know.
#[derive(Debug)]
pub(crate) enum QueryKind {
    Snapshot,
    Metrics,
    /// Why a pod is where it is, or waits; the flag asks for JSON.
    Explain(String, bool),
}

/// A question, and where the answer goes.
#[derive(Debug)]
pub(crate) struct SchedulerQuery {
    what: QueryKind,
    answer: oneshot::Sender<Result<String, String>>,
}

/// Answers from the model.
pub(crate) fn answer(model: &ClusterModel, metrics: &SchedulerMetrics, question: SchedulerQuery) {
    let text = match question.what {
        QueryKind::Snapshot => Ok(snapshot(model)),
        QueryKind::Metrics => Ok(metrics.text()),
        QueryKind::Explain(pod, as_json) => explain(model, &pod, as_json),
    };
    let _ = question.answer.send(text);
}

fn snapshot(model: &ClusterModel) -> String {
    // A known agent's status replaces its `GpuNode`.
    let known = model
        .inventory
        .every()
        .filter(|object| object.kind() != GPU_NODE.1 || model.agents.of(object.name()).is_none())
        .map(ObjectView::to_text);
    let agents = model.agents.all();
    let cards = agents.map(|(node, agent)| gpu_node(model, node, &agent.status));
    let usage = model.usage.iter().map(UsageRecorder::object);
    let ours = cards.chain(usage).map(|object| object.to_string().into());
    let objects: Vec<Cow<'_, str>> = known.chain(ours).collect();
    // Most objects are text already, and there may be many. So the list is not built as JSON values.
    let objects = objects.join(",");
    format!(r#"{{"apiVersion":"v1","items":[{objects}],"kind":"List"}}"#)
}

fn explain(model: &ClusterModel, pod: &str, as_json: bool) -> Result<String, String> {
    let all = model.inventory.all("Pod");
    let mut found = all
        .map(apportion_model::pods::name)
        .filter(|full| full == pod || full.split_once('/').is_some_and(|(_, own)| own == pod));
    let Some(name) = found.next() else {
        return Err(format!("there is no pod {pod}\n"));
    };
    if let Some(other) = found.next() {
        return Err(format!(
            "more than one pod is named {pod}: {name} and {other}\n"
        ));
    }
    let now = now();
    let pod = model.pod(&name);
    let sleeper = pod.as_ref().filter(|pod| model.is_suspended(&pod.uid));
    let runs = pod.as_ref().is_some_and(|pod| model.has_node(pod));
    // A pod that runs is shown with all that it has.
    let snapshot = if runs && sleeper.is_none() {
        model.undivided_cluster(now)
    } else {
        model.cluster(now)
    };
    let decided = decided_cluster::decide(now, &snapshot.cluster);
    let report = report::report(&snapshot, &decided, ObjectWarnings::default());
    let mut explanation = if sleeper.is_some() {
        let share = share_of_pod(&name);
        explain::explain(&snapshot, &decided, &report, &share).of_suspended(&name)
    } else {
        explain::explain(&snapshot, &decided, &report, &name)
    };
    if let Some(pod) = pod {
        explanation.resize = model.resizes.explain(&pod.uid);
        explanation.devices = model.explain_devices(&pod.uid);
    }
    if as_json {
        serde_json::to_string_pretty(&explanation).map_err(|error| error.to_string())
    } else {
        Ok(explanation.to_string())
    }
}

/// How many connections the listener of [`open`] serves, and for how long.
pub(crate) fn bounds() -> HttpLimiter {
    HttpLimiter::within(READ)
}

/// Starts the listener. Returns its address.
pub(crate) async fn open(
    address: SocketAddr,
    bounds: HttpLimiter,
    questions: mpsc::Sender<SchedulerQuery>,
) -> Result<SocketAddr, CommandFailure> {
    let wrong = |error: std::io::Error| {
        CommandFailure::new(format!("failed to listen on {address}: {error}"))
            .hint("choose another address with --address")
    };
    let listener = TcpListener::bind(address).await.map_err(wrong)?;
    let address = listener.local_addr().map_err(wrong)?;
    tokio::spawn(serve(listener, bounds, questions));
    Ok(address)
}

async fn serve(
    listener: TcpListener,
    bounds: HttpLimiter,
    questions: mpsc::Sender<SchedulerQuery>,
) {
    let numbers = Arc::new(Mutex::new(None));
    apportion_bounded::serve(listener, bounds, move |request, asker| {
        let (questions, numbers) = (questions.clone(), numbers.clone());
        async move { respond(&request, asker, &questions, &numbers).await }
    })
    .await;
}

/// Whether a caller with this address may see a path.
fn is_for(path: &str, asker: IpAddr) -> bool {
    asker.to_canonical().is_loopback() || ["/healthz", "/metrics"].contains(&path)
}

async fn respond(
    request: &Request<Incoming>,
    asker: IpAddr,
    questions: &mpsc::Sender<SchedulerQuery>,
    numbers: &Mutex<Option<(Instant, Text)>>,
) -> Response<Text> {
    let path = request.uri().path();
    if !is_for(path, asker) {
        let text =
            "this path is served to localhost only; use kubectl exec or kubectl port-forward\n"
                .to_owned();
        return response(StatusCode::FORBIDDEN, text);
    }
    let what = match (request.method(), path.split_once("/explain/")) {
        (&Method::GET, Some(("", pod))) => {
            QueryKind::Explain(pod.to_owned(), request.uri().query() == Some("json"))
        }
        (&Method::GET, _) if path == "/snapshot" => QueryKind::Snapshot,
        (&Method::GET, _) if path == "/metrics" => QueryKind::Metrics,
        (&Method::GET, _) if path == "/healthz" => {
            return response(StatusCode::OK, "ok\n".to_owned());
        }
        _ => {
            let text = "see /healthz, /metrics, /snapshot and /explain/NAMESPACE/NAME\n".to_owned();
            return response(StatusCode::NOT_FOUND, text);
        }
    };
    let is_numbers = matches!(what, QueryKind::Metrics);
    // Other callers wait here meanwhile, and get the same metrics.
    let mut last = if is_numbers {
        Some(numbers.lock().await)
    } else {
        None
    };
    if let Some(Some((since, text))) = last.as_deref()
        && since.elapsed() < FRESH
    {
        return numbers_of(text.clone());
    }
    let (answer, answered) = oneshot::channel();
    if questions.try_send(SchedulerQuery { what, answer }).is_err() {
        return answer_response(is_numbers, None);
    }
    let answer = tokio::time::timeout(PATIENCE, answered).await;
    let answer = answer.ok().and_then(Result::ok);
    match (last.as_deref_mut(), answer) {
        (Some(last), Some(Ok(text))) => {
            let text = Text::from(text);
            *last = Some((Instant::now(), text.clone()));
            numbers_of(text)
        }
        (_, answer) => answer_response(is_numbers, answer),
    }
}

/// The response to a question. A scheduler that does not lead has no metrics, but for Prometheus it is up.
fn answer_response(is_numbers: bool, answer: Option<Result<String, String>>) -> Response<Text> {
    match answer {
        Some(Ok(text)) if is_numbers => numbers_of(text.into()),
        None if is_numbers => numbers_of("# EOF\n".into()),
        Some(Ok(text)) => response(StatusCode::OK, text),
        Some(Err(text)) => response(StatusCode::NOT_FOUND, text),
        None => {
            let waits =
                "this scheduler is not the leader, or has not loaded the cluster state yet\n";
            response(StatusCode::SERVICE_UNAVAILABLE, waits.to_owned())
        }
    }
}

/// Prometheus reads no metrics without a content type.
fn numbers_of(text: Text) -> Response<Text> {
    let mut response = Response::new(text);
    let kind = HeaderValue::from_static(OPEN_METRICS);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn response(status: StatusCode, text: String) -> Response<Text> {
    let mut response = Response::new(Text::from(text));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use hyper::body::Body;

    use super::*;

    #[test]
    fn objects_are_shown_to_the_own_machine_and_numbers_to_all() {
        let near = ["127.0.0.1", "::1", "::ffff:127.0.0.1"];
        for (asker, is_near) in near
            .map(|near| (near, true))
            .into_iter()
            .chain([("10.0.0.7", false)])
        {
            let asker = asker.parse().unwrap();
            for path in ["/healthz", "/metrics"] {
                assert!(is_for(path, asker));
            }
            for path in ["/snapshot", "/explain/a/b", "/explain//metrics"] {
                assert_eq!(is_for(path, asker), is_near, "{path} {asker}");
            }
        }
    }
    #[test]
    fn a_scheduler_that_does_not_lead_is_up_and_has_no_numbers() {
        let waits = answer_response(true, None);
        assert_eq!(waits.status(), StatusCode::OK);
        assert_eq!(waits.body().size_hint().exact(), Some(6));
        for numbers in [
            waits,
            answer_response(true, Some(Ok("a 1\n# EOF\n".to_owned()))),
        ] {
            assert_eq!(numbers.headers()[CONTENT_TYPE], OPEN_METRICS);
        }
        let explains = answer_response(false, None);
        assert_eq!(explains.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
