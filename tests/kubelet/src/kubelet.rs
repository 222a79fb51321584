//! The kubelet, driven by a test.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use apportion_abi::names::RESOURCE_SLOT;
use apportion_proto::channel;
use apportion_proto::deviceplugin::device_plugin_client::DevicePluginClient;
use apportion_proto::deviceplugin::registration_server::RegistrationServer;
use apportion_proto::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse, Empty,
    PreStartContainerRequest,
};
use apportion_proto::podresources::pod_resources_lister_server::PodResourcesListerServer;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic::transport::{Channel, Server};

use crate::services::SharedKubeletState;
use crate::state::{PodOf, RegisteredPlugin};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// The kubelet pretends to have started this long ago. The agent does not trust an empty pod list of a kubelet that has
/// just started.
const AGE: Duration = Duration::from_secs(3600);

/// A kubelet.
#[derive(Debug)]
pub struct FakeKubelet {
    dir: PathBuf,
    shared: SharedKubeletState,
    servers: Vec<JoinHandle<()>>,
    followers: Vec<JoinHandle<()>>,
}

impl FakeKubelet {
    /// Starts a kubelet with its folder at `dir`.
    #[must_use]
    pub fn start(dir: &Path) -> Self {
        let mut kubelet = Self {
            dir: dir.to_owned(),
            shared: SharedKubeletState::default(),
            servers: Vec::new(),
            followers: Vec::new(),
        };
        kubelet.serve();
        kubelet
    }

    /// Restarts it: all sockets in its folder are gone, other files stay.
    ///
    /// # Panics
    /// If its folder cannot be emptied.
    pub async fn restart(&mut self) {
        for task in self.servers.drain(..).chain(self.followers.drain(..)) {
            task.abort();
            let _ = task.await;
        }
        for entry in fs::read_dir(self.plugins()).expect("it is there").flatten() {
            if entry
                .path()
                .extension()
                .is_some_and(|ending| ending == "sock")
            {
                fs::remove_file(entry.path()).expect("the folder is writable");
            }
        }
        let mut state = self.shared.state();
        for plugin in state.plugins.values_mut() {
            plugin.endpoint = None;
            silence(plugin);
        }
        drop(state);
        self.serve();
    }

