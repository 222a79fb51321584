//! API families, by which refusals are counted: a few words that show what a program tried.
//!
//! A family has a fixed place in the account's words. So the order is part of the layout, and new families go last.

/// A family of calls that take memory.
#[expect(missing_docs, reason = "the names of the variants say what they count")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiFamily {
    /// Linear and pitched memory.
    Alloc,
    Managed,
    /// Stream-ordered memory of pools.
    Pool,
    Virtual,
    Array,
    Module,
    /// Contexts, graphs, launches, settings, and everything that programs do not tell apart.
    Other,
}

impl ApiFamily {
    /// All families, in the order of their counters. The last one has no counter of its own.
    pub const ALL: [Self; 7] = [
        Self::Alloc,
        Self::Managed,
        Self::Pool,
        Self::Virtual,
        Self::Array,
        Self::Module,
        Self::Other,
    ];

    /// The name in output and metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Managed => "managed",
            Self::Pool => "pool",
            Self::Virtual => "virtual",
            Self::Array => "array",
            Self::Module => "module",
            Self::Other => "other",
        }
    }

    /// The index of the word with its counter, and what to add to it.
    pub(super) const fn counter(self) -> Option<(usize, u64)> {
        const LOW: u64 = 1;
        const HIGH: u64 = 1 << 32;
        match self {
            Self::Alloc => Some((0, LOW)),
            Self::Managed => Some((0, HIGH)),
            Self::Pool => Some((1, LOW)),
            Self::Virtual => Some((1, HIGH)),
            Self::Array => Some((2, LOW)),
            Self::Module => Some((2, HIGH)),
            Self::Other => None,
        }
    }
}
