//! Converts between the messages of the API and the ledger's types. Requests are parsed here once; after that there
//! are cards, bytes and processes instead of strings and numbers.

use std::time::Duration;

use apportion_abi::{BurstTerms, BurstWeight, Bytes, CardRequest, Shortfall, whole_units};
use apportion_ledger::{
    AllocationId, AllocationOwner, AllocationPhase, AllocationRefusal, Health, LimitEnforcement,
    NoticeKind, OffenderPolicy, PlacementProposal, SuspensionPhase,
};
use apportion_proto::v1;
use tonic::Status;

use crate::processes::procfs;

/// How long a reservation waits if the caller does not say.
const DEFAULT_TTL: Duration = Duration::from_secs(60);
/// The longest wait of a reservation, because nobody else can use reserved memory.
const LONGEST_TTL: Duration = Duration::from_secs(3600);
/// The longest name and key. Names become metric labels.
const LONGEST_NAME: usize = 253;

/// The proposal of an allocate request.
pub(crate) fn proposal(request: v1::AllocateRequest) -> Result<PlacementProposal, Status> {
    let v1::AllocateRequest {
        idempotency_key: key,
        name,
        shares,
        ttl_ms,
        burst_weight_thousandths,
        burst_priority,
        suspend_when_idle_ms,
    } = request;
    for (field, text) in [("idempotency_key", &key), ("name", &name)] {
        let is_text =
            !text.is_empty() && text.len() <= LONGEST_NAME && !text.contains(char::is_control);
        if !is_text {
            let form = format!(
                "{field} {text:?} must have 1 to {LONGEST_NAME} characters and no control characters"
            );
            return Err(Status::invalid_argument(form));
        }
    }
    let ttl = match ttl_ms {
        0 => DEFAULT_TTL,
        wait => Duration::from_millis(wait).min(LONGEST_TTL),
    };
    Ok(PlacementProposal {
        key,
        name,
        asks: asks(&shares)?,
        ceilings: ceilings(&shares)?,
        terms: BurstTerms {
            weight: weight(burst_weight_thousandths)?,
            priority: burst_priority.unwrap_or_default(),
        },
        ttl,
        idle_after: (suspend_when_idle_ms > 0).then(|| Duration::from_millis(suspend_when_idle_ms)),
    })
}

/// The weight of a share. Older clients do not send one.
fn weight(thousandths: Option<u32>) -> Result<BurstWeight, Status> {
    let Some(thousandths) = thousandths else {
        return Ok(BurstWeight::default());
    };
    BurstWeight::from_thousandths(thousandths).ok_or_else(|| {
        let most = BurstWeight::LARGEST;
        let why = format!("burst_weight_thousandths {thousandths} is above a weight of {most}");
        Status::invalid_argument(why)
    })
}

/// What a resize asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewSizes {
    pub(crate) asks: Vec<CardRequest>,
    /// The limits that are named.
    pub(crate) ceilings: Vec<CardRequest>,
}

/// The requested shares, rounded down to whole units of 2 MiB.
fn asks(shares: &[v1::Share]) -> Result<Vec<CardRequest>, Status> {
    shares
        .iter()
        .map(|share| match share.card.parse() {
            Ok(card) => Ok(CardRequest {
                card,
                bytes: whole_units(Bytes(share.bytes)),
            }),
            Err(error) => Err(Status::invalid_argument(format!(
                "{:?} is {error}",
                share.card
            ))),
        })
        .collect()
}

/// The limits that are above what is asked for, rounded as [`asks`] are.
fn ceilings(shares: &[v1::Share]) -> Result<Vec<CardRequest>, Status> {
    let named = shares.iter().filter(|share| share.limit_bytes > 0);
    let limits = named.map(|share| v1::Share {
        bytes: share.limit_bytes,
        ..share.clone()
    });
    asks(&limits.collect::<Vec<_>>())
}

/// The new sizes of a resize request, and the new limits.
pub(crate) fn new_sizes(shares: &[v1::Share]) -> Result<NewSizes, Status> {
    Ok(NewSizes {
        asks: asks(shares)?,
        ceilings: ceilings(shares)?,
    })
}

