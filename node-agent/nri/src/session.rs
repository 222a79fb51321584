//! One connection to a runtime, without the connection: messages in, messages and news out. Pure.
//!
//! The order is the runtime's: the plugin registers, is configured (and says which events it wants), is
//! told of everything that runs, and from then on is asked about each container before it is created. An
//! answer is made at once from what is known; a plugin that keeps a runtime waiting is thrown out.
//!
//! # Events that a runtime does not know
//!
//! A runtime closes the connection without a word if it is asked for an event that it does not know. So
//! the wishes stand in [`WISHES`], dearest first, and who is closed between the answer and the first
//! synchronisation comes back with the next one.

use prost::Message as _;

use crate::asked::Asked;
use crate::frame::{Kind, Lane, Message};
use crate::verdict::{self, Grants, Rules, Verdict};
use crate::wire;

/// The numbers of the events.
const CREATE_CONTAINER: i32 = 4;
const STOP_CONTAINER: i32 = 10;
const REMOVE_CONTAINER: i32 = 11;
const VALIDATE_CONTAINER_ADJUSTMENT: i32 = 14;

const BASE: i32 = bit(CREATE_CONTAINER) | bit(STOP_CONTAINER) | bit(REMOVE_CONTAINER);
/// What is wished for, dearest first. To validate came late, and sees what other plugins add.
pub const WISHES: [i32; 2] = [BASE | bit(VALIDATE_CONTAINER_ADJUSTMENT), BASE];

/// The services' names on the wire.
const RUNTIME: &str = "nri.pkg.api.v1alpha1.Runtime";
const PLUGIN: &str = "nri.pkg.api.v1alpha1.Plugin";
/// The stream of the one call that is made here.
const REGISTER: u32 = 1;
/// The codes that a call can end with.
const PERMISSION_DENIED: i32 = 7;
const UNIMPLEMENTED: i32 = 12;
const INVALID: i32 = 3;

/// Something that others want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The runtime asks from now on, and these containers exist.
    Synchronized(Vec<Asked>),
    /// A container was judged.
    Judged(Asked, Verdict),
    /// A container is no more.
    Removed(Asked),
    /// The runtime no longer asks.
    Disconnected,
}

/// Why a connection is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Break {
    /// The runtime does not want the plugin.
    #[error("the runtime refused the plugin: {0}")]
    Refused(String),
    /// The runtime goes down.
    #[error("the runtime is shutting down")]
    Shutdown,
    /// A message that is none.
    #[error("the runtime sent an invalid message")]
    Garbage(#[from] prost::DecodeError),
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Registration was sent.
    Registering,
    /// The wish for events was sent.
    Configured,
    /// Everything that ran is known.
    Synchronized,
}

/// What to do after a message.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// To be sent.
    pub answer: Option<(Lane, Message)>,
    /// To be told.
    pub news: Option<News>,
}

/// One connection.
#[derive(Debug)]
pub struct Session {
    stage: Stage,
    events: i32,
    running: Vec<Asked>,
}

impl Session {
    /// A connection that wishes for these events, and its first message.
    #[must_use]
    pub fn open(name: &str, index: &str, events: i32) -> (Self, (Lane, Message)) {
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
        let message = Message {
            stream: REGISTER,
            kind: Kind::Request,
            payload: request.encode_to_vec(),
        };
        let session = Self {
            stage: Stage::Registering,
            events,
            running: Vec::new(),
        };
        (session, (Lane::Runtime, message))
    }

    /// How far it has come.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Takes a message in.
    pub fn take(
        &mut self,
        lane: Lane,
        message: &Message,
        grants: &Grants,
        rules: &Rules,
    ) -> Result<Step, Break> {
        match (lane, message.kind) {
            (Lane::Runtime, Kind::Response) => registered(message),
            (Lane::Plugin, Kind::Request) => self.called(message, grants, rules),
            (Lane::Plugin | Lane::Runtime, _) => Ok(Step::default()),
        }
    }

