//! One NRI session without its socket: messages in, answers and events out. Pure.
//!
//! The runtime sets the order. The plugin registers, is configured (and says which events it wants), gets the list
//! of everything that runs, and is then asked about each container before it is created. It answers at once from
//! what it knows, because a runtime drops a plugin that makes it wait.
//!
//! # Events that a runtime does not know
//!
//! A runtime closes the connection without an error if the plugin requests an event that it does not know. So
//! [`WISHES`] lists sets of events, best first. If the connection is closed between that request and the first
//! synchronization, the plugin reconnects with the next set.

use prost::Message as _;

use crate::container::NriContainer;
use crate::frame::{Kind, MuxConnection, TtrpcMessage};
use crate::verdict::{self, ContainerVerdict, Grants, VerdictRules};
use crate::wire;

const CREATE_CONTAINER: i32 = 4;
const START_CONTAINER: i32 = 6;
const STOP_CONTAINER: i32 = 10;
const REMOVE_CONTAINER: i32 = 11;
const VALIDATE_CONTAINER_ADJUSTMENT: i32 = 14;

const BASE: i32 =
    bit(CREATE_CONTAINER) | bit(START_CONTAINER) | bit(STOP_CONTAINER) | bit(REMOVE_CONTAINER);
/// Sets of events, best first. Validation is a newer event; it shows what other plugins add.
pub const WISHES: [i32; 2] = [BASE | bit(VALIDATE_CONTAINER_ADJUSTMENT), BASE];

/// The names of the ttrpc services.
const RUNTIME: &str = "nri.pkg.api.v1alpha1.Runtime";
const PLUGIN: &str = "nri.pkg.api.v1alpha1.Plugin";
/// The stream of the only call that the plugin makes.
const REGISTER: u32 = 1;
/// The gRPC codes of failed calls.
const PERMISSION_DENIED: i32 = 7;
const UNIMPLEMENTED: i32 = 12;
const INVALID: i32 = 3;

/// An event for the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NriEvent {
    /// The runtime asks the plugin from now on, and these containers exist.
    Synchronized(Vec<NriContainer>),
    /// A container got a verdict.
    Judged(NriContainer, ContainerVerdict),
    /// A container was removed.
    Removed(NriContainer),
    /// The runtime no longer asks.
    Disconnected,
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NriSessionError {
    /// The runtime does not want the plugin.
    #[error("the runtime refused the plugin: {0}")]
    Refused(String),
    /// The runtime shuts down.
    #[error("the runtime is shutting down")]
    Shutdown,
    /// A message could not be decoded.
    #[error("the runtime sent an invalid message")]
    Garbage(#[from] prost::DecodeError),
}

/// The stage of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NriStage {
    /// The plugin has sent its registration.
    Registering,
    /// The events were requested.
    Configured,
    /// All running containers are known.
    Synchronized,
}

/// What to do after a message.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NriStep {
    /// A message to send.
    pub answer: Option<(MuxConnection, TtrpcMessage)>,
    /// An event to report.
    pub events: Option<NriEvent>,
    /// A container with a limited grant that starts once it is answered.
    pub starting: Option<NriContainer>,
}

/// The state of one connection to the runtime.
#[derive(Debug)]
pub struct NriSession {
    stage: NriStage,
    events: i32,
    running: Vec<NriContainer>,
}

impl NriSession {
    /// A session that requests these events, and its first message.
    #[must_use]
    pub fn open(name: &str, index: &str, events: i32) -> (Self, (MuxConnection, TtrpcMessage)) {
        let register = wire::RegisterPluginRequest {
            plugin_name: name.to_owned(),
            plugin_idx: index.to_owned(),
        };
        let request = wire::Request {
            service: RUNTIME.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: register.encode_to_vec(),
            timeout_nano: 0,
        };
        let message = TtrpcMessage {
            stream: REGISTER,
            kind: Kind::Request,
            payload: request.encode_to_vec(),
        };
        let session = Self {
            stage: NriStage::Registering,
            events,
            running: Vec::new(),
        };
        (session, (MuxConnection::Runtime, message))
    }

