//! Whether the processes of an allocation sleep, and why, in the checkpoint.
//!
//! What is usual is left out, because an older agent does not read a checkpoint that has it.

use apportion_ledger::{Allocation, SuspensionCause, SuspensionPhase};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SuspensionRecord {
    #[default]
    Running,
    Suspending,
    Suspended,
    Resuming,
}

impl SuspensionRecord {
    pub(super) fn of(phase: SuspensionPhase) -> Self {
        match phase {
            SuspensionPhase::Running => Self::Running,
            SuspensionPhase::Suspending => Self::Suspending,
            SuspensionPhase::Suspended => Self::Suspended,
            SuspensionPhase::Resuming => Self::Resuming,
        }
    }

    pub(super) fn phase(self) -> SuspensionPhase {
        match self {
            Self::Running => SuspensionPhase::Running,
            Self::Suspending => SuspensionPhase::Suspending,
            Self::Suspended => SuspensionPhase::Suspended,
            Self::Resuming => SuspensionPhase::Resuming,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        *self == Self::Running
    }
}

/// Whether the processes of an allocation sleep, or are on their way, for this reason.
pub(super) fn is_asleep_for(allocation: &Allocation, cause: SuspensionCause) -> bool {
    allocation.suspension != SuspensionPhase::Running && allocation.suspension_cause == cause
}

/// The reason that these two marks say.
pub(super) fn cause(called_in: bool, idle: bool) -> SuspensionCause {
    match (called_in, idle) {
        (true, _) => SuspensionCause::Guarantee,
        (false, true) => SuspensionCause::Idle,
        (false, false) => SuspensionCause::Client,
    }
}
