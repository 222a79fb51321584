//! A small random generator with a fixed seed, so that every run is the same.

/// The generator.
pub(crate) struct SuiteRng(pub(crate) u64);

impl SuiteRng {
    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or_default() % sides.max(1)
    }
}
