//! One slot: its name and its state.

use std::fmt;
use std::str::FromStr;

use crate::ids::AllocationId;

/// The number of a slot, from one. It is written `s-0001`, which is also the kubelet's device id and the name of the
/// CDI device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u16);

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s-{:04}", self.0)
    }
}

impl FromStr for SlotId {
    type Err = String;

    /// Accepts only what `Display` writes, so that a slot has one name.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = text
            .strip_prefix("s-")
            .and_then(|digits| digits.parse().ok());
        let slot = number.filter(|number| *number > 0).map(Self);
        slot.filter(|slot| slot.to_string() == text)
            .ok_or_else(|| format!("{text:?} is not a slot of this agent"))
    }
}

/// The state of a slot.
#[expect(missing_docs, reason = "the types of the fields say what they are")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SlotState {
    /// No pod has it.
    #[default]
    Free,
    /// The kubelet gave it to a container that has not started.
    Handed,
    /// The grant of this pod is written.
    Prepared {
        pod: String,
        allocation: AllocationId,
    },
    /// The pod has left, and its allocation still exists.
    Draining {
        pod: String,
        allocation: AllocationId,
    },
}

impl SlotState {
    /// All values of [`SlotState::word`].
    pub const WORDS: [&str; 4] = ["free", "handed", "prepared", "draining"];

    /// The state in one word, for metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Handed => "handed",
            Self::Prepared { .. } => "prepared",
            Self::Draining { .. } => "draining",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_name() {
        assert_eq!("s-0001".parse(), Ok(SlotId(1)));
        assert_eq!("s-65535".parse(), Ok(SlotId(65_535)));
        for text in [
            "s-0", "s-0000", "s-1", "s-00001", "s-65536", "s-+001", "0001", "",
        ] {
            assert!(text.parse::<SlotId>().is_err(), "{text}");
        }
    }
}
