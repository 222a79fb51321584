//! What the kubelet does for pods with whole cards: it asks which devices fit best together, takes them, reuses an init
//! container's devices, and calls the plugin before each start.

use apportion_abi::names::RESOURCE_WHOLE;
use apportion_proto::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest,
    PreStartContainerRequest, PreferredAllocationRequest,
};
use tonic::Status;

use crate::kubelet::FakeKubelet;
use crate::state::PodOf;

/// A container, its number of whole cards, and whether later containers reuse them.
pub type WholeCardRequest<'a> = (&'a str, usize, bool);

impl FakeKubelet {
    /// Admits a pod with whole cards. Returns each container with its devices.
    ///
    /// # Errors
    /// If too few devices are free or the plugin refuses. Then the pod fails.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub async fn admit_whole(
        &self,
        uid: &str,
        name: &str,
        containers: &[WholeCardRequest<'_>],
    ) -> Result<PodOf, Status> {
        let mut pod = PodOf {
            uid: uid.to_owned(),
            name: name.to_owned(),
            ..PodOf::default()
        };
        let mut handed_on: Vec<String> = Vec::new();
        for (container, count, is_init) in containers {
            let taken: Vec<&String> = pod.whole.iter().flat_map(|(_, ids)| ids).collect();
            let free = self.free(RESOURCE_WHOLE).into_iter();
            let mut available: Vec<String> = free.filter(|id| !taken.contains(&id)).collect();
            available.extend(handed_on.iter().cloned());
            if available.len() < *count {
                return Err(Status::resource_exhausted("too few devices are free"));
            }
            let must: Vec<String> = handed_on.iter().take(*count).cloned().collect();
            let ids = self.take(available, must, *count).await?;
            if *is_init {
                handed_on.extend(ids.iter().cloned())
            } else {
                handed_on.retain(|id| !ids.contains(id))
            }
            pod.whole.push(((*container).to_owned(), ids));
        }
        let mut state = self.shared().state();
        state.pods.insert(uid.to_owned(), pod.clone());
        state.save(&self.plugins());
        Ok(pod)
    }

    async fn take(
        &self,
        available: Vec<String>,
        must: Vec<String>,
        count: usize,
    ) -> Result<Vec<String>, Status> {
        let no_plugin = || Status::unavailable("no plugin answers");
        let mut client = self.client(RESOURCE_WHOLE).await.ok_or_else(no_plugin)?;
        let size = i32::try_from(count).expect("a pod asks for few cards");
        let request = ContainerPreferredAllocationRequest {
            available_device_i_ds: available.clone(),
            must_include_device_i_ds: must,
            allocation_size: size,
        };
        let container_requests = vec![request];
        let preferred = client
            .get_preferred_allocation(PreferredAllocationRequest { container_requests })
            .await?
            .into_inner();
        let mut ids: Vec<String> = preferred
            .container_responses
            .into_iter()
            .flat_map(|of| of.device_i_ds)
            .filter(|id| available.contains(id))
            .take(count)
            .collect();
        let others: Vec<String> = available
            .into_iter()
            .filter(|id| !ids.contains(id))
            .collect();
        ids.extend(others.into_iter().take(count.saturating_sub(ids.len())));
        let container_requests = vec![ContainerAllocateRequest {
            devices_ids: ids.clone(),
        }];
        let reply = client
            .allocate(AllocateRequest { container_requests })
            .await?;
        let responses = reply.into_inner().container_responses;
        let paths = responses.iter().flat_map(|of| &of.devices);
        let paths: Vec<_> = paths.map(|device| device.host_path.clone()).collect();
        if let [only] = paths.as_slice() {
            let first = ids.iter().min().map(|id| format!("/{id}/dev"));
            assert!(first.is_some_and(|first| only.ends_with(&first)), "{only}");
            assert!(responses[0].cdi_devices.is_empty());
            return Ok(ids);
        }
        let names = responses.iter().flat_map(|of| &of.cdi_devices);
        let names: Vec<_> = names.map(|device| device.name.clone()).collect();
        let mut expected: Vec<_> = ids
            .iter()
            .map(|id| format!("apportion.dev/grant={id}"))
            .collect();
        expected.sort();
        assert_eq!(names, expected);
        Ok(ids)
    }

    /// Allocates these devices, whether they are free or not.
    ///
    /// # Errors
    /// If the plugin refuses.
    pub async fn hand_whole(&self, ids: &[String]) -> Result<(), Status> {
        let no_plugin = || Status::unavailable("no plugin answers");
        let mut client = self.client(RESOURCE_WHOLE).await.ok_or_else(no_plugin)?;
        let container_requests = vec![ContainerAllocateRequest {
            devices_ids: ids.to_vec(),
        }];
        let asked = client.allocate(AllocateRequest { container_requests });
        asked.await.map(drop)
    }

    /// Calls the plugin before a container with whole cards starts.
    ///
    /// # Errors
    /// If it must not start, with the message for the pod's events.
    pub async fn before_whole_start(&self, uid: &str, container: &str) -> Result<(), Status> {
        let pod = self
            .pod(uid)
            .ok_or_else(|| Status::not_found("no such pod"))?;
        let mut containers = pod.whole.into_iter();
        let found = containers.find(|(name, _)| name == container);
        let (_, devices_ids) = found.ok_or_else(|| Status::not_found("no such container"))?;
        let no_plugin = || Status::unavailable("no plugin answers");
        let mut client = self.client(RESOURCE_WHOLE).await.ok_or_else(no_plugin)?;
        let asked = client.pre_start_container(PreStartContainerRequest { devices_ids });
        asked.await.map(drop)
    }
}
