//! The agent's interface to the kubelet: serves slots to it as devices, and asks it which pod holds which. Nothing
//! is decided here. Reports go to the agent's loop, and its answer goes back as one sentence that the kubelet shows
//! in the pod's events.
//!
//! # Who holds a slot
//! When a container is about to start, the kubelet passes its devices and not its pod. The agent reads the pod from
//! the kubelet's own data. The pod-resources API lists which container of which pod has a device now. The checkpoint
//! has the same with the pod's UID, which a name cannot replace. If both have a slot, they must agree. Pods are
//! never guessed from requests, order or time.

pub(crate) mod allocate_strategy;
mod checkpoint;
mod dra_claims;
pub(crate) mod foreign_holders;
mod list_and_watch;
mod local_fit;
mod merge_sources;
pub(crate) mod offer_receivers;
mod pods;
mod poll;
mod registration;
mod rival;
pub(crate) mod rival_owner;
mod shadowed_mounts;
pub(crate) mod slot_plugin;
pub(crate) mod snapshot;
pub(crate) mod stats;
pub(crate) mod whole_card_holders;
pub(crate) mod whole_card_plugin;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::names::{RESOURCE_SLOT, RESOURCE_WHOLE};
use apportion_proto::deviceplugin::device_plugin_server::DevicePluginServer;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;
use tracing::{info, warn};

pub(crate) use rival::of_plugins as rival;

use crate::api::request::AgentRequest;
use crate::claims;
use crate::options::{AgentOptions, UnplacedPolicy};
use crate::runtime::cri;
use crate::telemetry::view::AgentHandle;
use allocate_strategy::AllocateStrategy;
use offer_receivers::OfferReceivers;
use poll::KubeletPoller;
use registration::PluginRegistration;
use rival_owner::{RivalOwner, RivalPresence};
use slot_plugin::SlotPlugin;
use whole_card_plugin::WholeCardPlugin;

/// How long to wait before the delivery strategy is chosen again.
const SETTLES_AGAIN_IN: Duration = Duration::from_secs(30);

/// How often to check whether the container runtime was restarted.
const RUNTIME_LOOKED_AT_EVERY: Duration = Duration::from_secs(1);

/// Serves the kubelet whose folder is `dir` as long as the agent runs.
pub(crate) fn serve(
    dir: PathBuf,
    options: &AgentOptions,
    requests: mpsc::Sender<AgentRequest>,
    agent: AgentHandle,
    offers: OfferReceivers,
    known: Option<RivalOwner>,
) {
    let pods = pods::watch(options, &dir);
    let published = dra_claims::watch(options.node.clone());
    let kubelet = KubeletPoller::new(
        dir.clone(),
        pods.clone(),
        published.clone(),
        requests.clone(),
    );
    let kubelet = Arc::new(kubelet);
    tokio::spawn(poll::poll_loop(kubelet.clone()));
    let (there, rival) = watch::channel(RivalPresence {
        is_there: known.is_some(),
        departures: 0,
    });
    let others = rival::RivalWatcher::new(dir.clone(), published, known);
    tokio::spawn(others.watch(requests.clone(), there));
    let local_fit = match options.kubelet.unplaced {
        UnplacedPolicy::Deny => None,
        UnplacedPolicy::LocalFit => Some(local_fit::LocalFit::new(
            pods,
            agent.clone(),
            requests.clone(),
        )),
    };
    let registration = |resource, prefix, options| PluginRegistration {
        dir: dir.clone(),
        resource,
        prefix,
        options,
        yields: None,
    };
    let slots = registration(RESOURCE_SLOT, "apportion-slot-", slot_plugin::OPTIONS);
    let mut wholes = registration(
        RESOURCE_WHOLE,
        "apportion-whole-",
        whole_card_plugin::OPTIONS,
    );
    let options = options.clone();
    tokio::spawn(async move {
        // Read before the runtime is asked: a later change of the sockets means a restart.
        let sockets = cri::sockets(&options.runtime);
        let Some((facts, answers)) = settle(&options, &requests).await else {
            return;
        };
        let (renewed, answers) = watch::channel(answers);
        tokio::spawn(keep_settled(
            options.clone(),
            requests.clone(),
            (facts, sockets),
            renewed,
        ));
        if let Some(offers) = offers.whole {
            let plugin = WholeCardPlugin {
                kubelet: kubelet.clone(),
                requests: requests.clone(),
                offers,
                answers: answers.clone(),
                rival: rival.clone(),
            };
            wholes.yields = Some(rival);
            let server = DevicePluginServer::new(plugin);
            drop(tokio::spawn(wholes.keep(server, requests.clone())));
        }
        match (options.node.clone(), offers.claims) {
            (Some(node), Some(offers)) => {
                let served = claims::serve(
                    dir,
                    (node, options.kubelet.refused_claims),
                    requests.clone(),
                    agent,
                    offers,
                );
                drop(tokio::spawn(served));
            }
            (Some(node), None) => drop(tokio::spawn(claims::retire(node))),
            (None, _) => {}
        }
        let plugin = SlotPlugin {
            kubelet,
            requests: requests.clone(),
            offers: offers.slots,
            answers,
            local_fit: local_fit.map(Arc::new),
        };
        info!(resource = RESOURCE_SLOT, "GPU slots offered to the kubelet");
        let server = DevicePluginServer::new(plugin);
        slots.keep(server, requests).await;
    });
}

