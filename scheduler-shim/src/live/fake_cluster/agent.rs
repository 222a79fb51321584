//! An agent's ledger: it accepts and refuses as the real one does.

use std::time::Duration;

use super::{
    AgentAllocation, AgentAllocationState, AgentRequest, CARD, FakeAgent, FakeCluster, PodRef,
    SchedulerEvent, ShareSuspension,
};
use apportion_model::cards::CardShare;

impl FakeAgent {
    pub(super) fn resize(&mut self, id: &str, shares: Vec<CardShare>) -> Result<(), String> {
        let others = self.held.iter().filter(|(held, _)| held.id != id);
        let others = others.filter(|(held, _)| held.suspension != ShareSuspension::Asleep);
        let others: Vec<CardShare> = others.flat_map(|(held, _)| held.shares.clone()).collect();
        let found = self.held.iter_mut().find(|(held, _)| held.id == id);
        let (held, _) = found.ok_or_else(|| "there is no such allocation".to_owned())?;
        if held.suspension != ShareSuspension::Awake {
            return Err("it is suspended".to_owned());
        }
        for share in &shares {
            let of_card = others.iter().filter(|other| other.card == share.card);
            let taken: u64 = of_card.map(|other| other.bytes.0).sum();
            if taken + share.bytes.0 > CARD {
                return Err("the card is full".to_owned());
            }
        }
        let mut sized = Vec::new();
        for (share, before) in shares.into_iter().zip(&held.shares) {
            // A limit that is not named stays.
            let limit = share.limit.or(before.limit);
            if limit.is_some_and(|limit| limit < share.bytes) {
                return Err("a limit is at least the request".to_owned());
            }
            let limit = limit.filter(|limit| *limit > share.bytes);
            sized.push(CardShare { limit, ..share });
        }
        held.shares = sized;
        Ok(())
    }

    /// Puts the programs of an allocation to sleep, or wakes them if their memory is free.
    fn move_programs(&mut self, id: &str, goal: ShareSuspension) -> Result<(), String> {
        let others = self.held.iter().map(|(held, _)| held);
        let others = others.filter(|held| held.id != id);
        let awake = others.filter(|held| held.suspension != ShareSuspension::Asleep);
        let taken: Vec<CardShare> = awake.flat_map(|held| held.shares.clone()).collect();
        let mut held = self.held.iter_mut().map(|(held, _)| held);
        let held = held.find(|held| held.id == id);
        let held = held.ok_or_else(|| "there is no such allocation".to_owned())?;
        if goal == ShareSuspension::Asleep && self.is_stuck {
            held.suspension = ShareSuspension::FallingAsleep;
            return Err("what was done is being undone".to_owned());
        }
        if goal == ShareSuspension::Asleep && !self.can_suspend {
            return Err("the driver cannot suspend programs".to_owned());
        }
        let has_room = |share: &CardShare| {
            let of_card = taken.iter().filter(|other| other.card == share.card);
            of_card.map(|other| other.bytes.0).sum::<u64>() + share.bytes.0 <= CARD
        };
        if goal == ShareSuspension::Awake
            && held.suspension == ShareSuspension::Asleep
            && !held.shares.iter().all(has_room)
        {
            return Err("the card is full".to_owned());
        }
        held.suspension = goal;
        Ok(())
    }

    pub(super) fn allocate(
        &mut self,
        now: Duration,
        pod: &PodRef,
        shares: Vec<CardShare>,
    ) -> Result<String, String> {
        let known = self
            .held
            .iter()
            .find(|(held, _)| held.uid.as_deref() == Some(&pod.uid));
        if let Some((held, _)) = known {
            return if held.shares == shares {
                Ok(held.id.clone())
            } else {
                Err("the key was used for something else".to_owned())
            };
        }
        for share in &shares {
            let awake = self.held.iter().map(|(held, _)| held);
            let awake = awake.filter(|held| held.suspension != ShareSuspension::Asleep);
            let taken: u64 = awake
                .flat_map(|held| &held.shares)
                .filter(|other| other.card == share.card)
                .map(|other| other.bytes.0)
                .sum();
            if taken + share.bytes.0 > CARD {
                return Err("the card is full".to_owned());
            }
        }
        let id = format!("{}-{}", pod.name, now.as_secs());
        let held = AgentAllocation {
            id: id.clone(),
            uid: Some(pod.uid.clone()),
            name: pod.full(),
            stage: AgentAllocationState::Reserved,
            suspension: ShareSuspension::Awake,
            shares,
        };
        self.held.push((held, now + Duration::from_secs(60)));
        Ok(id)
    }
}

impl FakeCluster {
    /// A node's agent answers its next request. With `fails`, the answer is lost.
    pub(super) fn agent_effect(&mut self, node: &str, fails: bool) {
        let agent = self.agents.get_mut(node).expect("it is there");
        let Some(request) = agent.requests.pop_front() else {
            return;
        };
        match request {
            AgentRequest::Allocate { pod, shares, .. } => {
                agent.asked.push(pod.name.clone());
                let percent = self.overcommit_percent.unwrap_or(10_000);
                let over = agent.over_limits(&pod, &shares, percent);
                self.refusals += usize::from(over.is_some());
                let is_lent = agent.calls_in(&pod, &shares);
                if is_lent && self.suspends_bursts && over.is_none() && !fails {
                    let why = "it is being called in".to_owned();
                    self.events.push_back(SchedulerEvent::CalledIn(pod, why));
                    return self.show(node);
                }
                let over = over.or_else(|| is_lent.then(|| "others use it".to_owned()));
                let answer = match over {
                    Some(why) => Err(why),
                    None => agent.allocate(self.now, &pod, shares),
                };
                // The answer may be lost while the allocation is not.
                let answer = if fails {
                    Err("lost".to_owned())
                } else {
                    answer
                };
                self.events.push_back(match answer {
                    Ok(id) => SchedulerEvent::Accepted(pod, id),
                    Err(why) => SchedulerEvent::Refused(pod, why),
                });
            }
            AgentRequest::Commit { id, .. } if !fails => {
                for (held, _) in agent.held.iter_mut().filter(|(held, _)| held.id == id) {
                    held.stage = AgentAllocationState::Allocated;
                }
            }
            AgentRequest::Release { id } if !fails => agent.held.retain(|(held, _)| held.id != id),
            AgentRequest::Resize { id, pod, shares } => {
                let answer = agent.resize(&id, shares);
                let answer = if fails {
                    Err("lost".to_owned())
                } else {
                    answer
                };
                self.events.push_back(match answer {
                    Ok(()) => SchedulerEvent::Resized(pod),
                    Err(why) => SchedulerEvent::NotResized(pod, why),
                });
            }
            AgentRequest::Suspend { id, pod } => {
                let answer = agent.move_programs(&id, ShareSuspension::Asleep);
                self.events.push_back(match answer {
                    Ok(()) if !fails => SchedulerEvent::Suspended(pod),
                    Ok(()) => SchedulerEvent::NotSuspended(pod, "lost".to_owned()),
                    Err(why) => SchedulerEvent::NotSuspended(pod, why),
                });
            }
            AgentRequest::Resume { id, pod } => {
                let answer = agent.move_programs(&id, ShareSuspension::Awake);
                self.events.push_back(match answer {
                    Ok(()) if !fails => SchedulerEvent::Resumed(pod),
                    Ok(()) => SchedulerEvent::NotResumed(pod, "lost".to_owned()),
                    Err(why) => SchedulerEvent::NotResumed(pod, why),
                });
            }
            AgentRequest::Commit { .. } | AgentRequest::Release { .. } => {}
        }
        self.show(node);
    }
}