    fn serve(&mut self) {
        let registration = RegistrationServer::new(self.shared.clone());
        let lister = PodResourcesListerServer::new(self.shared.clone());
        let socket = self.plugins().join("kubelet.sock");
        let listener = listen(&socket);
        make_old(&socket);
        let incoming = UnixListenerStream::new(listener);
        let server = Server::builder().add_service(registration);
        self.servers.push(tokio::spawn(async move {
            let _ = server.serve_with_incoming(incoming).await;
        }));
        let listener = listen(&self.dir.join("pod-resources/kubelet.sock"));
        let incoming = UnixListenerStream::new(listener);
        let server = Server::builder().add_service(lister);
        self.servers.push(tokio::spawn(async move {
            let _ = server.serve_with_incoming(incoming).await;
        }));
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn plugins(&self) -> PathBuf {
        self.dir.join("device-plugins")
    }

    /// How often the slot plugin has registered.
    #[must_use]
    pub fn registrations(&self) -> usize {
        self.registrations_of(RESOURCE_SLOT)
    }

    /// How often a plugin of this resource has registered.
    #[must_use]
    pub fn registrations_of(&self, resource: &str) -> usize {
        let state = self.shared.state();
        state.plugins.get(resource).map_or(0, |of| of.registrations)
    }

    /// Waits until a slot plugin has registered more than `before` times, and follows its devices.
    ///
    /// # Panics
    /// If none does.
    pub async fn await_plugin(&mut self, before: usize) {
        self.await_plugin_of(RESOURCE_SLOT, before).await;
        wait("slots are offered", async || {
            !self.offered(RESOURCE_SLOT).is_empty()
        })
        .await;
    }

    /// The same for a plugin of this resource, whatever it offers.
    ///
    /// # Panics
    /// If none registers.
    pub async fn await_plugin_of(&mut self, resource: &'static str, before: usize) {
        let is_there = async || self.registrations_of(resource) > before;
        wait("a plugin registers", is_there).await;
        let mut client = self.client(resource).await.expect("the plugin serves");
        let mut devices = client
            .list_and_watch(Empty {})
            .await
            .expect("it lists")
            .into_inner();
        let shared = self.shared.clone();
        let (first, heard) = tokio::sync::oneshot::channel();
        let mut first = Some(first);
        self.followers.push(tokio::spawn(async move {
            let with = |then: &mut dyn FnMut(&mut RegisteredPlugin)| {
                then(
                    shared
                        .state()
                        .plugins
                        .entry(resource.to_owned())
                        .or_default(),
                );
            };
            while let Ok(Some(listed)) = devices.message().await {
                let health = listed.devices.into_iter();
                let health = health.map(|device| (device.id, device.health == "Healthy"));
                let health: BTreeMap<_, _> = health.collect();
                with(&mut |plugin| plugin.devices.clone_from(&health));
                first.take().map(|first| first.send(()));
            }
            // While no plugin runs, its devices cannot be given out.
            with(&mut silence);
        }));
        heard.await.expect("it says what it has");
    }

    /// The healthy devices of a resource, held or free.
    #[must_use]
    pub fn offered(&self, resource: &str) -> Vec<String> {
        let state = self.shared.state();
        let devices = state
            .plugins
            .get(resource)
            .into_iter()
            .flat_map(|of| &of.devices);
        let healthy = devices.filter(|(_, is_healthy)| **is_healthy);
        healthy.map(|(id, _)| id.clone()).collect()
    }

    /// The healthy devices of a resource that no pod holds.
    #[must_use]
    pub fn free(&self, resource: &str) -> Vec<String> {
        self.shared.state().free(resource)
    }

    pub(crate) fn shared(&self) -> &SharedKubeletState {
        &self.shared
    }

    pub(crate) async fn client(&self, resource: &str) -> Option<DevicePluginClient<Channel>> {
        let endpoint = self.endpoint(resource)?;
        let channel = channel(&self.plugins().join(endpoint)).await.ok()?;
        Some(DevicePluginClient::new(channel))
    }

    fn endpoint(&self, resource: &str) -> Option<String> {
        let state = self.shared.state();
        state.plugins.get(resource)?.endpoint.clone()
    }

    /// Admits a pod: its first container gets a device, and the others get the same one, like containers after an init
    /// container.
    ///
    /// # Errors
    /// If no device is free or the plugin refuses. Then the pod fails.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub async fn admit(
        &self,
        uid: &str,
        name: &str,
        containers: &[&str],
    ) -> Result<String, Status> {
        let no_device = || Status::resource_exhausted("no device is free");
        let device = self.shared.state().free(RESOURCE_SLOT).into_iter().next();
        let device = device.ok_or_else(no_device)?;
        self.admit_to(uid, name, containers, device).await
    }

