//! The kubelet's side of the agent: slots are served to it as devices, and it is asked which pod holds
//! which. Nothing here decides; what is learned goes to the agent's loop, and what the loop answers goes
//! back as one sentence that the kubelet shows in the pod's events.
//!
//! # Who holds a slot
//! When a container is about to start the kubelet names its devices and not its pod. Which pod holds them
//! is read from the kubelet's own records: its pod resources service says which container of which pod
//! has a device now, and its checkpoint says the same with the pod's UID, which a name alone does not
//! give. Where both speak they must agree. Nobody is matched by requests, order or time.

mod answers;
mod checkpoint;
mod counts;
mod covered;
mod lists;
mod local_fit;
mod look;
mod others;
mod plugin;
mod pods;
mod registration;
mod rival;
mod voices;
mod whole;
mod wholes;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::names::{RESOURCE_SLOT, RESOURCE_WHOLE};
use apportion_ledger::SlotId;
use apportion_proto::deviceplugin::device_plugin_server::DevicePluginServer;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{info, warn};

pub(crate) use answers::Answers;
pub(crate) use counts::{Counts, News};
pub(crate) use look::{Holder, Seen};
pub(crate) use others::{CardName, OtherHolder};
pub(crate) use whole::WholeOffers;
pub(crate) use wholes::WholeHolder;

use crate::agent::Shown;
use crate::cri;
use crate::options::{Options, Unplaced};
use crate::request::Request;
use look::Kubelet;
use plugin::Plugin;
use registration::Registration;
use whole::WholePlugin;

/// How long until it is tried again to find what containers of this node need.
const SETTLES_AGAIN_IN: Duration = Duration::from_secs(30);

/// Each slot and whether it can be had.
pub(crate) type Offers = watch::Receiver<Vec<(SlotId, bool)>>;

/// Serves the kubelet below `dir` for as long as the agent runs.
pub(crate) fn serve(
    dir: PathBuf,
    options: &Options,
    requests: mpsc::Sender<Request>,
    shown: Shown,
    offers: Offers,
    whole: Option<watch::Receiver<Arc<WholeOffers>>>,
) {
    let pods = pods::watch(options, &dir);
    let kubelet = Arc::new(Kubelet::new(dir.clone(), pods.clone(), requests.clone()));
    tokio::spawn(look::keep_looking(kubelet.clone()));
    let local_fit = match options.unplaced {
        Unplaced::Deny => None,
        Unplaced::LocalFit => Some(local_fit::LocalFit::new(pods, shown, requests.clone())),
    };
    let registration = |resource, prefix, options| Registration {
        dir: dir.clone(),
        resource,
        prefix,
        options,
        yields: None,
    };
    let slots = registration(RESOURCE_SLOT, "apportion-slot-", plugin::OPTIONS);
    let mut wholes = registration(RESOURCE_WHOLE, "apportion-whole-", whole::OPTIONS);
    let options = options.clone();
    tokio::spawn(async move {
        let Some(answers) = settle(&options, &requests).await else {
            return;
        };
        if let Some(offers) = whole {
            let plugin = WholePlugin {
                kubelet: kubelet.clone(),
                requests: requests.clone(),
                offers,
                answers: answers.clone(),
            };
            let (there, rival) = watch::channel(rival::of(&dir).await.is_some());
            wholes.yields = Some(rival);
            tokio::spawn(rival::watch(dir.clone(), requests.clone(), there));
            let server = DevicePluginServer::new(plugin);
            drop(tokio::spawn(wholes.keep(server, requests.clone())));
        }
        let plugin = Plugin {
            kubelet,
            requests: requests.clone(),
            offers,
            answers,
            local_fit: local_fit.map(Arc::new),
        };
        info!(resource = RESOURCE_SLOT, "Slots are offered to the kubelet");
        let server = DevicePluginServer::new(plugin);
        slots.keep(server, requests).await;
    });
}

/// How slots are answered for, once the container runtime is known; nothing if the agent leaves before.
async fn settle(options: &Options, requests: &mpsc::Sender<Request>) -> Option<Answers> {
    let facts = cri::settle(options).await;
    loop {
        let (answer, answered) = oneshot::channel();
        let request = Request::Runtime(facts.clone(), answer);
        requests.send(request).await.ok()?;
        match answered.await.ok()? {
            Ok(answers) => return Some(answers),
            Err(problem) => warn!(
                problem = problem.message(),
                "Nothing is offered to the kubelet"
            ),
        }
        tokio::time::sleep(SETTLES_AGAIN_IN).await;
    }
}
