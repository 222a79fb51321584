//! Passes the messages of the API server and of the agents to the checker for the whole run.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apportion_proto::v1::{WatchRequest, watch_reply::Item};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;
use tokio::time::sleep;
use tokio_stream::StreamExt;

use super::agent_ledgers::name;
use super::invariants::InvariantChecker;
use crate::requests::ApiRequester;

/// How long to wait before reconnecting.
const AGAIN: Duration = Duration::from_millis(50);

/// Watches the pods of the API server.
pub(crate) async fn pods(requests: ApiRequester, witness: Arc<Mutex<InvariantChecker>>) {
    let mut words = pin!(watcher(requests.pods(), watcher::Config::default()));
    let mut listed: Vec<Pod> = Vec::new();
    while let Some(word) = words.next().await {
        let Ok(word) = word else {
            sleep(AGAIN).await;
            continue;
        };
        let mut witness = witness.lock().expect("nobody panicked");
        match word {
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(pod) => listed.push(pod),
            watcher::Event::InitDone => witness.listed(&listed),
            watcher::Event::Apply(pod) => witness.shown(&pod),
            watcher::Event::Delete(pod) => witness.gone(name(&pod)),
        }
    }
}

/// Watches the ledger of a node's agent.
pub(crate) async fn ledger(
    node: &'static str,
    socket: PathBuf,
    witness: Arc<Mutex<InvariantChecker>>,
) {
    loop {
        let _ = heard(node, &socket, &witness).await;
        sleep(AGAIN).await;
    }
}

async fn heard(node: &str, socket: &Path, witness: &Mutex<InvariantChecker>) -> Option<()> {
    let mut agent = apportion_proto::connect(socket).await.ok()?;
    let mut words = agent.watch(WatchRequest {}).await.ok()?.into_inner();
    while let Some(word) = words.message().await.ok()? {
        if let Some(Item::List(ledger)) = word.item {
            witness
                .lock()
                .expect("nobody panicked")
                .ledger(node, &ledger);
        }
    }
    None
}