    fn called(&mut self, message: &Message, grants: &Grants, rules: &Rules) -> Result<Step, Break> {
        let request = wire::Request::decode(message.payload.as_slice())?;
        let (response, news) = match request.service == PLUGIN {
            true => self.dispatch(&request, grants, rules)?,
            false => (
                fail(UNIMPLEMENTED, format!("no service {}", request.service)),
                None,
            ),
        };
        let answer = Message {
            stream: message.stream,
            kind: Kind::Response,
            payload: response.encode_to_vec(),
        };
        Ok(Step {
            answer: Some((Lane::Plugin, answer)),
            news,
        })
    }

    fn dispatch(
        &mut self,
        request: &wire::Request,
        grants: &Grants,
        rules: &Rules,
    ) -> Result<(wire::Response, Option<News>), Break> {
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
                    .map(|c| Asked::new(removed.pod.as_ref(), &c));
                (succeed(&wire::Empty {}), asked.map(News::Removed))
            }
            "Shutdown" => return Err(Break::Shutdown),
            // Whatever else it tells of needs no more than a nod: nothing of it was asked for.
            _ => (succeed(&wire::Empty {}), None),
        })
    }

    fn configure(&mut self) -> wire::Response {
        self.stage = self.stage.max(Stage::Configured);
        succeed(&wire::ConfigureResponse {
            events: self.events,
        })
    }

    /// Everything that runs may come in several parts.
    fn synchronize(&mut self, part: wire::SynchronizeRequest) -> (wire::Response, Option<News>) {
        let pod = |container: &wire::Container| {
            let mut pods = part.pods.iter();
            pods.find(|pod| pod.id == container.pod_sandbox_id)
        };
        let containers = part.containers.iter();
        let running = containers.map(|container| Asked::new(pod(container), container));
        self.running.extend(running);
        let response = succeed(&wire::SynchronizeResponse { more: part.more });
        if part.more {
            return (response, None);
        }
        self.stage = Stage::Synchronized;
        let running = std::mem::take(&mut self.running);
        (response, Some(News::Synchronized(running)))
    }
}

fn registered(message: &Message) -> Result<Step, Break> {
    let response = wire::Response::decode(message.payload.as_slice())?;
    match response.status.filter(|status| status.code != 0) {
        Some(status) => Err(Break::Refused(status.message)),
        None => Ok(Step::default()),
    }
}

fn create(
    request: &wire::CreateContainerRequest,
    grants: &Grants,
    rules: &Rules,
) -> (wire::Response, Option<News>) {
    let Some(container) = &request.container else {
        return (fail(INVALID, "no container".to_owned()), None);
    };
    let asked = Asked::new(request.pod.as_ref(), container);
    let verdict = verdict::judge(&asked, grants, rules);
    let response = match &verdict {
        Verdict::Admit(env) => succeed(&wire::CreateContainerResponse { adjust: set(env) }),
        Verdict::Audit(_) => succeed(&wire::CreateContainerResponse { adjust: None }),
        Verdict::Refuse(reason) => fail(PERMISSION_DENIED, reason.to_string()),
    };
    (response, Some(News::Judged(asked, verdict)))
}

/// What all plugins together made of a container. News only where it is worse than what was judged before.
fn validate(
    request: &wire::ValidateContainerAdjustmentRequest,
    grants: &Grants,
    rules: &Rules,
) -> (wire::Response, Option<News>) {
    let (Some(container), Some(adjust)) = (&request.container, &request.adjust) else {
        return (
            succeed(&wire::ValidateContainerAdjustmentResponse::default()),
            None,
        );
    };
    let before = Asked::new(request.pod.as_ref(), container);
    let known = verdict::judge(&before, grants, rules);
    let after = before.adjusted(adjust);
    let verdict = verdict::judge(&after, grants, rules);
    let response = wire::ValidateContainerAdjustmentResponse {
        reject: matches!(verdict, Verdict::Refuse(_)),
        reason: match &verdict {
            Verdict::Refuse(reason) => reason.to_string(),
            Verdict::Admit(_) | Verdict::Audit(_) => String::new(),
        },
    };
    let is_news = !matches!(verdict, Verdict::Admit(_)) && verdict != known;
    (
        succeed(&response),
        is_news.then_some(News::Judged(after, verdict)),
    )
}

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
