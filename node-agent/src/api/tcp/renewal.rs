//! Keeps the certificate valid and the trusted CAs current, as long as the agent runs.
//!
//! The trusted CAs are watched in a `ConfigMap` of the scheduler. The certificate is renewed when a third of its
//! life is left, or at once when its CA is no longer trusted. Until the new one arrives, the old one is served.

use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use apportion_exit::error_chain;
use apportion_proto::identity;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConfig;
use tokio_stream::StreamExt;
use tracing::{info, warn};

use super::certificate_request::ask;
use super::credentials::TlsCredentials;
use crate::telemetry::publish::client;

/// The minimum time between two certificate requests.
const PAUSE: Duration = Duration::from_secs(2);
/// The longest sleep, because the wall clock may be set.
const LOOK: Duration = Duration::from_secs(60);

/// A certificate request in progress.
type Asking = Pin<Box<dyn Future<Output = (String, String)> + Send>>;

/// Keeps the certificate and the CAs current.
pub(super) async fn keep(
    node: String,
    path: PathBuf,
    show: watch::Sender<Option<Arc<ServerConfig>>>,
) {
    let mut held = TlsCredentials::load(&path, &node);
    present(&held, &show);
    let client = match client().await {
        Ok(client) => client,
        Err(problem) => {
            return warn!(
                problem,
                "Kubernetes client unavailable, no certificate for TCP"
            );
        }
    };
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let mut trust_bundle = pin!(watcher::watch_object(maps, identity::AUTHORITY).default_backoff());
    let mut asking: Option<Asking> = None;
    let (mut pause, mut told) = (Duration::ZERO, String::new());
    loop {
        let wait = held.wait(SystemTime::now());
        if wait.is_zero() && asking.is_none() && !held.trust_bundle.is_empty() {
            asking = Some(Box::pin(ask(client.clone(), pause)));
            pause = PAUSE;
        }
        let asked = async {
            match &mut asking {
                Some(asking) => asking.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            (certificate, key) = asked => {
                asking = None;
                held.take(certificate, key, SystemTime::now());
                info!(node, "Certificate renewed");
            }
            next = trust_bundle.next() => {
                match next {
                    Some(Ok(map)) => match trusted(map) {
                        Some(trust_bundle) if trust_bundle != held.trust_bundle => {
                            held.trust_bundle = trust_bundle;
                        }
                        _ => continue,
                    },
                    Some(Err(problem)) => {
                        let problem = error_chain(&problem);
                        if problem != told {
                            warn!(problem, "Failed to read the CA certificates, retrying");
                            told = problem;
                        }
                        continue;
                    }
                    None => return,
                }
            }
            () = tokio::time::sleep(wait.clamp(Duration::from_secs(1), LOOK)) => continue,
        }
        if let Err(problem) = held.save(&path) {
            warn!(%problem, "Failed to save the certificate");
        }
        present(&held, &show);
    }
}

/// The trusted CAs; `None` if the `ConfigMap` has none, which changes nothing.
fn trusted(map: Option<ConfigMap>) -> Option<String> {
    map?.data?.remove(identity::AUTHORITIES)
}

/// Serves with these credentials from now on.
fn present(held: &TlsCredentials, show: &watch::Sender<Option<Arc<ServerConfig>>>) {
    if held.certificate.is_empty() || held.trust_bundle.is_empty() {
        return;
    }
    match held.config() {
        Ok(config) => drop(show.send_replace(Some(config))),
        Err(problem) => warn!(problem = error_chain(&problem), "Certificate unusable"),
    }
}
