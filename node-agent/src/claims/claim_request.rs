//! Reads what a ResourceClaim was allocated of this node's cards.

use std::collections::BTreeMap;

use apportion_abi::names::{DRA_DRIVER, DRA_MEMORY};
use apportion_abi::{Bytes, CardRequest, CardUuid};
use apportion_kubernetes::Quantity;
use apportion_ledger::ClaimOwner;
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use kube::ResourceExt;

/// A claim, as the agent's loop needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimRequest {
    pub(crate) owner: ClaimOwner,
    /// Its memory of each card, in the order of the claim's requests.
    pub(crate) asks: Vec<CardRequest>,
}

/// A device of the claim, as the kubelet wants it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimedDevice {
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    pub(crate) share: Option<String>,
}

/// Why a claim cannot be prepared, whatever is free.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClaimRequestError {
    #[error("ResourceClaim {0} was deleted, and another one has its name")]
    Replaced(String),
    #[error("ResourceClaim {claim} has no device of {DRA_DRIVER} on node {node}")]
    NotAllocated { claim: String, node: String },
    #[error(
        "ResourceClaim {claim} asks for device {device} with adminAccess, which {DRA_DRIVER} does not give: it would \
         have no limit"
    )]
    AdminAccess { claim: String, device: String },
    #[error("ResourceClaim {claim} has device {device}, which is not a GPU of this driver")]
    UnknownDevice { claim: String, device: String },
    #[error(
        "ResourceClaim {claim} was allocated no {DRA_MEMORY} of device {device}; the scheduler needs the feature gate \
         DRAConsumableCapacity"
    )]
    NoMemory { claim: String, device: String },
    #[error("ResourceClaim {claim} has parameters for {DRA_DRIVER}, and the driver has none")]
    Parameters { claim: String },
}

/// The name of a card's device: its UUID as a DNS label.
pub(super) fn device_name(card: CardUuid) -> String {
    card.to_string().to_lowercase()
}

fn card(device: &str) -> Option<CardUuid> {
    let uuid = device.strip_prefix("gpu-")?;
    let card = format!("GPU-{uuid}").parse().ok()?;
    (device_name(card) == device).then_some(card)
}

/// What the claim with this UID was allocated on this node.
pub(crate) fn parse(
    claim: &ResourceClaim,
    uid: &str,
    node: &str,
) -> Result<(ClaimRequest, Vec<ClaimedDevice>), ClaimRequestError> {
    let name = format!(
        "{}/{}",
        claim.namespace().unwrap_or_default(),
        claim.name_any()
    );
    if claim.metadata.uid.as_deref() != Some(uid) {
        return Err(ClaimRequestError::Replaced(name));
    }
    let status = claim.status.as_ref();
    let allocation = status.and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let configs = devices
        .iter()
        .flat_map(|devices| devices.config.iter().flatten());
    let mut drivers = configs.filter_map(|config| Some(&config.opaque.as_ref()?.driver));
    if drivers.any(|driver| driver == DRA_DRIVER) {
        return Err(ClaimRequestError::Parameters { claim: name });
    }
    let results = devices
        .iter()
        .flat_map(|devices| devices.results.iter().flatten());
    let own = results.filter(|result| result.driver == DRA_DRIVER && result.pool == node);
    let mut asks: Vec<CardRequest> = Vec::new();
    let mut claimed = Vec::new();
    for result in own {
        let (card, bytes) = part(&name, result)?;
        match asks.iter_mut().find(|ask| ask.card == card) {
            Some(ask) => ask.bytes = ask.bytes.plus(bytes),
            None => asks.push(CardRequest { card, bytes }),
        }
        claimed.push(ClaimedDevice {
            // A subrequest is written `request/subrequest`, and containers name the request.
            request: result
                .request
                .split('/')
                .next()
                .unwrap_or_default()
                .to_owned(),
            pool: result.pool.clone(),
            device: result.device.clone(),
            share: result.share_id.clone(),
        });
    }
    if asks.is_empty() {
        let node = node.to_owned();
        return Err(ClaimRequestError::NotAllocated { claim: name, node });
    }
    let reserved = status
        .iter()
        .flat_map(|status| status.reserved_for.iter().flatten());
    let pods = reserved.filter(|consumer| consumer.resource == "pods");
    let namespace = claim.namespace().unwrap_or_default();
    let pods: BTreeMap<String, String> = pods
        .map(|pod| (pod.uid.clone(), format!("{namespace}/{}", pod.name)))
        .collect();
    let owner = ClaimOwner {
        uid: uid.to_owned(),
        name,
        pods,
    };
    Ok((ClaimRequest { owner, asks }, claimed))
}

