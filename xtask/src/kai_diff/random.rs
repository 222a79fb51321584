//! Random numbers from a seed: the same on every machine and with every version of every library.

/// `SplitMix64`.
#[derive(Clone, Debug)]
pub(crate) struct ClusterRng(u64);

impl ClusterRng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from `least` to `most`, inclusive.
    pub(crate) fn between(&mut self, least: usize, most: usize) -> usize {
        let span = (most - least + 1) as u64;
        least + (self.next() % span) as usize
    }

    /// True with a probability of `percent`.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// A random element of a list, which must not be empty.
    pub(crate) fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.between(0, list.len() - 1)]
    }

    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let other = self.between(0, last);
            list.swap(last, other);
        }
    }
}
