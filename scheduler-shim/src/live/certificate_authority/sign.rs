//! Approves and signs the agents' CertificateSigningRequests.
//!
//! The API server says whose agent asks: with each request it records who made it, and for which node the token was
//! issued. Names inside the request are not read, so an agent can't get another node's name. A denied request carries
//! the reason and stays denied.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::{Duration, SystemTime};

use apportion_exit::error_chain;
use apportion_proto::identity;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest as Request, CertificateSigningRequestCondition as Condition,
};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use rcgen::CertificateSigningRequestParams;
use serde_json::json;
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tracing::{info, warn};

use super::CaSettings;
use super::rotation::{CaRotation, CertificateUsage};

/// The extra field of a request's user with the node that the token was issued for.
const NODE: &str = "authentication.kubernetes.io/node-name";

/// How often, and at which interval, an answer is tried.
const TRIES: usize = 5;
const AGAIN: Duration = Duration::from_secs(1);

/// Signs for as long as this scheduler leads.
pub(super) async fn sign(
    client: Client,
    settings: CaSettings,
    mut signs: watch::Receiver<CaRotation>,
) {
    if signs
        .wait_for(|kept| !kept.current.key.is_empty())
        .await
        .is_err()
    {
        return;
    }
    let requests: Api<Request> = Api::all(client);
    let ours = format!("spec.signerName={}", identity::SIGNER);
    let config = watcher::Config::default().fields(&ours);
    let mut found = pin!(watcher(requests.clone(), config).default_backoff());
    let mut open = OpenCertificateRequests::default();
    while let Some(next) = found.next().await {
        let event = match next {
            Ok(event) => event,
            Err(problem) => {
                warn!(
                    problem = error_chain(&problem),
                    "Failed to watch CertificateSigningRequests, retrying"
                );
                continue;
            }
        };
        let Some(request) = open.of(event) else {
            continue;
        };
        let kept = signs.borrow().clone();
        // There may be no further event for an unanswered request.
        for _ in 0..TRIES {
            if answer(&requests, &request, &settings, &kept).await {
                open.answered(&request);
                break;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// Which requests still need an answer. The watch may lag behind our own writes: it shows the approval before the
/// certificate, and to sign again then would make another certificate.
#[derive(Debug, Default)]
struct OpenCertificateRequests {
    /// UIDs of answered requests that the watch may still show without their answer.
    answered: BTreeSet<String>,
}

impl OpenCertificateRequests {
    /// The request of an event, if it needs an answer.
    fn of(&mut self, event: Event<Request>) -> Option<Request> {
        match event {
            Event::Apply(request) | Event::InitApply(request) => {
                let is_answered = self.answered.contains(request.uid()?.as_str());
                (is_open(&request) && !is_answered).then_some(request)
            }
            Event::Delete(request) => {
                self.answered.remove(request.uid()?.as_str());
                None
            }
            // A new list is not older than our answers.
            Event::Init => {
                self.answered.clear();
                None
            }
            Event::InitDone => None,
        }
    }

    fn answered(&mut self, request: &Request) {
        self.answered.extend(request.uid());
    }
}

/// Whether it is undecided, or approved but not signed.
fn is_open(request: &Request) -> bool {
    let Some(status) = &request.status else {
        return true;
    };
    let conditions = status.conditions.iter().flatten();
    status.certificate.is_none()
        && conditions
            .into_iter()
            .all(|condition| condition.type_ == "Approved")
}

/// Signs or denies a request. Returns whether the answer was written.
async fn answer(
    requests: &Api<Request>,
    request: &Request,
    settings: &CaSettings,
    kept: &CaRotation,
) -> bool {
    let name = request.name_any();
    let signed = asking(request, &settings.agents)
        .and_then(|node| signed(request, &node, settings, kept).map(|pem| (node, pem)));
    let written = match &signed {
        Ok((node, pem)) => {
            info!(node, request = name, "Agent certificate signed");
            approve(requests, request, pem).await
        }
        Err(why) => {
            warn!(request = name, why, "Agent certificate denied");
            let denied = condition(request, "Denied", why);
            let patch = Patch::Merge(json!({"status": {"conditions": [denied]}}));
            let params = PatchParams::default();
            let done = requests.patch_approval(&name, &params, &patch).await;
            done.map(|_| ())
        }
    };
    if let Err(problem) = &written {
        warn!(
            request = name,
            problem = error_chain(problem),
            "Failed to answer a CertificateSigningRequest"
        );
    }
    written.is_ok()
}

async fn approve(requests: &Api<Request>, request: &Request, pem: &str) -> Result<(), kube::Error> {
    let (name, params) = (request.name_any(), PatchParams::default());
    let approved = condition(
        request,
        "Approved",
        "the agent's token was issued for this node",
    );
    let patch = Patch::Merge(json!({"status": {"conditions": [approved]}}));
    requests.patch_approval(&name, &params, &patch).await?;
    let certificate = ByteString(pem.as_bytes().to_vec());
    let patch = Patch::Merge(json!({"status": {"certificate": certificate}}));
    requests.patch_status(&name, &params, &patch).await?;
    Ok(())
}

fn condition(request: &Request, kind: &str, message: &str) -> Condition {
    let conditions = request.status.iter().flat_map(|status| &status.conditions);
    let known = conditions.flatten().find(|known| known.type_ == kind);
    known.cloned().unwrap_or_else(|| Condition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some("Apportion".to_owned()),
        message: Some(message.to_owned()),
        ..Condition::default()
    })
}

/// The node whose agent asks, or why the request is denied.
fn asking(request: &Request, agents: &str) -> Result<String, String> {
    let spec = &request.spec;
    let user = spec.username.as_deref().unwrap_or_default();
    if user != agents {
        return Err(format!("{user} is not {agents}, the user of the agents"));
    }
    let nodes = spec.extra.iter().filter_map(|extra| extra.get(NODE));
    let mut nodes = nodes.flatten();
    match (nodes.next(), nodes.next()) {
        (Some(node), None) => Ok(node.clone()),
        _ => Err(format!(
            "the token does not name the node it was issued for ({NODE}); this needs a pod's own token and Kubernetes 1.32 or newer"
        )),
    }
}

fn signed(
    request: &Request,
    node: &str,
    settings: &CaSettings,
    kept: &CaRotation,
) -> Result<String, String> {
    let pem = String::from_utf8_lossy(&request.spec.request.0);
    let parsed = CertificateSigningRequestParams::from_pem(&pem);
    let parsed = parsed.map_err(|error| format!("failed to read the request: {error}"))?;
    let (name, now) = (identity::agent(node), SystemTime::now());
    let signed = kept.sign(
        &parsed.public_key,
        &name,
        CertificateUsage::Server,
        now + settings.life,
        now,
    );
    signed.map_err(|error| error_chain(&error))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const AGENTS: &str = "system:serviceaccount:apportion:apportion-agent";

    fn request(user: &str, nodes: &[&str]) -> Request {
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        let mut request = Request::default();
        request.spec.username = Some(user.to_owned());
        request.spec.extra = Some(BTreeMap::from([(NODE.to_owned(), nodes)]));
        request
    }

    #[test]
    fn a_request_that_was_answered_is_not_answered_again_while_its_answer_is_on_its_way() {
        let mut shown = request(AGENTS, &["a"]);
        shown.metadata.uid = Some("one".to_owned());
        let mut open = OpenCertificateRequests::default();
        let of =
            |open: &mut OpenCertificateRequests, event: Event<Request>| open.of(event).is_some();
        assert!(of(&mut open, Event::Apply(shown.clone())));
        assert!(
            of(&mut open, Event::Apply(shown.clone())),
            "nobody answered"
        );
        open.answered(&shown);
        let approved = condition(&shown, "Approved", "");
        shown.status.get_or_insert_default().conditions = Some(vec![approved]);
        assert!(!of(&mut open, Event::Apply(shown.clone())));
        let mut another = shown.clone();
        another.metadata.uid = Some("two".to_owned());
        assert!(of(&mut open, Event::Apply(another)));
        // A new list is up to date.
        assert!(!of(&mut open, Event::Init));
        assert!(of(&mut open, Event::InitApply(shown.clone())));
        open.answered(&shown);
        assert!(!of(&mut open, Event::Delete(shown)));
        assert!(open.answered.is_empty());
    }

    #[test]
    fn the_node_is_the_one_of_the_token_and_only_agents_have_one() {
        assert_eq!(asking(&request(AGENTS, &["a"]), AGENTS).as_deref(), Ok("a"));
        let other = asking(&request("system:node:a", &["a"]), AGENTS).unwrap_err();
        assert!(other.starts_with("system:node:a is not"), "{other}");
        for nodes in [&[][..], &["a", "b"]] {
            let none = asking(&request(AGENTS, nodes), AGENTS).unwrap_err();
            assert!(none.contains("does not name the node"), "{none}");
        }
    }
}
