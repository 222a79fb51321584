//! The users of a machine who share root's agent.
//!
//! The kernel identifies the caller. The key of an allocation names its owner: the agent prefixes the user's key
//! with the uid. So no user can name an allocation of another one, and the owner is in the checkpoint.

use apportion_abi::{BurstTerms, Bytes, CardRequest, CardUuid, ContainerRef};
use apportion_ledger::{
    Allocation, AllocationId, AllocationOwner, PlacementProposal, SuspensionCause, SuspensionPhase,
};
use tonic::Status;

use crate::processes::procfs;

/// The most allocations of one user. Each needs files and a mapping in the agent.
const MOST: usize = 256;

/// Which users of this machine may send requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AllowedUsers {
    /// The agent's own user, and root.
    #[default]
    Own,
    /// Everybody. Users can change only their own allocations.
    All,
}

/// A user who is neither root nor the agent's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TenantUid(pub(crate) u32);

impl TenantUid {
    /// The user that a key belongs to.
    pub(crate) fn of(key: &str) -> Option<Self> {
        let (user, _) = key.strip_prefix("user ")?.split_once(' ')?;
        user.parse().ok().map(Self)
    }

    /// Turns a proposal into one of this user.
    pub(crate) fn proposal(self, proposal: PlacementProposal) -> Result<PlacementProposal, Status> {
        if ContainerRef::of(&proposal.name).is_some() {
            let why = format!("the name {:?} is that of a pod", proposal.name);
            return Err(Status::invalid_argument(why));
        }
        self.may_burst(proposal.terms)?;
        let key = format!("user {} {}", self.0, proposal.key);
        Ok(PlacementProposal { key, ..proposal })
    }

    /// Refuses what would put this user before others: like `nice`, a user can only step back.
    fn may_burst(self, BurstTerms { weight, priority }: BurstTerms) -> Result<(), Status> {
        let most = BurstTerms::default();
        if weight.thousandths() > most.weight.thousandths() || priority > most.priority {
            let why = format!(
                "user {} asked to burst with weight {weight} and priority {priority}; users of a shared agent get at most weight {} and priority {}",
                self.0, most.weight, most.priority
            );
            return Err(Status::permission_denied(why));
        }
        Ok(())
    }

    /// Whether this user may change an allocation with this key.
    pub(crate) fn may_change(self, id: &AllocationId, key: Option<&str>) -> Result<(), Status> {
        match key.and_then(Self::of) {
            Some(owner) if owner == self => Ok(()),
            _ => {
                let why = format!("user {} has no allocation {id}", self.0);
                Err(Status::permission_denied(why))
            }
        }
    }

    /// Whether a process belongs to this user.
    pub(crate) fn may_own(self, owner: &AllocationOwner) -> Result<(), Status> {
        let is_own = match owner {
            AllocationOwner::Process(process) => {
                procfs::users(process.pid).is_some_and(|(real, _)| real == self.0)
            }
            AllocationOwner::Pod(_) | AllocationOwner::Claim(_) => false,
        };
        is_own.then_some(()).ok_or_else(|| {
            Status::permission_denied(format!("the holder is not a process of user {}", self.0))
        })
    }

    /// Whether the request is within the user's quota, with all that programs may burst to. It replaces what the
    /// allocation `instead` has.
    pub(crate) fn may_have(
        self,
        asks: &[CardRequest],
        ceilings: &[CardRequest],
        allocations: &[&Allocation],
        instead: Option<&AllocationId>,
        quota: Option<Bytes>,
    ) -> Result<(), Status> {
        let own = |allocation: &&&Allocation| {
            Self::of(&allocation.key) == Some(self) && Some(&allocation.id) != instead
        };
        let own: Vec<_> = allocations.iter().filter(own).collect();
        let user = self.0;
        if own.len() >= MOST {
            let why = format!("user {user} has {MOST} allocations, which is the most");
            return Err(Status::resource_exhausted(why));
        }
        for CardRequest { card, bytes } in asks.iter().chain(ceilings) {
            let held: Bytes = own.iter().map(|of| counted(of, *card)).sum();
            if let Some(quota) = quota.filter(|quota| held.plus(*bytes) > *quota) {
                return Err(Status::resource_exhausted(format!(
                    "user {user} asked {bytes} on {card} and holds {held}; the quota of a user is {quota} of each GPU"
                )));
            }
        }
        Ok(())
    }
}

/// What an allocation has of a user's quota on a card: all that its programs may burst to, or what is left on the card
/// while the user has suspended them. The agent wakes those that it has suspended itself, so these count in full.
fn counted(allocation: &Allocation, card: CardUuid) -> Bytes {
    let Some(grant) = allocation.grant(card) else {
        return Bytes::ZERO;
    };
    match (allocation.suspension, allocation.suspension_cause) {
        (SuspensionPhase::Suspended, SuspensionCause::Client) => grant.held,
        (SuspensionPhase::Suspended, SuspensionCause::Guarantee | SuspensionCause::Idle)
        | (SuspensionPhase::Running | SuspensionPhase::Suspending | SuspensionPhase::Resuming, _) => {
            grant.held.max(grant.ceiling())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_whose_it_is() {
        let proposal = |key: &str, name: &str| PlacementProposal {
            key: key.into(),
            name: name.into(),
            asks: Vec::new(),
            ceilings: Vec::new(),
            terms: BurstTerms::default(),
            ttl: std::time::Duration::ZERO,
            idle_after: None,
        };
        let made = TenantUid(1000)
            .proposal(proposal("user 0 a", "train"))
            .unwrap();
        assert_eq!(TenantUid::of(&made.key), Some(TenantUid(1000)));
        assert_eq!(TenantUid::of("run-1-2"), None);
        assert!(
            TenantUid(1000)
                .proposal(proposal("a", "kube-system/dns/main"))
                .is_err()
        );
        let with_terms = |weight: &str, priority| {
            let terms = BurstTerms {
                weight: weight.parse().unwrap(),
                priority,
            };
            TenantUid(1000).proposal(PlacementProposal {
                terms,
                ..proposal("a", "train")
            })
        };
        assert!(with_terms("0.5", -3).is_ok(), "a user can step back");
        for refused in [with_terms("1.001", 0), with_terms("1", 1)] {
            assert_eq!(refused.unwrap_err().code(), tonic::Code::PermissionDenied);
        }
        let id = AllocationId("1-1".into());
        assert!(TenantUid(1000).may_change(&id, Some(&made.key)).is_ok());
        for key in [None, Some("run-1-2"), Some("user 1001 a")] {
            assert!(TenantUid(1000).may_change(&id, key).is_err());
        }
    }
}
