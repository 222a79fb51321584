//! The sizes and addresses of the API, which have 32 bits in its first version and 64 since.

/// A size or an address of either version.
pub(crate) trait Number: Copy + Send + Sync + 'static {
    /// The same in 64 bits.
    fn number(self) -> u64;
}

impl Number for u32 {
    fn number(self) -> u64 {
        u64::from(self)
    }
}

impl Number for u64 {
    fn number(self) -> u64 {
        self
    }
}

impl Number for usize {
    fn number(self) -> u64 {
        self as u64
    }
}
