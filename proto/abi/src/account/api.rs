//! Which family of calls was refused memory: few words, for those who look for what a program tried.
//!
//! A family is a place in the account's words, so the order is part of the layout and new ones come behind.

/// A family of calls that take memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiFamily {
    /// Linear and pitched memory.
    Alloc,
    /// Managed memory.
    Managed,
    /// Stream-ordered memory of pools.
    Pool,
    /// Virtual memory.
    Virtual,
    /// Arrays.
    Array,
    /// Modules and libraries.
    Module,
    /// Contexts, graphs, launches, settings, and whatever programs do not tell apart.
    Other,
}

impl ApiFamily {
    /// All, in the order of their counters; the last one has none of its own.
    pub const ALL: [Self; 7] = [
        Self::Alloc,
        Self::Managed,
        Self::Pool,
        Self::Virtual,
        Self::Array,
        Self::Module,
        Self::Other,
    ];

    /// What people and metrics call it.
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

    /// The word and the addend of its counter.
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
