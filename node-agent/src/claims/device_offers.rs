//! What is offered to claims: the cards with what is left of them for claims.

use apportion_ledger::ClaimOffer;

use crate::driver::identity::CardIdentity;

/// The devices of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceOffers {
    pub(crate) devices: Vec<DeviceOffer>,
    /// Whether somebody else gives out the node's cards, so that this agent gives none.
    pub(crate) has_other_owner: bool,
    pub(crate) driver_version: String,
    /// The newest CUDA version that the driver supports, as NVML's number.
    pub(crate) cuda_version: Option<i32>,
}

/// One card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceOffer {
    pub(crate) offer: ClaimOffer,
    pub(crate) index: u32,
    pub(crate) minor: Option<u32>,
    pub(crate) model: String,
    pub(crate) numa: Option<u32>,
    pub(crate) identity: CardIdentity,
}
