//! What a poll of the kubelet found.

use std::collections::{BTreeMap, BTreeSet};

use apportion_ledger::SlotId;

use super::checkpoint::KubeletCheckpointError;
use super::foreign_holders::ForeignHolder;
use super::whole_card_holders::WholeCardSnapshot;

/// The holder of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pod: String,
    /// Namespace and name, if the kubelet reported them.
    pub(crate) name: Option<String>,
    /// The containers that hold it. A slot of an init container is reused by a later container.
    pub(crate) containers: BTreeSet<String>,
}

/// The result of a poll.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KubeletSnapshot {
    pub(crate) held: BTreeMap<SlotId, Holder>,
    /// Whether the pod-resources API answered, too.
    pub(crate) is_listed: bool,
    /// The slots whose holder is unknown, and why.
    pub(crate) disputed: BTreeMap<SlotId, SlotDispute>,
    /// The pods with whole cards.
    pub(crate) whole: WholeCardSnapshot,
    /// The pods with cards of another device plugin or of a DRA driver, by UID.
    pub(crate) others: BTreeMap<String, ForeignHolder>,
    /// The pods that use ResourceClaims of this agent's driver: their names by UID, by the claim's namespace and name.
    pub(crate) claims: BTreeMap<String, BTreeMap<String, String>>,
    /// Whether a slot that is not in `held` is held by nobody.
    pub(crate) is_complete: bool,
    /// The pods that have ended or were deleted, according to the kubelet or the API server.
    pub(crate) ended: BTreeSet<String>,
    /// The pods in which nothing starts any more, according to the same source: they are being deleted, or they hold
    /// a slot and have started for good.
    pub(crate) ending: BTreeSet<String>,
    /// The pods that have not ended, according to the same source.
    pub(crate) live: BTreeSet<String>,
}

/// Why a poll failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeletPollError {
    #[error(transparent)]
    Checkpoint(#[from] KubeletCheckpointError),
    #[error("the apportion agent is stopping")]
    Leaving,
}

/// Why the holder of one slot is unknown. Other slots are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SlotDispute {
    #[error("the kubelet allocated it to two pods; delete one of them")]
    TwoPods,
    #[error("the kubelet's checkpoint and its pod-resources API name different holders")]
    Disagree,
}