    /// The stage of the session.
    #[must_use]
    pub fn stage(&self) -> NriStage {
        self.stage
    }

    /// Handles one message of the runtime.
    pub fn take(
        &mut self,
        lane: MuxConnection,
        message: &TtrpcMessage,
        grants: &Grants,
        rules: &VerdictRules,
    ) -> Result<NriStep, NriSessionError> {
        match (lane, message.kind) {
            (MuxConnection::Runtime, Kind::Response) => registered(message),
            (MuxConnection::Plugin, Kind::Request) => self.called(message, grants, rules),
            (MuxConnection::Plugin | MuxConnection::Runtime, _) => Ok(NriStep::default()),
        }
    }

    fn called(
        &mut self,
        message: &TtrpcMessage,
        grants: &Grants,
        rules: &VerdictRules,
    ) -> Result<NriStep, NriSessionError> {
        let request = wire::Request::decode(message.payload.as_slice())?;
        let starting = starting(&request, grants)?;
        let (response, events) = if request.service == PLUGIN {
            self.dispatch(&request, grants, rules)?
        } else {
            (
                fail(UNIMPLEMENTED, format!("no service {}", request.service)),
                None,
            )
        };
        let answer = TtrpcMessage {
            stream: message.stream,
            kind: Kind::Response,
            payload: response.encode_to_vec(),
        };
        Ok(NriStep {
            answer: Some((MuxConnection::Plugin, answer)),
            events,
            starting,
        })
    }

    fn dispatch(
        &mut self,
        request: &wire::Request,
        grants: &Grants,
        rules: &VerdictRules,
    ) -> Result<(wire::Response, Option<NriEvent>), NriSessionError> {
        let payload = request.payload.as_slice();
        Ok(match request.method.as_str() {
            "Configure" => (self.configure(), None),
            "Synchronize" => self.synchronize(wire::SynchronizeRequest::decode(payload)?),
            "CreateContainer" => create(
                &wire::CreateContainerRequest::decode(payload)?,
                grants,
                rules,
            ),
            "ValidateContainerAdjustment" => validate(
                &wire::ValidateContainerAdjustmentRequest::decode(payload)?,
                grants,
                rules,
            ),
            "RemoveContainer" => {
                let removed = wire::ContainerRequest::decode(payload)?;
                let asked = removed
                    .container
                    .map(|c| NriContainer::new(removed.pod.as_ref(), &c));
                (succeed(&wire::Empty {}), asked.map(NriEvent::Removed))
            }
            "Shutdown" => return Err(NriSessionError::Shutdown),
            // Acknowledge all other calls. The plugin did not request them.
            _ => (succeed(&wire::Empty {}), None),
        })
    }

    fn configure(&mut self) -> wire::Response {
        self.stage = self.stage.max(NriStage::Configured);
        succeed(&wire::ConfigureResponse {
            events: self.events,
        })
    }

    /// The list of running containers may come in several parts.
    fn synchronize(
        &mut self,
        part: wire::SynchronizeRequest,
    ) -> (wire::Response, Option<NriEvent>) {
        let running = part.containers.iter().map(|container| {
            let mut pods = part.pods.iter();
            let pod = pods.find(|pod| pod.id == container.pod_sandbox_id);
            NriContainer::new(pod, container)
        });
        self.running.extend(running);
        let response = succeed(&wire::SynchronizeResponse { more: part.more });
        if part.more {
            return (response, None);
        }
        self.stage = NriStage::Synchronized;
        let running = std::mem::take(&mut self.running);
        (response, Some(NriEvent::Synchronized(running)))
    }
}

