//! The requests to an agent, and what its answers mean.

use std::time::Duration;

use apportion_abi::BurstTerms;
use apportion_proto::v1::{self, allocate_reply, holder::Kind, resize_reply, resume_reply};

use super::super::agent_client::{AgentEndpoint, FencedAgentClient, status_text};
use super::super::event::{AgentRequest, PodRef, SchedulerEvent};
use apportion_model::cards::CardShare;

/// How long a reservation waits for its pod to be bound: longer than the API server may take.
const RESERVED_MS: u64 = 120_000;

/// Why an agent did not do what it was asked for.
pub(super) struct AgentRefusal {
    why: String,
    /// Whether it makes room, and is to be asked again soon.
    is_called_in: bool,
}

/// The allocation's id, or why the agent refused. `Err` if the request itself failed.
pub(super) type AgentAnswer = Result<Result<String, AgentRefusal>, String>;

pub(super) fn answer(pod: PodRef, done: AgentAnswer) -> SchedulerEvent {
    match done {
        Ok(Ok(id)) => SchedulerEvent::Accepted(pod, id),
        Ok(Err(AgentRefusal {
            why,
            is_called_in: true,
        })) => SchedulerEvent::CalledIn(pod, why),
        Ok(Err(AgentRefusal { why, .. })) | Err(why) => SchedulerEvent::Refused(pod, why),
    }
}

pub(super) fn resize_answer(pod: PodRef, done: AgentAnswer) -> SchedulerEvent {
    match done {
        Ok(Ok(_)) => SchedulerEvent::Resized(pod),
        Ok(Err(AgentRefusal { why, .. })) | Err(why) => SchedulerEvent::NotResized(pod, why),
    }
}

/// The event after a suspension or a resume.
pub(super) fn suspension_answer(
    request: AgentRequest,
    done: AgentAnswer,
) -> Option<SchedulerEvent> {
    let done = match done {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(AgentRefusal { why, .. })) | Err(why) => Err(why),
    };
    match (request, done) {
        (AgentRequest::Suspend { pod, .. }, Ok(())) => Some(SchedulerEvent::Suspended(pod)),
        (AgentRequest::Suspend { pod, .. }, Err(why)) => {
            Some(SchedulerEvent::NotSuspended(pod, why))
        }
        (AgentRequest::Resume { pod, .. }, Ok(())) => Some(SchedulerEvent::Resumed(pod)),
        (AgentRequest::Resume { pod, .. }, Err(why)) => Some(SchedulerEvent::NotResumed(pod, why)),
        _ => None,
    }
}

fn refusal(shortfall: v1::Shortfall) -> AgentRefusal {
    AgentRefusal {
        why: shortfall.sentence,
        is_called_in: shortfall.called_in,
    }
}

fn empty_answer() -> AgentRefusal {
    AgentRefusal {
        why: "its answer is empty".to_owned(),
        is_called_in: false,
    }
}

pub(super) async fn send_request(to: &AgentEndpoint, request: &AgentRequest) -> AgentAnswer {
    let agent = &mut to.client().await?;
    let done = match request {
        AgentRequest::Allocate {
            pod,
            shares,
            terms,
            idle_after,
        } => return allocate(agent, pod, shares, (*terms, *idle_after)).await,
        AgentRequest::Resize { id, shares, .. } => return resize(agent, id, shares).await,
        AgentRequest::Resume { id, .. } => return resume(agent, id).await,
        AgentRequest::Suspend { id, .. } => {
            let id = id.clone();
            agent.suspend(v1::SuspendRequest { id }).await.map(|_| ())
        }
        AgentRequest::Commit { id, pod } => {
            let kind = Some(Kind::PodUid(pod.uid.clone()));
            let holder = Some(v1::Holder { kind });
            let id = id.clone();
            agent
                .commit(v1::CommitRequest { id, holder })
                .await
                .map(|_| ())
        }
        AgentRequest::Release { id } => {
            let id = id.clone();
            agent.release(v1::ReleaseRequest { id }).await.map(|_| ())
        }
    };
    done.map(|()| Ok(String::new()))
        .map_err(|status| status_text(&status))
}

async fn allocate(
    agent: &mut FencedAgentClient,
    pod: &PodRef,
    shares: &[CardShare],
    (terms, idle_after): (BurstTerms, Option<Duration>),
) -> AgentAnswer {
    let idle_ms = idle_after.map_or(0, |time| time.as_millis().max(1));
    let request = v1::AllocateRequest {
        idempotency_key: pod.uid.clone(),
        name: pod.full(),
        shares: wire_shares(shares),
        ttl_ms: RESERVED_MS,
        suspend_when_idle_ms: u64::try_from(idle_ms).unwrap_or(u64::MAX),
        burst_weight_thousandths: Some(terms.weight.thousandths()),
        burst_priority: Some(terms.priority),
    };
    let reply = agent
        .allocate(request)
        .await
        .map_err(|status| status_text(&status))?;
    Ok(match reply.into_inner().result {
        Some(allocate_reply::Result::Allocation(allocation)) => Ok(allocation.id),
        Some(allocate_reply::Result::Shortfall(shortfall)) => Err(refusal(shortfall)),
        None => Err(empty_answer()),
    })
}

async fn resize(agent: &mut FencedAgentClient, id: &str, shares: &[CardShare]) -> AgentAnswer {
    let request = v1::ResizeRequest {
        id: id.to_owned(),
        shares: wire_shares(shares),
    };
    let reply = agent
        .resize(request)
        .await
        .map_err(|status| status_text(&status))?;
    Ok(match reply.into_inner().result {
        Some(resize_reply::Result::Allocation(allocation)) => Ok(allocation.id),
        Some(resize_reply::Result::Shortfall(shortfall)) => Err(refusal(shortfall)),
        None => Err(empty_answer()),
    })
}

async fn resume(agent: &mut FencedAgentClient, id: &str) -> AgentAnswer {
    let id = id.to_owned();
    let reply = agent
        .resume(v1::ResumeRequest { id })
        .await
        .map_err(|status| status_text(&status))?;
    Ok(match reply.into_inner().result {
        Some(resume_reply::Result::Allocation(allocation)) => Ok(allocation.id),
        Some(resume_reply::Result::Shortfall(shortfall)) => Err(refusal(shortfall)),
        None => Err(empty_answer()),
    })
}

fn wire_shares(shares: &[CardShare]) -> Vec<v1::Share> {
    let share = |share: &CardShare| v1::Share {
        card: share.card.clone(),
        bytes: share.bytes.0,
        limit_bytes: share.limit.map_or(0, |limit| limit.0),
    };
    shares.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortfall_that_is_called_in_is_no_refusal() {
        let pod = || PodRef {
            namespace: "team".to_owned(),
            name: "serve".to_owned(),
            uid: "uid".to_owned(),
        };
        let answered = |called_in| {
            let shortfall = v1::Shortfall {
                called_in,
                sentence: "it is short".to_owned(),
                ..v1::Shortfall::default()
            };
            answer(pod(), Ok(Err(refusal(shortfall))))
        };
        assert!(matches!(answered(true), SchedulerEvent::CalledIn(..)));
        assert!(matches!(answered(false), SchedulerEvent::Refused(..)));
    }
}
