//! Compares requests with capacity. No other code does that.
//!
//! The scheduler calls [`fits`] before it proposes, the agent calls it again before it accepts, and both print the
//! same [`Shortfall`]. A shortfall is a value, not an error: it carries the numbers that explain it and says whether
//! waiting can help.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::units::Bytes;
use crate::uuid::CardUuid;

/// The capacity of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardCapacity {
    /// The card's memory, as NVML reports it.
    pub total: Bytes,
    /// The part that the driver keeps for itself and that no program can get.
    pub reserved: Bytes,
}

impl CardCapacity {
    /// What programs can get: total less the driver's reserve.
    #[must_use]
    pub const fn allocatable(self) -> Bytes {
        self.total.minus(self.reserved)
    }
}

/// A share that somebody already holds on the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The allocation's name.
    pub name: String,
    /// How much it holds of this card.
    pub bytes: Bytes,
}

/// A request for some bytes of one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardRequest {
    /// The card.
    pub card: CardUuid,
    /// The bytes wanted.
    pub bytes: Bytes,
}

/// A refusal with numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// The request.
    pub ask: CardRequest,
    /// How much is free on the card.
    pub free: Bytes,
    /// How much programs can get in all.
    pub allocatable: Bytes,
    /// Memory that processes without an allocation use, which is not free either.
    pub unmanaged: Bytes,
    /// The holders of the rest, largest share first.
    pub holders: Vec<Holder>,
    /// Holders that use more than what is guaranteed to them, and how much more, largest first. It is part of what they
    /// hold.
    pub bursts: Vec<Holder>,
}

impl Shortfall {
    /// Whether the request would fit if others gave back what they hold.
    #[must_use]
    pub fn waiting_helps(&self) -> bool {
        self.ask.bytes <= self.allocatable
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "asked for {} on {}; {} free (of {}",
            self.ask.bytes, self.ask.card, self.free, self.allocatable
        )?;
        let named = self.holders.iter().take(NAMED);
        for (place, holder) in named.enumerate() {
            let lead = if place == 0 { "; held by " } else { ", " };
            write!(f, "{lead}{} with {}", holder.name, holder.bytes)?;
        }
        if let Some(more) = self
            .holders
            .len()
            .checked_sub(NAMED)
            .filter(|more| *more > 0)
        {
            let rest: Bytes = self
                .holders
                .iter()
                .skip(NAMED)
                .map(|holder| holder.bytes)
                .sum();
            write!(f, ", and {more} more with {rest}")?;
        }
        if self.unmanaged > Bytes::ZERO {
            write!(
                f,
                "; {} used by processes without an allocation",
                self.unmanaged
            )?;
        }
        f.write_str(")")?;
        write!(f, "{}", BurstHolders(&self.bursts))?;
        if !self.waiting_helps() {
            f.write_str("; the GPU is too small, waiting does not help")?;
        }
        Ok(())
    }
}

/// Who uses how much above its guarantee, as the end of a refusal. Nothing if nobody does.
#[derive(Clone, Copy, Debug)]
pub struct BurstHolders<'a>(pub &'a [Holder]);

impl fmt::Display for BurstHolders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum: Bytes = self.0.iter().map(|burst| burst.bytes).sum();
        if sum == Bytes::ZERO {
            return Ok(());
        }
        write!(f, "; {sum} of it used above guarantees, ")?;
        for (place, burst) in self.0.iter().take(NAMED).enumerate() {
            let lead = if place == 0 { "by " } else { ", " };
            write!(f, "{lead}{} with {}", burst.name, burst.bytes)?;
        }
        match self.0.len().checked_sub(NAMED) {
            Some(more @ 1..) => write!(f, ", and {more} more"),
            Some(0) | None => Ok(()),
        }
    }
}

/// How many holders a shortfall names before it sums up the others.
const NAMED: usize = 4;

/// Checks whether `ask` fits a card of that capacity beside what others hold.
///
/// # Errors
/// The [`Shortfall`] if it does not fit.
pub fn fits(
    capacity: CardCapacity,
    holders: &[Holder],
    unmanaged: Bytes,
    ask: CardRequest,
) -> Result<(), Shortfall> {
    let allocatable = capacity.allocatable();
    let held: Bytes = holders.iter().map(|holder| holder.bytes).sum();
    let free = allocatable.minus(held).minus(unmanaged);
    if ask.bytes <= free {
        return Ok(());
    }
    let mut holders = holders.to_vec();
    holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    Err(Shortfall {
        ask,
        free,
        allocatable,
        unmanaged,
        holders,
        bursts: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const CARD: CardUuid = CardUuid([7; 16]);
    const CAPACITY: CardCapacity = CardCapacity {
        total: Bytes(1000 << 20),
        reserved: Bytes(100 << 20),
    };

    fn ask(mib: u64) -> CardRequest {
        CardRequest {
            card: CARD,
            bytes: Bytes::from_mib(mib),
        }
    }

    fn holders(shares: &[(&str, u64)]) -> Vec<Holder> {
        shares
            .iter()
            .map(|(name, mib): &(&str, u64)| Holder {
                name: (*name).into(),
                bytes: Bytes::from_mib(*mib),
            })
            .collect()
    }

    #[test]
    fn the_last_byte_fits_and_the_next_does_not() {
        let held = holders(&[("a", 500)]);
        assert_eq!(fits(CAPACITY, &held, Bytes::ZERO, ask(400)), Ok(()));
        assert!(fits(CAPACITY, &held, Bytes(1), ask(400)).is_err());
    }

    #[test]
    fn a_refusal_says_what_is_free_and_who_holds_the_rest() {
        let held = holders(&[("build", 180), ("train", 630)]);
        let shortfall = fits(CAPACITY, &held, Bytes::ZERO, ask(200)).unwrap_err();
        assert!(shortfall.waiting_helps());
        assert_eq!(
            shortfall.to_string(),
            "asked for 200 MiB on GPU-07070707-0707-0707-0707-070707070707; 90 MiB free (of 900 MiB; held by train with 630 MiB, build with 180 MiB)"
        );
    }

    #[test]
    fn a_refusal_says_who_uses_more_than_its_guarantee() {
        let shortfall = fits(
            CAPACITY,
            &holders(&[("a", 500), ("b", 390)]),
            Bytes::ZERO,
            ask(20),
        );
        let shortfall = Shortfall {
            bursts: holders(&[("a", 200), ("b", 90)]),
            ..shortfall.unwrap_err()
        };
        let text = shortfall.to_string();
        let end = "; 290 MiB of it used above guarantees, by a with 200 MiB, b with 90 MiB";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn a_refusal_that_no_waiting_cures_says_so() {
        let shortfall = fits(CAPACITY, &[], Bytes::ZERO, ask(901)).unwrap_err();
        assert!(!shortfall.waiting_helps());
        assert!(
            shortfall.to_string().ends_with("waiting does not help"),
            "{shortfall}"
        );
    }

    #[test]
    fn memory_that_was_never_given_cannot_be_given_again() {
        let held = holders(&[
            ("a", 100),
            ("b", 100),
            ("c", 100),
            ("d", 100),
            ("e", 50),
            ("f", 50),
        ]);
        let text = fits(CAPACITY, &held, Bytes::from_mib(300), ask(200))
            .unwrap_err()
            .to_string();
        assert!(text.contains("100 MiB free"), "{text}");
        assert!(
            text.contains(
                "and 2 more with 100 MiB; 300 MiB used by processes without an allocation"
            ),
            "{text}"
        );
    }
}
