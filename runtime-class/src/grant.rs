//! An allocation as one program or container gets it.

use apportion_abi::{Bytes, Share};

/// An allocation as one program or container gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The allocation's id.
    pub id: String,
    /// The folder of the account on the host.
    pub account: String,
    /// The path of the preload library on the host.
    pub library: String,
    /// What was requested of each card.
    pub share: Share,
    /// The cards in the order in which the program sees them.
    pub cards: Vec<GrantedCard>,
    /// Whether it may use more of a card than it is guaranteed. Its account then has the files in which programs ask.
    pub is_elastic: bool,
    /// The driver's own limit on each card, in MiB, where the driver keeps one and it is the same for all cards.
    pub driver_limit: Option<u64>,
}

/// One card of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedCard {
    /// The UUID as the driver prints it (`GPU-…` or `MIG-…`).
    pub uuid: String,
    /// The minor number in `/dev/nvidia<minor>`, if known.
    pub minor: Option<u32>,
    /// CUDA's ordinal for it on this machine, in PCI bus order, if certain.
    pub cuda_ordinal: Option<u32>,
    /// The most that the program may use.
    pub limit: Bytes,
    /// The card's allocatable memory.
    pub allocatable: Bytes,
}

impl Grant {
    /// The UUIDs, in order, separated by commas.
    pub(crate) fn uuids(&self) -> String {
        self.cards
            .iter()
            .map(|card| card.uuid.as_str())
            .collect::<Vec<_>>()
            .join(",")
    }

    /// CUDA's ordinals of the cards (in PCI bus order), listed in the grant's order and separated by commas; `None`
    /// if one is uncertain.
    pub(crate) fn cuda_ordinals(&self) -> Option<String> {
        let ordinals = self
            .cards
            .iter()
            .map(|card| Some(card.cuda_ordinal?.to_string()));
        Some(ordinals.collect::<Option<Vec<_>>>()?.join(","))
    }

    /// KAI's `GPU_PORTION`: the requested fraction, or the limit as a fraction, with two decimals.
    pub(crate) fn portion(&self) -> Option<String> {
        match self.share {
            Share::Fraction(fraction) => Some(fraction.portion()),
            Share::Whole | Share::Memory(_) => self.cards.first().map(|card| {
                let allocatable = card.allocatable.0.max(1);
                format!("{:.2}", card.limit.0 as f64 / allocatable as f64)
            }),
        }
    }

    /// KAI's `CUDA_DEVICE_MEMORY_LIMIT`: one value for all cards, in MiB with the suffix `m`.
    pub(crate) fn memory_limit(&self) -> Option<String> {
        let least = self.cards.iter().map(|card| card.limit).min()?;
        Some(format!("{}m", least.as_mib()))
    }
}
