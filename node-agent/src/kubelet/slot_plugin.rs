//! The device plugin of slots.
//!
//! `Allocate` answers with things that do not exist yet (see `allocate_strategy`). The agent creates them in
//! `PreStartContainer`, which the kubelet calls before every start of the container. Any failure there is an error,
//! and the container does not start.

use std::sync::Arc;
use std::time::Instant;

use apportion_abi::names::RESOURCE_SLOT;
use apportion_exit::error_chain;
use apportion_ledger::SlotId;
use apportion_proto::deviceplugin::device_plugin_server::DevicePlugin;
use apportion_proto::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, Device, DevicePluginOptions,
    Empty, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse,
};
use apportion_runtime_class::slot::Kind;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use super::allocate_strategy::AllocateStrategy;
use super::list_and_watch::{Lists, health, lists};
use super::local_fit::LocalFit;
use super::poll::KubeletPoller;
use super::snapshot::Holder;
use super::stats::KubeletEvent;
use crate::api::request::{self, PrepareOutcome};

/// Each slot, and whether it is available.
pub(crate) type Offers = watch::Receiver<Vec<(SlotId, bool)>>;

#[derive(Clone, Debug)]
pub(crate) struct SlotPlugin {
    pub(crate) kubelet: Arc<KubeletPoller>,
    pub(crate) requests: mpsc::Sender<request::AgentRequest>,
    pub(crate) offers: Offers,
    pub(crate) answers: watch::Receiver<AllocateStrategy>,
    pub(crate) local_fit: Option<Arc<LocalFit>>,
}

pub(crate) const OPTIONS: DevicePluginOptions = DevicePluginOptions {
    pre_start_required: true,
    get_preferred_allocation_available: false,
};

#[tonic::async_trait]
impl DevicePlugin for SlotPlugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(OPTIONS))
    }

    type ListAndWatchStream = Lists;

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        Ok(Response::new(lists(self.offers.clone(), None, |offers| {
            offers.iter().map(device).collect()
        })))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("all slots are equivalent"))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let ContainerAllocateRequest { devices_ids } = container;
            let slot = the_slot(&devices_ids)?;
            if let Some(pod) = self.kubelet.holder_of_given(slot).await {
                warn!(%slot, pod, "Kubelet allocated a slot twice");
                return Err(Status::failed_precondition(format!(
                    "slot {slot} is already held by pod {pod}"
                )));
            }
            let handed = request::AgentRequest::Handed(slot);
            self.requests.send(handed).await.map_err(|_| leaving())?;
            container_responses.push(self.answers.borrow().of(&[slot.to_string()], Kind::Share));
        }
        Ok(Response::new(AllocateResponse {
            container_responses,
        }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let slot = the_slot(&request.into_inner().devices_ids)?;
        let began = Instant::now();
        let started = self.start(slot).await;
        let event = KubeletEvent::Started {
            took: began.elapsed(),
            is_granted: started.is_ok(),
        };
        let _ = self
            .requests
            .send(request::AgentRequest::Kubelet(event))
            .await;
        match started {
            Ok(holder) => {
                info!(%slot, pod = holder.pod, name = holder.name, "Container start allowed");
                Ok(Response::new(PreStartContainerResponse {}))
            }
            Err(status) => {
                warn!(%slot, reason = status.message(), "Container start refused");
                Err(status)
            }
        }
    }
}

impl SlotPlugin {
    async fn start(&self, slot: SlotId) -> Result<Holder, Status> {
        let polled = self.kubelet.poll().await;
        let snapshot = polled.map_err(|error| Status::failed_precondition(error_chain(&error)))?;
        let holder = snapshot.held.get(&slot).cloned().ok_or_else(|| {
            Status::failed_precondition(match snapshot.disputed.get(&slot) {
                Some(dispute) => format!("the owner of slot {slot} is unknown: {dispute}"),
                None => format!("the kubelet does not report which pod holds slot {slot}"),
            })
        })?;
        let covered = self.kubelet.covered(&holder.pod);
        if let Some(what) = covered.filter(|_| self.answers.borrow().can_be_covered()) {
            return Err(Status::failed_precondition(format!(
                "{what}, which hides the files that enforce its limit (the container runtime has no CDI)"
            )));
        }
        if self.prepare(slot, &holder).await? == PrepareOutcome::Unplaced {
            let local_fit = self.local_fit.as_ref().ok_or_else(|| unplaced(&holder))?;
            local_fit.allocate(&holder).await?;
            if self.prepare(slot, &holder).await? == PrepareOutcome::Unplaced {
                return Err(unplaced(&holder));
            }
        }
        Ok(holder)
    }

    async fn prepare(&self, slot: SlotId, holder: &Holder) -> Result<PrepareOutcome, Status> {
        let (answer, answered) = oneshot::channel();
        let request = request::AgentRequest::Prepare(slot, holder.clone(), answer);
        self.requests.send(request).await.map_err(|_| leaving())?;
        answered.await.map_err(|_| leaving())?
    }
}

fn unplaced(holder: &Holder) -> Status {
    Status::failed_precondition(format!(
        "pod {} has no GPU share on this node: its scheduler reserved none with the apportion agent; check spec.schedulerName",
        holder.name.as_ref().unwrap_or(&holder.pod)
    ))
}

pub(super) fn leaving() -> Status {
    Status::unavailable("the apportion agent is stopping")
}

fn device((slot, is_offered): &(SlotId, bool)) -> Device {
    Device {
        id: slot.to_string(),
        health: health(*is_offered),
        topology: None,
    }
}

/// The only slot of a container.
fn the_slot(ids: &[String]) -> Result<SlotId, Status> {
    match ids {
        [id] => id.parse().map_err(Status::invalid_argument),
        _ => Err(Status::invalid_argument(format!(
            "a container can have one {RESOURCE_SLOT}, not {}",
            ids.len()
        ))),
    }
}
