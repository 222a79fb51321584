//! Who exceeds or bypasses a limit, and for how long.

use std::collections::BTreeMap;

use apportion_abi::CardUuid;

use crate::event::NoticeKind;
use crate::ids::ProcessId;

/// The offences of one allocation's processes, and in how many samples in a row each was seen.
pub(crate) type Offences = BTreeMap<LimitViolation, u32>;

/// One offence of one process on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LimitViolation {
    pub(crate) kind: NoticeKind,
    pub(crate) card: CardUuid,
    pub(crate) process: ProcessId,
}
