//! The device plugin of whole cards: serves `nvidia.com/gpu` from the same ledger as the shares.
//!
//! `Allocate` reserves an idle card, or refuses, and then the pod fails at admission with the reason. The pod's card
//! is chosen before its container starts, because only then does the agent know whether cards are reserved for this
//! pod. The container gets the cards and nothing else of ours: no library, no limit. As with shares, the CDI specs
//! of its devices do not exist before, so the container cannot start without the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::CardUuid;
use apportion_exit::error_chain;
use apportion_ledger::{GpuTopology, WholeCardId, WholeCardOffer};
use apportion_proto::deviceplugin::device_plugin_server::DevicePlugin;
use apportion_proto::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device,
    DevicePluginOptions, Empty, NumaNode, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, TopologyInfo,
};
use apportion_runtime_class::slot::Kind;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep};
use tonic::{Code, Request, Response, Status};
use tracing::{info, warn};

use super::allocate_strategy::AllocateStrategy;
use super::list_and_watch::{Lists, health, lists};
use super::poll::KubeletPoller;
use super::rival_owner::RivalPresence;
use super::slot_plugin::leaving;
use crate::api::request::{self, StartingContainer};

/// How long a container waits for the processes of the previous holder to end. The kubelet itself waits half a
/// minute.
const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(250);

/// The devices and the topology of their cards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WholeCardOffers {
    pub(crate) offers: Vec<WholeCardOffer>,
    pub(crate) topology: GpuTopology,
}

#[derive(Clone, Debug)]
pub(crate) struct WholeCardPlugin {
    pub(crate) kubelet: Arc<KubeletPoller>,
    pub(crate) requests: mpsc::Sender<request::AgentRequest>,
    pub(crate) offers: watch::Receiver<Arc<WholeCardOffers>>,
    pub(crate) answers: watch::Receiver<AllocateStrategy>,
    /// Whether another plugin serves whole cards.
    pub(crate) rival: watch::Receiver<RivalPresence>,
}

pub(crate) const OPTIONS: DevicePluginOptions = DevicePluginOptions {
    pre_start_required: true,
    get_preferred_allocation_available: true,
};

#[tonic::async_trait]
impl DevicePlugin for WholeCardPlugin {
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
        let rival = Some(self.rival.clone());
        let lists = lists(self.offers.clone(), rival, |offers| devices(offers));
        Ok(Response::new(lists))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let offers = self.offers.borrow().clone();
        let containers = request.into_inner().container_requests;
        let container_responses: Result<_, Status> = containers
            .iter()
            .map(|container| {
                let available = ids(&container.available_device_i_ds)?;
                let must = ids(&container.must_include_device_i_ds)?;
                let size = usize::try_from(container.allocation_size).unwrap_or_default();
                let preferred = preferred(&offers, &available, &must, size);
                Ok(ContainerPreferredAllocationResponse {
                    device_i_ds: preferred.iter().map(WholeCardId::to_string).collect(),
                })
            })
            .collect();
        Ok(Response::new(PreferredAllocationResponse {
            container_responses: container_responses?,
        }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let ids: Vec<WholeCardId> = ids(&container.devices_ids)?.into_iter().collect();
            let names: Vec<String> = ids.iter().map(WholeCardId::to_string).collect();
            self.hand(ids).await?;
            container_responses.push(self.answers.borrow().of(&names, Kind::Whole));
        }
        Ok(Response::new(AllocateResponse {
            container_responses,
        }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let ids = ids(&request.into_inner().devices_ids)?;
        let names: Vec<String> = ids.iter().map(WholeCardId::to_string).collect();
        let names = names.join(",");
        match self.start(&ids).await {
            Ok(pod) => {
                info!(whole = names, pod, "Container start allowed");
                Ok(Response::new(PreStartContainerResponse {}))
            }
            Err(status) => {
                let reason = status.message();
                warn!(whole = names, reason, "Container start refused");
                Err(status)
            }
        }
    }
}

impl WholeCardPlugin {
    /// Holds cards for devices that the kubelet allocates. It polls first: the kubelet frees the devices of ended
    /// pods when it allocates them again, so their cards may be free by now. Refuses devices of a running container.
    async fn hand(&self, ids: Vec<WholeCardId>) -> Result<(), Status> {
        let polled = self.kubelet.poll().await;
        let snapshot = polled.map_err(|error| Status::failed_precondition(error_chain(&error)))?;
        if let Some((id, pod)) = snapshot.whole.in_use(&ids) {
            warn!(whole = %id, pod, "Kubelet allocated a whole GPU twice");
            return Err(Status::failed_precondition(format!(
                "whole GPU {id} is already held by pod {pod}"
            )));
        }
        self.ask(|answer| request::AgentRequest::HandWhole(ids, answer))
            .await
    }

    /// Prepares the container's devices. Returns the pod whose container may start.
    async fn start(&self, ids: &BTreeSet<WholeCardId>) -> Result<String, Status> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let starting = self.starting(ids).await?;
            let pod = starting.pod.clone();
            let answer = self.ask(|answer| request::AgentRequest::PrepareWhole(starting, answer));
            match answer.await {
                Err(status) if is_passing(&status) && Instant::now() < deadline => {
                    sleep(AGAIN).await;
                }
                answer => return answer.map(|()| pod),
            }
        }
    }

