//! The kubelet's calls, in both versions of its API.
//!
//! All claims of a call are answered one by one: one that is refused does not stop the others. The kubelet repeats a
//! call until it succeeds, so both calls can be repeated.

use std::collections::HashMap;
use std::time::Duration;

use apportion_exit::error_chain;
use apportion_ledger::ClaimOwner;
use apportion_proto::dra::dra_plugin_server::DraPlugin;
use apportion_proto::{dra as v1, dra_beta as beta};
use apportion_runtime_class::cdi;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Request, Response, Status};
use tracing::{info, warn};

use super::claim_pods::ClaimPods;
use super::claim_request::{self, ClaimRequest, ClaimedDevice};
use crate::api::request::{AgentRequest, Answer};

/// How long the API server may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The plugin.
#[derive(Clone)]
pub(super) struct ClaimPlugin {
    client: Client,
    node: String,
    requests: mpsc::Sender<AgentRequest>,
    pods: ClaimPods,
}

/// What a claim asks for, and its devices for the kubelet.
type ReadClaim = (ClaimRequest, Vec<ClaimedDevice>);

/// The devices of a claim, and the CDI device that brings all of them.
struct PreparedClaim {
    devices: Vec<ClaimedDevice>,
    cdi: String,
}

impl ClaimPlugin {
    pub(super) const fn new(
        client: Client,
        node: String,
        requests: mpsc::Sender<AgentRequest>,
        pods: ClaimPods,
    ) -> Self {
        Self {
            client,
            node,
            requests,
            pods,
        }
    }

    /// `asked` are all claims of the call.
    async fn prepare(
        &self,
        (request, devices): ReadClaim,
        asked: &[ClaimOwner],
    ) -> Result<PreparedClaim, Status> {
        let claim = request.owner.clone();
        self.pods.check(&claim, asked).await?;
        let prepared = self
            .ask(|answer| AgentRequest::PrepareClaim(request, answer))
            .await;
        match prepared {
            Ok(device) => {
                self.pods.ended(&claim.uid);
                let cdi = cdi::device_name(&device);
                Ok(PreparedClaim { devices, cdi })
            }
            Err(status) => {
                if status.code() == Code::ResourceExhausted {
                    self.pods.refused(&claim, status.message()).await;
                }
                Err(status)
            }
        }
    }

    async fn request(&self, claim: &v1::Claim) -> Result<ReadClaim, Status> {
        let found = self.read(claim).await?;
        let parsed = claim_request::parse(&found, &claim.uid, &self.node);
        parsed.map_err(|problem| Status::failed_precondition(problem.to_string()))
    }

    async fn read(&self, claim: &v1::Claim) -> Result<ResourceClaim, Status> {
        let v1::Claim {
            namespace, name, ..
        } = claim;
        let failed = |problem: String| {
            Status::unavailable(format!(
                "failed to read ResourceClaim {namespace}/{name}: {problem}"
            ))
        };
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), namespace);
        match tokio::time::timeout(PATIENCE, claims.get(name)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(failed(error_chain(&error))),
            Err(_) => Err(failed("the API server does not answer".to_owned())),
        }
    }

    async fn ask<T>(&self, request: impl FnOnce(Answer<T>) -> AgentRequest) -> Result<T, Status> {
        let leaving = || Status::unavailable("the apportion agent is stopping");
        let (answer, answered) = oneshot::channel();
        let sent = self.requests.send(request(answer)).await;
        sent.map_err(|_| leaving())?;
        answered.await.map_err(|_| leaving())?
    }

    async fn prepared(
        &self,
        claim: &v1::Claim,
        read: Result<ReadClaim, Status>,
        asked: &[ClaimOwner],
    ) -> v1::NodePrepareResourceResponse {
        let name = format!("{}/{}", claim.namespace, claim.name);
        let prepared = match read {
            Ok(read) => self.prepare(read, asked).await,
            Err(status) => Err(status),
        };
        match prepared {
            Ok(prepared) => {
                info!(claim = name, uid = claim.uid, "ResourceClaim prepared");
                v1::NodePrepareResourceResponse {
                    devices: prepared.devices(),
                    error: String::new(),
                }
            }
            Err(status) => {
                let reason = status.message();
                warn!(
                    claim = name,
                    uid = claim.uid,
                    reason,
                    "ResourceClaim refused"
                );
                v1::NodePrepareResourceResponse {
                    devices: Vec::new(),
                    error: reason.to_owned(),
                }
            }
        }
    }

    async fn unprepared(&self, claim: &v1::Claim) -> v1::NodeUnprepareResourceResponse {
        let uid = claim.uid.clone();
        self.pods.ended(&uid);
        let answer = self.ask(|answer| AgentRequest::UnprepareClaim(uid, answer));
        let error = match answer.await {
            Ok(()) => String::new(),
            Err(status) => status.message().to_owned(),
        };
        v1::NodeUnprepareResourceResponse { error }
    }

    async fn prepare_all(
        &self,
        claims: &[v1::Claim],
    ) -> HashMap<String, v1::NodePrepareResourceResponse> {
        let mut read = Vec::with_capacity(claims.len());
        for claim in claims {
            read.push((claim, self.request(claim).await));
        }
        let readable = read.iter().filter_map(|(_, read)| read.as_ref().ok());
        let asked: Vec<ClaimOwner> = readable.map(|(request, _)| request.owner.clone()).collect();
        let mut answers = HashMap::new();
        for (claim, read) in read {
            answers.insert(claim.uid.clone(), self.prepared(claim, read, &asked).await);
        }
        answers
    }

    async fn unprepare_all(
        &self,
        claims: &[v1::Claim],
    ) -> HashMap<String, v1::NodeUnprepareResourceResponse> {
        let mut answers = HashMap::new();
        for claim in claims {
            answers.insert(claim.uid.clone(), self.unprepared(claim).await);
        }
        answers
    }
}

