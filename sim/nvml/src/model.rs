//! Properties that depend only on a card's generation. The figures are those of each generation's best-known product.
//! Accounting does not depend on them; monitoring programs show them.

use apportion_sim_machine::CardSnapshot;

/// One generation of cards.
#[derive(Debug)]
pub(crate) struct CardGeneration {
    capability: (i32, i32),
    /// `NVML_DEVICE_ARCH_…`.
    pub(crate) architecture: u32,
    pub(crate) pci_device: u32,
    pub(crate) cores_per_multiprocessor: u32,
    pub(crate) memory_bus_bits: u32,
    /// In MHz.
    pub(crate) core_clock: u32,
    /// In MHz.
    pub(crate) memory_clock: u32,
    /// In milliwatts.
    pub(crate) power_limit: u32,
    /// Whether it is a data centre part: its memory has ECC and the card can be partitioned.
    pub(crate) data_centre: bool,
    pub(crate) pcie_generation: u32,
}

/// In ascending order of compute capability.
#[rustfmt::skip]
const MODELS: [CardGeneration; 9] = [
    row((7, 0),  5, 0x1db5,  64, 4096, 1530,   877,   300_000, false, 3),
    row((7, 5),  6, 0x1eb8,  64,  256, 1590,  5001,    70_000, false, 3),
    row((8, 0),  7, 0x20b0,  64, 5120, 1410,  1215,   400_000, true,  4),
    row((8, 6),  7, 0x2236, 128,  384, 1695,  6251,   150_000, false, 4),
    row((8, 9),  8, 0x26b9, 128,  384, 2520,  9001,   350_000, false, 4),
    row((9, 0),  9, 0x2330, 128, 5120, 1980,  2619,   700_000, true,  5),
    row((10, 0), 10, 0x2901, 128, 8192, 1965, 3996, 1_000_000, true,  6),
    row((10, 3), 10, 0x3182, 128, 8192, 1920, 3996, 1_400_000, true,  6),
    row((12, 0), 10, 0x2b85, 128,  512, 2617, 14001,  600_000, false, 5),
];

/// The card's generation: the newest one up to its compute capability.
pub(crate) fn of(card: &CardSnapshot) -> &'static CardGeneration {
    let known = MODELS.iter().rev();
    let mut fitting = known.filter(|model| model.capability <= card.compute_capability);
    fitting.next().unwrap_or(&MODELS[0])
}

#[expect(clippy::too_many_arguments, reason = "one row of a table")]
const fn row(
    capability: (i32, i32),
    architecture: u32,
    pci_device: u32,
    cores_per_multiprocessor: u32,
    memory_bus_bits: u32,
    core_clock: u32,
    memory_clock: u32,
    power_limit: u32,
    data_centre: bool,
    pcie_generation: u32,
) -> CardGeneration {
    CardGeneration {
        capability,
        architecture,
        pci_device,
        cores_per_multiprocessor,
        memory_bus_bits,
        core_clock,
        memory_clock,
        power_limit,
        data_centre,
        pcie_generation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generations_ascend() {
        assert!(MODELS.is_sorted_by(|older, newer| older.capability < newer.capability));
    }
}