/// The owner that a commit names. `caller` is the caller's pid from the kernel. A caller on another machine can name
/// pods, but no processes of this machine.
pub(crate) fn owner(
    holder: Option<v1::Holder>,
    caller: Option<u32>,
) -> Result<AllocationOwner, Status> {
    use v1::holder::Kind;
    match holder.and_then(|holder| holder.kind) {
        Some(Kind::Pid(pid)) => {
            let caller = caller.ok_or_else(|| {
                Status::permission_denied(
                    "only a caller on this machine can name a process as the holder",
                )
            })?;
            let pid = if pid == 0 { caller } else { pid };
            let process = procfs::live(pid).map(AllocationOwner::Process);
            process.ok_or_else(|| Status::failed_precondition(format!("there is no process {pid}")))
        }
        Some(Kind::PodUid(uid)) if !uid.is_empty() => Ok(AllocationOwner::Pod(uid)),
        _ => Err(Status::invalid_argument(
            "the holder is neither a process nor a pod",
        )),
    }
}

/// A refusal that is not a shortfall, as a status.
pub(crate) fn status(refusal: &AllocationRefusal) -> Status {
    let text = refusal.to_string();
    match refusal {
        AllocationRefusal::Malformed(_)
        | AllocationRefusal::LimitBelowRequest { .. }
        | AllocationRefusal::LimitAboveCard { .. } => Status::invalid_argument(text),
        AllocationRefusal::UnknownCard(_)
        | AllocationRefusal::UnknownAllocation(_)
        | AllocationRefusal::NotGranted { .. } => Status::not_found(text),
        AllocationRefusal::KeyReused(_) => Status::already_exists(text),
        AllocationRefusal::Shortfall(_) => Status::resource_exhausted(text),
        AllocationRefusal::Sizeless(_)
        | AllocationRefusal::Unhealthy(_)
        | AllocationRefusal::Committed(_)
        | AllocationRefusal::Draining(_)
        | AllocationRefusal::OfPod(_)
        | AllocationRefusal::Uncommitted(_)
        | AllocationRefusal::Suspended(_)
        | AllocationRefusal::InTransition(_)
        | AllocationRefusal::CalledIn(_)
        | AllocationRefusal::Fixed(_)
        | AllocationRefusal::Overcommitted { .. }
        | AllocationRefusal::Whole(_) => Status::failed_precondition(text),
    }
}

fn held(holder: &apportion_abi::Holder) -> v1::Held {
    v1::Held {
        name: holder.name.clone(),
        bytes: holder.bytes.0,
    }
}

pub(crate) fn shortfall(shortfall: &Shortfall) -> v1::Shortfall {
    v1::Shortfall {
        card: shortfall.ask.card.to_string(),
        asked_bytes: shortfall.ask.bytes.0,
        free_bytes: shortfall.free.0,
        allocatable_bytes: shortfall.allocatable.0,
        unmanaged_bytes: shortfall.unmanaged.0,
        holders: shortfall.holders.iter().map(held).collect(),
        waiting_helps: shortfall.waiting_helps(),
        bursts: shortfall.bursts.iter().map(held).collect(),
        sentence: shortfall.to_string(),
        called_in: false,
        has_waited: false,
    }
}

pub(crate) fn id(text: String) -> AllocationId {
    AllocationId(text)
}

pub(crate) fn state(state: &AllocationPhase) -> v1::AllocationState {
    match state {
        AllocationPhase::Reserved { .. } => v1::AllocationState::Reserved,
        AllocationPhase::Allocated(_) => v1::AllocationState::Allocated,
        AllocationPhase::Draining => v1::AllocationState::Draining,
    }
}

pub(crate) fn suspension(phase: SuspensionPhase) -> v1::SuspensionState {
    match phase {
        SuspensionPhase::Running => v1::SuspensionState::Running,
        SuspensionPhase::Suspending => v1::SuspensionState::Suspending,
        SuspensionPhase::Suspended => v1::SuspensionState::Suspended,
        SuspensionPhase::Resuming => v1::SuspensionState::Resuming,
    }
}