impl PreparedClaim {
    /// Each device brings the grant of the whole claim, because a container may name only one of the requests. The
    /// runtime applies the same CDI device once or several times with the same result.
    fn devices(self) -> Vec<v1::Device> {
        self.devices
            .into_iter()
            .map(|of| v1::Device {
                request_names: vec![of.request],
                pool_name: of.pool,
                device_name: of.device,
                cdi_device_ids: vec![self.cdi.clone()],
                share_id: of.share,
            })
            .collect()
    }
}

#[tonic::async_trait]
impl DraPlugin for ClaimPlugin {
    async fn node_prepare_resources(
        &self,
        request: Request<v1::NodePrepareResourcesRequest>,
    ) -> Result<Response<v1::NodePrepareResourcesResponse>, Status> {
        let claims = self.prepare_all(&request.into_inner().claims).await;
        Ok(Response::new(v1::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1::NodeUnprepareResourcesResponse>, Status> {
        let claims = self.unprepare_all(&request.into_inner().claims).await;
        Ok(Response::new(v1::NodeUnprepareResourcesResponse { claims }))
    }
}

#[tonic::async_trait]
impl beta::dra_plugin_server::DraPlugin for ClaimPlugin {
    async fn node_prepare_resources(
        &self,
        request: Request<beta::NodePrepareResourcesRequest>,
    ) -> Result<Response<beta::NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims.into_iter().map(of_beta);
        let answers = self.prepare_all(&claims.collect::<Vec<_>>()).await;
        let claims = answers.into_iter().map(|(uid, answer)| {
            let devices = answer.devices.into_iter().map(|device| beta::Device {
                request_names: device.request_names,
                pool_name: device.pool_name,
                device_name: device.device_name,
                cdi_device_ids: device.cdi_device_ids,
            });
            let answer = beta::NodePrepareResourceResponse {
                devices: devices.collect(),
                error: answer.error,
            };
            (uid, answer)
        });
        Ok(Response::new(beta::NodePrepareResourcesResponse {
            claims: claims.collect(),
        }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<beta::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<beta::NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims.into_iter().map(of_beta);
        let answers = self.unprepare_all(&claims.collect::<Vec<_>>()).await;
        let claims = answers.into_iter().map(|(uid, answer)| {
            let error = answer.error;
            (uid, beta::NodeUnprepareResourceResponse { error })
        });
        Ok(Response::new(beta::NodeUnprepareResourcesResponse {
            claims: claims.collect(),
        }))
    }
}

fn of_beta(claim: beta::Claim) -> v1::Claim {
    v1::Claim {
        namespace: claim.namespace,
        uid: claim.uid,
        name: claim.name,
    }
}