    async fn starting(&self, ids: &BTreeSet<WholeCardId>) -> Result<StartingContainer, Status> {
        let polled = self.kubelet.poll().await;
        let snapshot = polled.map_err(|error| Status::failed_precondition(error_chain(&error)))?;
        let mut contests = snapshot.whole.contested.values();
        if let Some(contest) = contests.find(|of| !ids.is_disjoint(&of.ids)) {
            return Err(Status::failed_precondition(contest.to_string()));
        }
        let mut pods = snapshot.whole.pods.into_iter();
        let found = pods.find(|(_, holder)| !ids.is_empty() && ids.is_subset(&holder.ids));
        let (pod, holder) = found.ok_or_else(|| {
            Status::failed_precondition(
                "the kubelet does not report which pod holds these whole GPUs",
            )
        })?;
        Ok(StartingContainer {
            pod,
            holder,
            ids: ids.clone(),
        })
    }

    async fn ask(
        &self,
        request: impl FnOnce(request::Answer<()>) -> request::AgentRequest,
    ) -> Result<(), Status> {
        let (answer, answered) = oneshot::channel();
        let sent = self.requests.send(request(answer)).await;
        sent.map_err(|_| leaving())?;
        answered.await.map_err(|_| leaving())?
    }
}

/// Whether a retry may succeed.
fn is_passing(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted
}

fn ids(texts: &[String]) -> Result<BTreeSet<WholeCardId>, Status> {
    let ids = texts.iter().map(|text| text.parse());
    ids.collect::<Result<_, _>>()
        .map_err(Status::invalid_argument)
}

fn devices(of: &WholeCardOffers) -> Vec<Device> {
    of.offers
        .iter()
        .map(|offer| {
            let numa = offer.card.and_then(|card| of.topology.numa(card));
            Device {
                id: offer.id.to_string(),
                health: health(offer.is_offered),
                topology: numa.map(|id| TopologyInfo {
                    nodes: vec![NumaNode { id: id.into() }],
                }),
            }
        })
        .collect()
}

/// The devices whose cards are best together.
fn preferred(
    of: &WholeCardOffers,
    available: &BTreeSet<WholeCardId>,
    must: &BTreeSet<WholeCardId>,
    size: usize,
) -> Vec<WholeCardId> {
    let cards: BTreeMap<CardUuid, WholeCardId> = of
        .offers
        .iter()
        .filter(|offer| available.contains(&offer.id) || must.contains(&offer.id))
        .filter_map(|offer| Some((offer.card?, offer.id)))
        .collect();
    let must = cards
        .iter()
        .filter(|(_, id)| must.contains(id))
        .map(|(card, _)| *card)
        .collect();
    let best = of
        .topology
        .best(&cards.keys().copied().collect(), &must, size);
    best.iter()
        .filter_map(|card| cards.get(card).copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_ledger::CardCloseness;

    fn offers(count: u8, links: &[(u8, u8)]) -> WholeCardOffers {
        let mut topology = GpuTopology::default();
        let card = |number: u8| CardUuid([number; 16]);
        (1..=count).for_each(|number| topology.add(card(number), Some(u32::from(number / 3))));
        for (one, other) in links {
            topology.connect(card(*one), card(*other), CardCloseness::Links(4));
        }
        WholeCardOffers {
            offers: (1..=count)
                .map(|number| WholeCardOffer {
                    id: WholeCardId(number.into()),
                    card: Some(card(number)),
                    is_offered: number != 1,
                })
                .collect(),
            topology,
        }
    }

    fn set(ids: &[u16]) -> BTreeSet<WholeCardId> {
        ids.iter().copied().map(WholeCardId).collect()
    }

    #[test]
    fn devices_of_linked_cards_are_preferred() {
        let offers = offers(4, &[(2, 4)]);
        let prefer = |available: &[u16], must: &[u16], size| {
            let ids = preferred(&offers, &set(available), &set(must), size);
            ids.iter().map(|id| id.0).collect::<Vec<_>>()
        };
        assert_eq!(prefer(&[1, 2, 3, 4], &[], 2), [2, 4]);
        assert_eq!(prefer(&[1, 2, 3, 4], &[], 1), [1]);
        assert_eq!(prefer(&[1, 2, 3, 4], &[4], 2), [2, 4]);
        assert_eq!(prefer(&[3, 4], &[3], 2), [3, 4]);
    }

    #[test]
    fn the_kubelet_hears_where_a_device_lies_and_whether_it_can_be_had() {
        let devices = devices(&offers(4, &[]));
        assert_eq!(devices[0].health, "Unhealthy");
        assert_eq!(devices[3].health, "Healthy");
        assert_eq!(devices[3].topology.as_ref().unwrap().nodes[0].id, 1);
    }
}
