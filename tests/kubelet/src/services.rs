//! The two services that a kubelet offers to plugins and agents.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apportion_proto::deviceplugin::registration_server::Registration;
use apportion_proto::deviceplugin::{Empty, RegisterRequest};
use apportion_proto::podresources::pod_resources_lister_server::PodResourcesLister;
use apportion_proto::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ListPodResourcesRequest,
    ListPodResourcesResponse,
};
use tonic::{Request, Response, Status};

use crate::state::KubeletState;

/// The kubelet's state, shared by the services and the test.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedKubeletState(Arc<Mutex<KubeletState>>);

impl SharedKubeletState {
    pub(crate) fn state(&self) -> MutexGuard<'_, KubeletState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl Registration for SharedKubeletState {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let RegisterRequest {
            version,
            endpoint,
            resource_name,
            options,
        } = request.into_inner();
        let asks_before_start = options.is_some_and(|options| options.pre_start_required);
        if version != "v1beta1" || !resource_name.contains('/') || !asks_before_start {
            return Err(Status::invalid_argument("not what this kubelet expects"));
        }
        let mut state = self.state();
        let plugin = state.plugins.entry(resource_name).or_default();
        plugin.endpoint = Some(endpoint);
        plugin.registrations += 1;
        Ok(Response::new(Empty {}))
    }
}

#[tonic::async_trait]
impl PodResourcesLister for SharedKubeletState {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let pod_resources = self.state().listed();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        let devices = self.state().allocatable();
        Ok(Response::new(AllocatableResourcesResponse { devices }))
    }
}
