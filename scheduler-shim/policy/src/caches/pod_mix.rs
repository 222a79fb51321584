//! The kinds of pods in the cluster, and the part of all requests that is theirs.

/// What a kind of pods needs: parts of a card, and of how many cards. A whole card is all parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodKind {
    pub(crate) parts: u64,
    pub(crate) cards: u64,
}

/// The kinds of pods, and the part of all requests that is theirs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PodMix(pub(crate) Vec<(PodKind, f64)>);
