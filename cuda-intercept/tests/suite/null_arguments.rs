//! Null for every argument: the program gets the driver's own answer.

use std::ffi::c_int;

use apportion_intercept::{DriverLibrary, ROWS};

use crate::cuda::{OUT_OF_MEMORY, PinnedProperties};
use crate::lookup::past_us;
use crate::stage::{CONTEXT, held, limited};

/// In this calling convention, a function takes the arguments that it needs and ignores the rest.
type Any = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64) -> c_int;

/// With null arguments these end the context in which the others are tried.
const DECISIVE: &[&str] = &["cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset"];

fn call(address: usize) -> c_int {
    call_with(address, [0; 6])
}

fn call_with(address: usize, [a, b, c, d, e, f]: [u64; 6]) -> c_int {
    // SAFETY: the address is that of a function with at most six arguments of at most 64 bits.
    let function: Any = unsafe { std::mem::transmute(address) };
    // SAFETY: drivers refuse null pointers; other arguments are what the function takes or refuses.
    unsafe { function(a, b, c, d, e, f) }
}

#[test]
fn nothing_is_answered_by_the_driver() {
    limited(&[1000], |cuda, account| {
        let mut tried = 0;
        for row in ROWS.iter().filter(|row| row.library == DriverLibrary::Cuda) {
            let real = past_us(row.symbol);
            if real == 0 || DECISIVE.contains(&row.name) {
                continue;
            }
            let (with, without) = (call(cuda.address(row.symbol)), call(real));
            assert_eq!(with, without, "{:?}", row.symbol);
            tried += 1;
        }
        assert!(tried > 40, "only {tried} were tried");
        assert_eq!(account.claimed(0), CONTEXT);
    });
}

/// A size larger than any card: each call gets the driver's answer, which may be about another argument.
#[test]
fn a_size_that_no_card_has_is_answered_by_the_driver() {
    const SIZES: [u64; 7] = [
        1 << 38,
        1 << 40,
        1 << 48,
        u64::MAX / 2,
        u64::MAX / 2 + 1,
        u64::MAX - 511,
        u64::MAX,
    ];
    limited(&[1000], |cuda, account| {
        let card = PinnedProperties::device(0);
        let card = (&raw const card) as u64;
        // SAFETY: zeroes are a valid value of integers.
        let nothing: [u64; 16] = unsafe { std::mem::zeroed() };
        let nothing = (&raw const nothing) as u64;
        let (mut first, mut second) = (0_u64, 0_u64);
        let (one, two) = ((&raw mut first) as u64, (&raw mut second) as u64);
        let calls = SIZES.iter().flat_map(|&size| {
            [
                (c"cuMemAlloc_v2", [one, size, 0, 0, 0, 0]),
                (c"cuMemAllocManaged", [one, size, 0, 0, 0, 0]),
                (c"cuMemAllocManaged", [one, size, 77, 0, 0, 0]),
                (c"cuMemAllocPitch_v2", [one, two, size, 2, 4, 0]),
                (c"cuMemAllocPitch_v2", [one, two, size, 2, 3, 0]),
                (c"cuMemAllocPitch_v2", [one, two, size, size, 16, 0]),
                (c"cuMemAllocAsync", [one, size, 0, 0, 0, 0]),
                (c"cuMemAllocAsync_ptsz", [one, size, 0, 0, 0, 0]),
                (c"cuMemAllocAsync", [one, size, 0x1230, 0, 0, 0]),
                (c"cuMemAllocAsync_ptsz", [one, size, 0x1230, 0, 0, 0]),
                (c"cuMemCreate", [one, size, card, 0, 0, 0]),
                (c"cuMemCreate", [one, size, card, 5, 0, 0]),
                (c"cuMemCreate", [one, size, nothing, 0, 0, 0]),
            ]
        });
        let mut differ = Vec::new();
        for (symbol, arguments) in calls {
            let call = |address| call_with(address, arguments);
            let (with, without) = (call(cuda.address(symbol)), call(past_us(symbol)));
            if with != without {
                differ.push((symbol, arguments[1], with, without));
            }
        }
        assert!(differ.is_empty(), "with us and without: {differ:?}");
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
    });
}

/// Managed memory may be larger than the card, but not than the limit: the hook frees it again.
#[test]
fn managed_memory_that_is_larger_than_the_card_is_refused_and_leaves_nothing() {
    limited(&[1000], |cuda, account| {
        for _ in 0..3 {
            let mut address = 0x5a5a;
            let status = cuda.mem_alloc_managed(&raw mut address, 1 << 35, 1);
            assert_eq!((status, address), (OUT_OF_MEMORY, 0x5a5a));
        }
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
    });
}