/// The container that the call announces, if its grant is limited before it starts. Between these two moments it has
/// its control group, and no program of it runs.
fn starting(
    request: &wire::Request,
    grants: &Grants,
) -> Result<Option<NriContainer>, NriSessionError> {
    let payload = request.payload.as_slice();
    let (pod, container) = match request.method.as_str() {
        "StartContainer" => {
            let started = wire::ContainerRequest::decode(payload)?;
            (started.pod, started.container)
        }
        "StateChange" => {
            let changed = wire::StateChangeEvent::decode(payload)?;
            if changed.event != START_CONTAINER {
                return Ok(None);
            }
            (changed.pod, changed.container)
        }
        _ => return Ok(None),
    };
    let starting = container.map(|container| NriContainer::new(pod.as_ref(), &container));
    Ok(starting.filter(|container| {
        let mut holders = grants.values();
        holders.any(|holder| holder.is_limited && holder.is_for(container))
    }))
}

fn registered(message: &TtrpcMessage) -> Result<NriStep, NriSessionError> {
    let response = wire::Response::decode(message.payload.as_slice())?;
    match response.status.filter(|status| status.code != 0) {
        Some(status) => Err(NriSessionError::Refused(status.message)),
        None => Ok(NriStep::default()),
    }
}

fn create(
    request: &wire::CreateContainerRequest,
    grants: &Grants,
    rules: &VerdictRules,
) -> (wire::Response, Option<NriEvent>) {
    let Some(container) = &request.container else {
        return (fail(INVALID, "no container".to_owned()), None);
    };
    let asked = NriContainer::new(request.pod.as_ref(), container);
    let verdict = verdict::judge(&asked, grants, rules);
    let response = match &verdict {
        ContainerVerdict::Admit(env) => {
            succeed(&wire::CreateContainerResponse { adjust: set(env) })
        }
        ContainerVerdict::Audit(_) => succeed(&wire::CreateContainerResponse { adjust: None }),
        ContainerVerdict::Refuse(reason) => fail(PERMISSION_DENIED, reason.to_string()),
    };
    (response, Some(NriEvent::Judged(asked, verdict)))
}

/// Checks the container with the changes of all plugins. Reports only a verdict that is worse than the first one.
fn validate(
    request: &wire::ValidateContainerAdjustmentRequest,
    grants: &Grants,
    rules: &VerdictRules,
) -> (wire::Response, Option<NriEvent>) {
    let (Some(container), Some(adjust)) = (&request.container, &request.adjust) else {
        return (
            succeed(&wire::ValidateContainerAdjustmentResponse::default()),
            None,
        );
    };
    let before = NriContainer::new(request.pod.as_ref(), container);
    let known = verdict::judge(&before, grants, rules);
    let after = before.adjusted(adjust);
    let verdict = verdict::judge(&after, grants, rules);
    let response = wire::ValidateContainerAdjustmentResponse {
        reject: matches!(verdict, ContainerVerdict::Refuse(_)),
        reason: match &verdict {
            ContainerVerdict::Refuse(reason) => reason.to_string(),
            ContainerVerdict::Admit(_) | ContainerVerdict::Audit(_) => String::new(),
        },
    };
    let is_changed = !matches!(verdict, ContainerVerdict::Admit(_)) && verdict != known;
    (
        succeed(&response),
        is_changed.then_some(NriEvent::Judged(after, verdict)),
    )
}

/// A name with a leading dash removes the variable.
fn set(env: &[(String, String)]) -> Option<wire::ContainerAdjustment> {
    let env = env.iter().map(|(key, value)| wire::KeyValue {
        key: key.clone(),
        value: value.clone(),
    });
    let env: Vec<_> = env.collect();
    (!env.is_empty()).then(|| wire::ContainerAdjustment {
        env,
        ..Default::default()
    })
}

fn succeed(message: &impl prost::Message) -> wire::Response {
    wire::Response {
        status: None,
        payload: message.encode_to_vec(),
    }
}

fn fail(code: i32, message: String) -> wire::Response {
    let status = wire::Status { code, message };
    wire::Response {
        status: Some(status),
        payload: Vec::new(),
    }
}

const fn bit(event: i32) -> i32 {
    1 << (event - 1)
}
