//! The runtime's side of NRI, as far as a plugin can distinguish it from a real runtime.

use std::path::Path;
use std::time::Duration;

use apportion_nri::frame::{FrameDecoder, Kind, MuxConnection, TtrpcMessage, encode};
use apportion_nri::wire;
use prost::Message as _;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

/// How long a plugin may take to answer; a real runtime then drops it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(10);
/// NRI's number of the event.
const START_CONTAINER: i32 = 6;
/// How many containers are in one part of the synchronization.
const PART: usize = 16;

/// A runtime that waits for plugins.
pub(crate) struct FakeNriRuntime {
    listener: UnixListener,
    valid: i32,
}

pub(crate) struct ConnectedPlugin {
    socket: UnixStream,
    decoder: FrameDecoder,
    stream: u32,
    /// Whether to pause between any two pieces that it writes.
    pub(crate) is_halting: bool,
}

impl FakeNriRuntime {
    pub(crate) fn listen(path: &Path, valid: i32) -> Self {
        let listener = UnixListener::bind(path).expect("the folder is ours");
        Self { listener, valid }
    }

    pub(crate) async fn accept(&self, running: &[wire::Container]) -> ConnectedPlugin {
        self.try_accept(running)
            .await
            .expect("the plugin wishes for what is known")
    }

    /// Registers, configures and synchronizes a plugin; `None` if the plugin requests an unknown event.
    pub(crate) async fn try_accept(&self, running: &[wire::Container]) -> Option<ConnectedPlugin> {
        let accepted = timeout(REGISTRATION_TIMEOUT, self.listener.accept()).await;
        let (socket, _) = accepted
            .expect("no plugin came")
            .expect("it can be accepted");
        let mut asking = ConnectedPlugin {
            socket,
            decoder: FrameDecoder::default(),
            stream: 1,
            is_halting: false,
        };
        asking.register().await;
        let configure = wire::ConfigureRequest {
            runtime_name: "fake".to_owned(),
            request_timeout: 2000,
            ..Default::default()
        };
        let configured = asking
            .call("Configure", &configure)
            .await
            .expect("it can be configured");
        let wish = wire::ConfigureResponse::decode(configured.as_slice()).expect("it is an answer");
        if wish.events & !self.valid != 0 {
            return None;
        }
        asking.synchronize(running).await;
        Some(asking)
    }
}

impl ConnectedPlugin {
    async fn register(&mut self) {
        let (lane, message) = self.next().await;
        assert_eq!(
            (lane, message.kind),
            (MuxConnection::Runtime, Kind::Request)
        );
        let request = wire::Request::decode(message.payload.as_slice()).expect("it is a call");
        assert_eq!(request.service, "nri.pkg.api.v1alpha1.Runtime");
        assert_eq!(request.method, "RegisterPlugin");
        let plugin =
            wire::RegisterPluginRequest::decode(request.payload.as_slice()).expect("it registers");
        assert_eq!(
            (plugin.plugin_name.as_str(), plugin.plugin_idx.as_str()),
            ("apportion", "10")
        );
        let answer = TtrpcMessage {
            stream: message.stream,
            kind: Kind::Response,
            payload: wire::Response::default().encode_to_vec(),
        };
        self.say(&encode(MuxConnection::Runtime, &answer)).await;
    }

    async fn synchronize(&mut self, running: &[wire::Container]) {
        let mut parts: Vec<_> = running.chunks(PART).collect();
        let last = parts.pop().unwrap_or_default();
        for (part, more) in parts
            .into_iter()
            .map(|part| (part, true))
            .chain([(last, false)])
        {
            let request = wire::SynchronizeRequest {
                pods: vec![pod("uid-0")],
                containers: part.to_vec(),
                more,
            };
            let answer = self
                .call("Synchronize", &request)
                .await
                .expect("it listens");
            let answer =
                wire::SynchronizeResponse::decode(answer.as_slice()).expect("it is an answer");
            assert_eq!(answer.more, more, "it does not understand parts");
        }
    }