pub(crate) fn holder(state: &AllocationPhase) -> Option<v1::Holder> {
    use v1::holder::Kind;
    let kind = match state {
        AllocationPhase::Allocated(AllocationOwner::Process(process)) => Kind::Pid(process.pid),
        AllocationPhase::Allocated(AllocationOwner::Pod(uid)) => Kind::PodUid(uid.clone()),
        AllocationPhase::Allocated(AllocationOwner::Claim(claim)) => Kind::Claim(v1::ClaimHolder {
            uid: claim.uid.clone(),
            name: claim.name.clone(),
            pods: claim.pods.iter().map(claim_pod).collect(),
        }),
        AllocationPhase::Reserved { .. } | AllocationPhase::Draining => return None,
    };
    Some(v1::Holder { kind: Some(kind) })
}

fn claim_pod((uid, name): (&String, &String)) -> v1::ClaimPod {
    v1::ClaimPod {
        uid: uid.clone(),
        name: name.clone(),
    }
}

pub(crate) fn health(health: Health) -> v1::CardHealth {
    match health {
        Health::Healthy => v1::CardHealth::Healthy,
        Health::Unhealthy => v1::CardHealth::Unhealthy,
        Health::Lost => v1::CardHealth::Lost,
    }
}

pub(crate) fn enforcement(enforcement: LimitEnforcement) -> v1::EnforcementState {
    match enforcement {
        LimitEnforcement::Pending => v1::EnforcementState::Pending,
        LimitEnforcement::Whole => v1::EnforcementState::Whole,
        LimitEnforcement::Attached => v1::EnforcementState::Attached,
        LimitEnforcement::Missing => v1::EnforcementState::Missing,
        LimitEnforcement::Overlimit => v1::EnforcementState::Overlimit,
        LimitEnforcement::Bypassed => v1::EnforcementState::Bypassed,
    }
}

pub(crate) fn policy(policy: OffenderPolicy) -> v1::OffenderPolicy {
    match policy {
        OffenderPolicy::Observe => v1::OffenderPolicy::Observe,
        OffenderPolicy::Kill => v1::OffenderPolicy::Kill,
        OffenderPolicy::Evict => v1::OffenderPolicy::Evict,
    }
}

pub(crate) fn event_kind(kind: NoticeKind) -> v1::EventKind {
    match kind {
        NoticeKind::Allocated => v1::EventKind::Allocated,
        NoticeKind::Committed => v1::EventKind::Committed,
        NoticeKind::Resized => v1::EventKind::Resized,
        NoticeKind::Suspended => v1::EventKind::Suspended,
        NoticeKind::Resumed => v1::EventKind::Resumed,
        NoticeKind::Idle => v1::EventKind::Idle,
        NoticeKind::Called => v1::EventKind::Called,
        NoticeKind::StaysAwake => v1::EventKind::StaysAwake,
        NoticeKind::Draining => v1::EventKind::Draining,
        NoticeKind::Released => v1::EventKind::Released,
        NoticeKind::Expired => v1::EventKind::Expired,
        NoticeKind::Bypassed => v1::EventKind::Bypassed,
        NoticeKind::Overlimit => v1::EventKind::Overlimit,
        NoticeKind::Ungranted => v1::EventKind::Ungranted,
        NoticeKind::Killed => v1::EventKind::Killed,
        NoticeKind::Evicted => v1::EventKind::Evicted,
        NoticeKind::Damaged => v1::EventKind::Damaged,
        NoticeKind::CardFound => v1::EventKind::CardFound,
        NoticeKind::CardUnhealthy => v1::EventKind::CardUnhealthy,
        NoticeKind::CardLost => v1::EventKind::CardLost,
        NoticeKind::CardHealthy => v1::EventKind::CardHealthy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_clients_burst_with_weight_one_and_an_absurd_weight_is_refused() {
        let terms = |burst_weight_thousandths, burst_priority| {
            let request = v1::AllocateRequest {
                idempotency_key: "a".to_owned(),
                name: "a".to_owned(),
                burst_weight_thousandths,
                burst_priority,
                ..v1::AllocateRequest::default()
            };
            proposal(request).map(|proposal| proposal.terms)
        };
        assert_eq!(terms(None, None).unwrap(), BurstTerms::default());
        let given = terms(Some(0), Some(-5)).unwrap();
        assert_eq!((given.weight, given.priority), (BurstWeight::NONE, -5));
        let refused = terms(Some(1_000_000_001), None).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert!(refused.message().contains("above a weight of 1000000"));
    }
}
