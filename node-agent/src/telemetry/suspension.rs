//! What an allocation says of its suspension.

use apportion_proto::v1::{Allocation, SuspensionState, holder};

/// The cause of pods that their scheduler suspended.
const SCHEDULER: &str = "scheduler";

/// Whether processes of an allocation may be asleep.
pub(super) fn sleeps(suspension: SuspensionState) -> bool {
    match suspension {
        SuspensionState::Unspecified | SuspensionState::Running => false,
        SuspensionState::Suspending | SuspensionState::Suspended | SuspensionState::Resuming => {
            true
        }
    }
}

/// Who suspended an allocation. Clients cannot suspend pods, so it was the scheduler of a pod.
pub(super) fn suspension_cause(of: &Allocation) -> &'static str {
    let holder = of.holder.as_ref().and_then(|holder| holder.kind.as_ref());
    match holder {
        _ if of.called_in => "guarantee",
        _ if of.idle => "idle",
        Some(holder::Kind::PodUid(_)) => SCHEDULER,
        _ => "client",
    }
}

/// Whether a pod sleeps for its scheduler, or is on its way, so that others have its guarantee.
pub(super) fn is_reclaimed(of: &Allocation) -> bool {
    sleeps(of.suspension()) && suspension_cause(of) == SCHEDULER
}
