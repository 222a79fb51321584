//! The sizes and addresses of the API: 32 bits in its first version, 64 since.

/// A size or an address of either version.
pub(crate) trait ApiInteger: Copy + Send + Sync + 'static {
    /// The value in 64 bits.
    fn number(self) -> u64;
}

impl ApiInteger for u32 {
    fn number(self) -> u64 {
        u64::from(self)
    }
}

impl ApiInteger for u64 {
    fn number(self) -> u64 {
        self
    }
}

impl ApiInteger for usize {
    fn number(self) -> u64 {
        self as u64
    }
}