/// The delivery strategy, once the container runtime is known; `None` if the agent stops before.
async fn settle(
    options: &AgentOptions,
    requests: &mpsc::Sender<AgentRequest>,
) -> Option<(cri::RuntimeCapabilities, AllocateStrategy)> {
    let facts = cri::settle(options).await;
    loop {
        match learned(facts.clone(), requests).await? {
            Ok(answers) => return Some((facts, answers)),
            Err(problem) => warn!(
                problem = problem.message(),
                "GPU slots not offered to the kubelet"
            ),
        }
        tokio::time::sleep(SETTLES_AGAIN_IN).await;
    }
}

/// The delivery strategy for this runtime; `None` if the agent stops.
async fn learned(
    facts: cri::RuntimeCapabilities,
    requests: &mpsc::Sender<AgentRequest>,
) -> Option<Result<AllocateStrategy, Status>> {
    let (answer, answered) = oneshot::channel();
    requests
        .send(AgentRequest::Runtime(facts, answer))
        .await
        .ok()?;
    answered.await.ok()
}

/// Asks the runtime again after a restart, because its configuration may have changed. Earlier answers stay valid
/// for their containers.
async fn keep_settled(
    options: AgentOptions,
    requests: mpsc::Sender<AgentRequest>,
    (mut known, mut sockets): (cri::RuntimeCapabilities, cri::Sockets),
    answers: watch::Sender<AllocateStrategy>,
) {
    let mut last_warning = None;
    while !answers.is_closed() {
        tokio::time::sleep(RUNTIME_LOOKED_AT_EVERY).await;
        let now = cri::sockets(&options.runtime);
        if now.is_empty() || now == sockets {
            continue;
        }
        let problem = match cri::detect(&options).await {
            Ok(facts) if facts == known => None,
            Ok(facts) => match learned(facts.clone(), &requests).await {
                None => return,
                Some(Ok(renewed)) => {
                    info!(?facts, "Container runtime changed");
                    known = facts;
                    answers.send_replace(renewed);
                    None
                }
                Some(Err(status)) => Some(status.message().to_owned()),
            },
            Err(problem) => Some(problem.to_string()),
        };
        match problem {
            None => sockets = now,
            problem if problem != last_warning => {
                warn!(
                    problem,
                    "Container runtime restarted, previous configuration kept"
                );
                last_warning = problem;
            }
            Some(_) => {}
        }
    }
}