    /// The same with this device, whether it is free or not.
    ///
    /// # Errors
    /// If the plugin refuses. Then the pod fails.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub async fn admit_to(
        &self,
        uid: &str,
        name: &str,
        containers: &[&str],
        device: String,
    ) -> Result<String, Status> {
        let no_plugin = || Status::unavailable("no plugin answers");
        let mut client = self.client(RESOURCE_SLOT).await.ok_or_else(no_plugin)?;
        let mut pod = PodOf {
            uid: uid.to_owned(),
            name: name.to_owned(),
            ..PodOf::default()
        };
        for container in containers {
            let devices_ids = vec![device.clone()];
            let container_requests = vec![ContainerAllocateRequest { devices_ids }];
            let reply = client
                .allocate(AllocateRequest { container_requests })
                .await?;
            let response = reply
                .into_inner()
                .container_responses
                .pop()
                .unwrap_or_default();
            check(&response, &device);
            self.shared.state().answers.insert(uid.to_owned(), response);
            pod.devices.push(((*container).to_owned(), device.clone()));
        }
        self.enter(pod);
        Ok(device)
    }

    /// Adds a pod to the kubelet's state without asking a plugin.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub fn enter(&self, pod: PodOf) {
        let mut state = self.shared.state();
        state.pods.insert(pod.uid.clone(), pod);
        state.save(&self.plugins());
    }

    /// Another plugin, like NVIDIA's, offers these devices of a resource. An empty list removes it.
    pub fn offer_of_another(&self, resource: &str, devices: &[&str]) {
        let mut state = self.shared.state();
        let plugin = state.plugins.entry(resource.to_owned()).or_default();
        plugin.devices = devices.iter().map(|id| ((*id).to_owned(), true)).collect();
    }

    /// Calls the plugin before a container of the pod starts.
    ///
    /// # Errors
    /// If the container must not start, with the message for the pod's events.
    pub async fn before_start(&self, uid: &str) -> Result<(), Status> {
        let device = self.pod(uid).and_then(|pod| pod.devices.first().cloned());
        let (_, device) = device.ok_or_else(|| Status::not_found("no such pod"))?;
        let no_plugin = || Status::unavailable("no plugin answers");
        let mut client = self.client(RESOURCE_SLOT).await.ok_or_else(no_plugin)?;
        let devices_ids = vec![device];
        let asked = client.pre_start_container(PreStartContainerRequest { devices_ids });
        asked.await.map(drop)
    }

    /// The plugin's answer for a pod.
    #[must_use]
    pub fn answer(&self, uid: &str) -> ContainerAllocateResponse {
        let answers = &self.shared.state().answers;
        answers.get(uid).cloned().unwrap_or_default()
    }

    /// A pod in the kubelet's state.
    #[must_use]
    pub fn pod(&self, uid: &str) -> Option<PodOf> {
        self.shared.state().pods.get(uid).cloned()
    }

    /// The UIDs of all pods in the kubelet's state.
    #[must_use]
    pub fn pods(&self) -> Vec<String> {
        self.shared.state().pods.keys().cloned().collect()
    }

    /// Ends a pod. The checkpoint keeps it until the next pod is admitted, as the real kubelet's does.
    pub fn remove(&self, uid: &str) {
        self.shared.state().pods.remove(uid);
    }
}

impl Drop for FakeKubelet {
    fn drop(&mut self) {
        self.servers
            .iter()
            .chain(&self.followers)
            .for_each(JoinHandle::abort);
    }
}

/// The answer must be either one CDI device name, or mounts and variables without CDI.
fn check(response: &ContainerAllocateResponse, device: &str) {
    let name = format!("apportion.dev/grant={device}");
    let named = response.cdi_devices.iter().map(|device| &device.name);
    let has_paths = !response.mounts.is_empty() && !response.devices.is_empty();
    match named.collect::<Vec<_>>().as_slice() {
        [] => assert!(has_paths, "{response:?}"),
        [only] => assert!(**only == name && !has_paths, "{response:?}"),
        _ => panic!("{response:?}"),
    }
}

/// Marks a plugin's devices as unavailable.
fn silence(plugin: &mut RegisteredPlugin) {
    let health = plugin.devices.values_mut();
    health.for_each(|is_healthy| *is_healthy = false);
}

pub(crate) fn listen(socket: &Path) -> UnixListener {
    let folder = socket.parent().expect("a socket has a folder");
    fs::create_dir_all(folder).expect("the folder is writable");
    let _ = fs::remove_file(socket);
    UnixListener::bind(socket).expect("the path is short enough")
}

fn make_old(path: &Path) {
    let then = SystemTime::now()
        .checked_sub(AGE)
        .expect("the clock is right");
    let since = then.duration_since(UNIX_EPOCH).unwrap_or_default();
    let stamp = Timespec {
        tv_sec: since.as_secs().try_into().unwrap_or_default(),
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: stamp,
        last_modification: stamp,
    };
    utimensat(CWD, path, &times, AtFlags::empty()).expect("the socket is ours");
}

async fn wait(what: &str, mut seen: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !seen().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "not within {PATIENCE:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
