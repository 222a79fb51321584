//! Which cards of a node a request goes to.
//!
//! A pure function of the request and the cards: no clock, no I/O, the same answer for the same cards in
//! any order. It only proposes; the agent that owns the cards decides, with the same
//! [`fits`], and prints the same refusal.
//!
//! # Best fit
//! The card that is left with the least free memory wins, so that large holes stay for those who need
//! them. Among equals the smaller card wins, then the lower UUID.

use std::fmt;

use apportion_abi::{
    Bytes, CardCapacity, CardRequest, CardUuid, GpuRequest, Holder, Share, Shortfall, fits,
};

/// One card as the policy sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateCard {
    /// The UUID by which NVML knows it.
    pub uuid: CardUuid,
    /// Its memory.
    pub capacity: CardCapacity,
    /// Who holds a share of it.
    pub holders: Vec<Holder>,
    /// What processes without an allocation use of its memory.
    pub unmanaged: Bytes,
    /// Whether it can be allocated.
    pub is_healthy: bool,
}

/// The cards for a request: one per device, each different, best fit first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardPlacement {
    /// What to ask of each card.
    pub asks: Vec<CardRequest>,
}

/// Why a request can't be placed on these cards now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementRefusal {
    /// There are too few healthy cards, even if all were free.
    TooFewCards {
        /// How many distinct cards were asked for.
        asked: u32,
        /// How many healthy cards there are.
        healthy: usize,
    },
    /// On too many cards, the share is less than the smallest that can be given.
    TooLittle(Share),
    /// Too few cards have room; these are the numbers of the one that comes closest.
    Shortfall(Shortfall),
}

impl PlacementRefusal {
    /// Whether the request could be met once others give back what they hold.
    #[must_use]
    pub fn waiting_helps(&self) -> bool {
        match self {
            Self::TooFewCards { .. } | Self::TooLittle(_) => false,
            Self::Shortfall(shortfall) => shortfall.waiting_helps(),
        }
    }
}

impl fmt::Display for PlacementRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFewCards { asked, healthy } => {
                write!(
                    f,
                    "asked for {asked} GPUs; {healthy} healthy here; waiting does not help"
                )
            }
            Self::TooLittle(share) => {
                write!(
                    f,
                    "asked for {share}; that is less than 2 MiB, the smallest share; waiting does not help"
                )
            }
            Self::Shortfall(shortfall) => shortfall.fmt(f),
        }
    }
}

/// Chooses cards for `request`.
///
/// # Errors
/// The [`PlacementRefusal`] of the card that comes closest to having room: first cards where waiting helps, then
/// the one that lacks least. [`PlacementRefusal::TooLittle`] if the share is too small for all cards that are
/// missing.
pub fn place(
    request: &GpuRequest,
    cards: &[CandidateCard],
) -> Result<CardPlacement, PlacementRefusal> {
    let asked = usize::try_from(request.devices).unwrap_or(usize::MAX);
    let healthy: Vec<&CandidateCard> = cards.iter().filter(|card| card.is_healthy).collect();
    if healthy.len() < asked {
        return Err(PlacementRefusal::TooFewCards {
            asked: request.devices,
            healthy: healthy.len(),
        });
    }
    let mut holes = Vec::new();
    let mut shortfalls = Vec::new();
    for card in healthy {
        let ask = CardRequest {
            card: card.uuid,
            bytes: request.share.bytes_of(card.capacity),
        };
        if ask.bytes == Bytes::ZERO {
            continue;
        }
        match fits(card.capacity, &card.holders, card.unmanaged, ask) {
            Ok(()) => holes.push((left_by(card, ask), card.capacity.allocatable(), ask)),
            Err(shortfall) => shortfalls.push(shortfall),
        }
    }
    if holes.len() < asked {
        let closest = shortfalls.into_iter().min_by_key(|shortfall| {
            let lacks = shortfall.ask.bytes.minus(shortfall.free);
            (!shortfall.waiting_helps(), lacks, shortfall.ask.card)
        });
        return Err(closest.map_or(
            PlacementRefusal::TooLittle(request.share),
            PlacementRefusal::Shortfall,
        ));
    }
    holes.sort_by_key(|&(left, allocatable, ask)| (left, allocatable, ask.card));
    Ok(CardPlacement {
        asks: holes
            .into_iter()
            .take(asked)
            .map(|(_, _, ask)| ask)
            .collect(),
    })
}

/// What would be free on `card` after it gave `ask`.
fn left_by(card: &CandidateCard, ask: CardRequest) -> Bytes {
    let held: Bytes = card.holders.iter().map(|holder| holder.bytes).sum();
    card.capacity
        .allocatable()
        .minus(held)
        .minus(card.unmanaged)
        .minus(ask.bytes)
}