    pub(crate) async fn create(
        &mut self,
        pod: &wire::PodSandbox,
        container: &wire::Container,
    ) -> Result<Option<wire::ContainerAdjustment>, String> {
        let request = wire::CreateContainerRequest {
            pod: Some(pod.clone()),
            container: Some(container.clone()),
        };
        let answer = self.call("CreateContainer", &request).await?;
        let answer = wire::CreateContainerResponse::decode(answer.as_slice());
        Ok(answer.expect("it is an answer").adjust)
    }

    /// Announces that the container starts, as runtimes do today or, with `is_old`, did at first.
    pub(crate) async fn start(
        &mut self,
        pod: &wire::PodSandbox,
        container: &wire::Container,
        is_old: bool,
    ) {
        let (pod, container) = (Some(pod.clone()), Some(container.clone()));
        let answer = if is_old {
            let event = wire::StateChangeEvent {
                event: START_CONTAINER,
                pod,
                container,
            };
            self.call("StateChange", &event).await
        } else {
            let event = wire::ContainerRequest { pod, container };
            self.call("StartContainer", &event).await
        };
        answer.expect("a start is never refused");
    }

    pub(crate) async fn validate(
        &mut self,
        pod: &wire::PodSandbox,
        container: &wire::Container,
        adjust: wire::ContainerAdjustment,
    ) -> Option<String> {
        let request = wire::ValidateContainerAdjustmentRequest {
            pod: Some(pod.clone()),
            container: Some(container.clone()),
            adjust: Some(adjust),
        };
        let answer = self
            .call("ValidateContainerAdjustment", &request)
            .await
            .expect("it answers");
        let answer = wire::ValidateContainerAdjustmentResponse::decode(answer.as_slice());
        let answer = answer.expect("it is an answer");
        answer.reject.then_some(answer.reason)
    }

    async fn call(
        &mut self,
        method: &str,
        payload: &impl prost::Message,
    ) -> Result<Vec<u8>, String> {
        let request = wire::Request {
            service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
            method: method.to_owned(),
            payload: payload.encode_to_vec(),
            timeout_nano: 0,
        };
        self.stream += 2;
        let call = TtrpcMessage {
            stream: self.stream,
            kind: Kind::Request,
            payload: request.encode_to_vec(),
        };
        self.say(&encode(MuxConnection::Plugin, &call)).await;
        let answered = timeout(REQUEST_TIMEOUT, self.next()).await;
        let (lane, answer) = answered.expect("the plugin was too slow and would be thrown out");
        assert_eq!(
            (lane, answer.kind, answer.stream),
            (MuxConnection::Plugin, Kind::Response, self.stream)
        );
        let response = wire::Response::decode(answer.payload.as_slice()).expect("it is an answer");
        match response.status.filter(|status| status.code != 0) {
            Some(status) => Err(status.message),
            None => Ok(response.payload),
        }
    }

    pub(crate) async fn say(&self, bytes: &[u8]) {
        let pieces = if self.is_halting { 777 } else { bytes.len() };
        for piece in bytes.chunks(pieces) {
            let mut rest = piece;
            while !rest.is_empty() {
                self.socket.writable().await.expect("it is open");
                if let Ok(written) = self.socket.try_write(rest) {
                    rest = &rest[written..];
                }
            }
            tokio::task::yield_now().await;
        }
    }

    async fn next(&mut self) -> (MuxConnection, TtrpcMessage) {
        let mut bytes = [0; 4096];
        loop {
            let read = self.socket.read(&mut bytes).await.expect("it is open");
            assert_ne!(read, 0, "the plugin went away");
            let mut messages = self
                .decoder
                .feed(&bytes[..read])
                .expect("it keeps to the bounds");
            assert!(messages.len() <= 1, "one call has one answer");
            if let Some(message) = messages.pop() {
                return message;
            }
        }
    }
}

pub(crate) fn pod(uid: &str) -> wire::PodSandbox {
    wire::PodSandbox {
        id: "sandbox".to_owned(),
        name: "pod".to_owned(),
        uid: uid.to_owned(),
        namespace: "team".to_owned(),
        ..Default::default()
    }
}

pub(crate) fn container(name: &str, env: &[&str]) -> wire::Container {
    wire::Container {
        id: format!("id-of-{name}"),
        pod_sandbox_id: "sandbox".to_owned(),
        name: name.to_owned(),
        env: env.iter().map(|entry| (*entry).to_owned()).collect(),
        ..Default::default()
    }
}
