//! Nothing at all as every argument: what the driver says to it is what the program gets.

use std::ffi::c_int;

use apportion_intercept::{Library, ROWS};

use crate::lookup::past_us;
use crate::stage::{CONTEXT, limited};

/// In this calling convention a function takes what it needs of these and leaves the rest.
type Any = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64) -> c_int;

/// With nothing as its argument these end the context that the others are tried in.
const DECISIVE: &[&str] = &["cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset"];

fn call(address: usize) -> c_int {
    // SAFETY: the address is that of a function with at most six arguments of at most 64 bits.
    let function: Any = unsafe { std::mem::transmute(address) };
    // SAFETY: drivers refuse null pointers, and no argument is anything but zero.
    unsafe { function(0, 0, 0, 0, 0, 0) }
}

#[test]
fn nothing_is_answered_by_the_driver() {
    limited(&[1000], |cuda, account| {
        let mut tried = 0;
        for row in ROWS.iter().filter(|row| row.library == Library::Cuda) {
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
