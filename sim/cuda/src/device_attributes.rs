//! `cuDeviceGetAttribute`: one row per attribute. Capabilities that the library does not have are reported as missing,
//! so that programs do not try them.

use apportion_sim_machine::CardFacts;

/// The value of an attribute, or none if there is no such attribute.
pub(crate) fn value(attribute: i32, facts: &CardFacts) -> Option<i32> {
    let of_card = match attribute {
        16 => Some(i32::try_from(facts.multiprocessors).unwrap_or(i32::MAX)),
        33 => Some(i32::try_from(facts.pci_bus).unwrap_or(i32::MAX)),
        75 => Some(facts.compute_capability.0),
        76 => Some(facts.compute_capability.1),
        _ => None,
    };
    of_card
        .or_else(|| FIXED.iter().find(|row| row.0 == attribute).map(|row| row.1))
        .or_else(|| (1..=LAST).contains(&attribute).then_some(0))
}

/// The last attribute of CUDA 13.
const LAST: i32 = 161;

/// Number and value. All others are zero.
static FIXED: &[(i32, i32)] = &[
    (1, 1024),          // threads of a block
    (2, 1024),          // its width
    (3, 1024),          // its height
    (4, 64),            // its depth
    (5, i32::MAX),      // width of a grid
    (6, 65535),         // its height
    (7, 65535),         // its depth
    (8, 49152),         // shared memory of a block
    (9, 65536),         // constant memory
    (10, 32),           // threads of a warp
    (11, i32::MAX),     // pitch of a copy
    (12, 65536),        // registers of a block
    (13, 1_980_000),    // clock in kHz
    (14, 512),          // alignment of textures
    (15, 1),            // copies beside kernels
    (19, 1),            // host memory can be mapped
    (21, 131_072),      // width of a 1D texture
    (22, 131_072),      // width of a 2D texture
    (23, 65536),        // its height
    (24, 16384),        // width of a 3D texture
    (25, 16384),        // its height
    (26, 16384),        // its depth
    (27, 32768),        // width of a layered texture
    (28, 32768),        // its height
    (29, 2048),         // its layers
    (30, 512),          // alignment of surfaces
    (31, 1),            // concurrent kernels
    (32, 1),            // ECC
    (36, 2_619_000),    // memory clock in kHz
    (37, 5120),         // memory bus in bits
    (38, 52_428_800),   // second level cache
    (39, 2048),         // threads of a multiprocessor
    (40, 3),            // copy engines
    (41, 1),            // unified addressing
    (42, 32768),        // width of a 1D layered texture
    (43, 2048),         // its layers
    (51, 32),           // alignment of texture pitch
    (55, 32768),        // width of a 1D surface
    (56, 131_072),      // width of a 2D surface
    (57, 65536),        // its height
    (69, 268_435_456),  // width of a linear 1D texture
    (70, 131_072),      // width of a linear 2D texture
    (71, 65000),        // its height
    (72, 2_097_120),    // its pitch
    (78, 1),            // stream priorities
    (79, 1),            // global first level cache
    (80, 1),            // local first level cache
    (81, 233_472),      // shared memory of a multiprocessor
    (82, 65536),        // registers of a multiprocessor
    (83, 1),            // managed memory
    (87, 2),            // single to double precision
    (89, 1),            // managed memory at the same time as the host
    (90, 1),            // preemption
    (91, 1),            // registered memory has the host's addresses
    (95, 1),            // cooperative launch
    (97, 232_448),      // shared memory of a block on request
    (99, 1),            // host memory can be registered
    (102, 1),           // virtual memory
    (103, 1),           // shared by file descriptor
    (106, 32),          // blocks of a multiprocessor
    (108, 32_768_000),  // persisting second level cache
    (109, 134_213_632), // access policy window
    (111, 1024),        // reserved shared memory of a block
    (115, 1),           // memory pools
    (120, 1),           // clusters
    (122, 1),           // 64 bits of memory written by a stream
    (123, 1),           // waits for a value that is not
    (125, 1),           // events of other processes
    (126, 4),           // memory synchronisation domains
    (127, 1),           // tensor maps
    (129, 1),           // unified function pointers
    (131, -1),          // NUMA node of the card's memory
    (134, 0),           // NUMA node of the host
    (139, 0x2330_10de), // PCI device
    (140, 0x16c1_10de), // PCI subsystem
    (141, 1),           // virtual memory in the host's NUMA nodes
    (144, 1),           // pools in the host
    (145, 1),           // virtual memory in the host
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_unique() {
        assert!(FIXED.is_sorted_by(|one, other| one.0 < other.0));
    }
}