fn part(
    claim: &str,
    result: &DeviceRequestAllocationResult,
) -> Result<(CardUuid, Bytes), ClaimRequestError> {
    let (claim, device) = (claim.to_owned(), result.device.clone());
    if result.admin_access == Some(true) {
        return Err(ClaimRequestError::AdminAccess { claim, device });
    }
    let Some(card) = card(&device) else {
        return Err(ClaimRequestError::UnknownDevice { claim, device });
    };
    let consumed = result.consumed_capacity.as_ref();
    let memory = consumed.and_then(|consumed| consumed.get(DRA_MEMORY));
    let memory = memory.and_then(|memory| memory.0.parse::<Quantity>().ok());
    let bytes = memory
        .and_then(Quantity::whole)
        .and_then(|bytes| u64::try_from(bytes).ok());
    match bytes.filter(|bytes| *bytes > 0) {
        Some(bytes) => Ok((card, Bytes(bytes))),
        None => Err(ClaimRequestError::NoMemory { claim, device }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const FIRST: &str = "gpu-0f9a6c1e-6d0b-3c5e-8a61-5a7d2f1b9c01";
    const SECOND: &str = "gpu-7b2e4d5f-1c3a-4e6b-9d8f-2a1c3e5b7d02";

    fn result(request: &str, device: &str, memory: &str) -> Value {
        json!({
            "request": request, "driver": "gpu.apportion.dev", "pool": "node-1", "device": device,
            "consumedCapacity": {"memory": memory}, "shareID": "a671734a-e8e5-11e4-8fde-42010af09327",
        })
    }

    fn claim(results: &[Value]) -> ResourceClaim {
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "gpu", "namespace": "team", "uid": "c-1"},
            "spec": {},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [
                    {"resource": "pods", "name": "first", "uid": "p-1"},
                    {"resource": "pods", "name": "second", "uid": "p-2"},
                    {"apiGroup": "example.com", "resource": "others", "name": "x", "uid": "x-1"},
                ],
            },
        });
        serde_json::from_value(claim).unwrap()
    }

    fn refusal(results: &[Value]) -> String {
        parse(&claim(results), "c-1", "node-1")
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_claim_is_one_request_with_the_sum_of_each_card() {
        let results = [
            result("small", FIRST, "2000Mi"),
            result("large/first-choice", SECOND, "4Gi"),
            result("more", FIRST, "48Mi"),
        ];
        let (request, devices) = parse(&claim(&results), "c-1", "node-1").unwrap();
        let asks: Vec<_> = request
            .asks
            .iter()
            .map(|ask| (device_name(ask.card), ask.bytes))
            .collect();
        let expected = [
            (FIRST.to_owned(), Bytes::from_mib(2048)),
            (SECOND.to_owned(), Bytes::from_mib(4096)),
        ];
        assert_eq!(asks, expected);
        assert_eq!(request.owner.name, "team/gpu");
        assert_eq!(
            request.owner.pods.get("p-2").map(String::as_str),
            Some("team/second")
        );
        assert_eq!(request.owner.pods.len(), 2, "{:?}", request.owner.pods);
        let requests: Vec<_> = devices
            .iter()
            .map(|device| device.request.as_str())
            .collect();
        assert_eq!(requests, ["small", "large", "more"]);
    }

    #[test]
    fn what_other_drivers_and_other_nodes_give_is_not_ours() {
        let mut of_nvidia = result("a", "gpu-0", "1Gi");
        of_nvidia["driver"] = json!("gpu.nvidia.com");
        let mut elsewhere = result("b", SECOND, "1Gi");
        elsewhere["pool"] = json!("node-2");
        let ours = result("c", FIRST, "1Gi");
        let (request, _) = parse(
            &claim(&[of_nvidia.clone(), elsewhere, ours]),
            "c-1",
            "node-1",
        )
        .unwrap();
        assert_eq!(request.asks.len(), 1);
        let refused = refusal(&[of_nvidia]);
        assert!(
            refused.contains("no device of gpu.apportion.dev on node node-1"),
            "{refused}"
        );
    }

    #[test]
    fn each_refusal_says_what_is_wrong() {
        let mut unlimited = result("a", FIRST, "1Gi");
        unlimited["adminAccess"] = json!(true);
        assert!(refusal(&[unlimited]).contains("adminAccess"));
        assert!(
            refusal(&[result("a", "gpu-0", "1Gi")]).contains("device gpu-0, which is not a GPU")
        );
        let mut sizeless = result("a", FIRST, "1Gi");
        sizeless["consumedCapacity"] = Value::Null;
        assert!(refusal(&[sizeless]).contains("DRAConsumableCapacity"));
        assert!(refusal(&[result("a", FIRST, "0")]).contains("no memory"));
        let replaced = parse(&claim(&[]), "c-2", "node-1").unwrap_err().to_string();
        assert!(replaced.contains("another one has its name"), "{replaced}");
    }

    #[test]
    fn parameters_that_nobody_reads_are_refused() {
        let mut claim = serde_json::to_value(claim(&[result("a", FIRST, "1Gi")])).unwrap();
        claim["status"]["allocation"]["devices"]["config"] = json!([{
            "source": "FromClaim",
            "opaque": {"driver": "gpu.apportion.dev", "parameters": {"kind": "GpuConfig"}},
        }]);
        let claim: ResourceClaim = serde_json::from_value(claim).unwrap();
        let refused = parse(&claim, "c-1", "node-1").unwrap_err();
        assert_eq!(
            refused,
            ClaimRequestError::Parameters {
                claim: "team/gpu".into()
            }
        );
    }
}
