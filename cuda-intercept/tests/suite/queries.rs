//! Memory queries inside: every query reports a card as large as the limit.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::cuda::PinnedProperties;
use crate::stage::{CONTEXT, MIB, limited, uuid};

#[test]
fn a_program_that_takes_nine_tenths_of_what_is_free_gets_it() {
    limited(&[2000], |cuda, _| {
        let (free, total) = cuda.info();
        assert_eq!((free, total), (2000 * MIB - CONTEXT, 2000 * MIB));
        cuda.alloc(free / 10 * 9).expect("that is what free means");
        assert!(cuda.info().0 <= free - free / 10 * 9);
    });
}

#[test]
fn total_and_free_never_exceed_the_card() {
    crate::stage::on(&[1000], &[5000], |cuda, _| {
        assert_eq!(cuda.info(), (1000 * MIB - CONTEXT, 1000 * MIB));
        let mut bytes = 0;
        assert_eq!(cuda.device_total(&raw mut bytes, 0), 0);
        assert_eq!(bytes as u64, 1000 * MIB);
    });
}

#[test]
fn a_limit_below_the_use_shows_nothing_free_and_takes_nothing_away() {
    limited(&[2000], |cuda, account| {
        let address = cuda.alloc(1000 * MIB).expect("it fits");
        account.limits.cards()[0].set_limit(apportion_abi::Bytes(500 * MIB));
        assert_eq!(cuda.info(), (0, 500 * MIB));
        assert!(cuda.alloc(1).is_err());
        assert_eq!(cuda.mem_free(address), 0);
        assert_eq!(cuda.info().0, 500 * MIB - CONTEXT);
        account.limits.cards()[0].set_limit(apportion_abi::Bytes(3000 * MIB));
        assert_eq!(cuda.info(), (3000 * MIB - CONTEXT, 3000 * MIB));
    });
}

/// A card hands out blocks of 2 MiB. Agents of earlier releases wrote the exact bytes of a fraction.
#[test]
fn a_limit_that_ends_within_a_block_is_a_card_of_whole_blocks() {
    limited(&[2000], |cuda, account| {
        for bytes in [1500 * MIB + 777_777, 1501 * MIB, 1502 * MIB - 1] {
            account.limits.cards()[0].set_limit(apportion_abi::Bytes(bytes));
            let (free, total) = cuda.info();
            assert_eq!((free, total), (1500 * MIB - CONTEXT, 1500 * MIB), "{bytes}");
            let mut whole = 0;
            assert_eq!(cuda.device_total(&raw mut whole, 0), 0);
            assert_eq!(whole as u64, total);
            assert_eq!(nvml_memory(0).0, [total, free, total - free]);
            let address = cuda
                .alloc(free)
                .expect("all that is free can be had at once");
            assert_eq!(cuda.info().0, 0);
            assert_eq!(cuda.mem_free(address), 0);
            let (card, mut handle) = (PinnedProperties::device(0), 0);
            let status = cuda.mem_create(&raw mut handle, free as usize, &raw const card, 0);
            assert_eq!((status, cuda.info().0), (0, 0));
            assert_eq!(cuda.mem_release(handle), 0);
        }
    });
}

#[test]
fn what_the_agent_measured_counts_as_used() {
    limited(&[2000], |cuda, account| {
        account.limits.cards()[0].set_overhead(apportion_abi::Bytes(100 * MIB));
        assert_eq!(cuda.info().0, 1900 * MIB - CONTEXT);
        assert!(cuda.alloc(1901 * MIB - CONTEXT).is_err());
        assert!(cuda.alloc(1900 * MIB - CONTEXT).is_ok());
    });
}

#[test]
fn null_pointers_reach_the_driver() {
    limited(&[2000], |cuda, _| {
        let mut total = 0;
        let unhooked = cuda.mem_get_info(null_mut(), &raw mut total);
        assert!(unhooked != 0 || total as u64 == 2000 * MIB);
        assert_ne!(cuda.device_total(null_mut(), 0), 0);
    });
}

#[test]
fn nvml_shows_the_same_card() {
    limited(&[2000], |cuda, _| {
        let (free, total) = cuda.info();
        let (v1, v2) = nvml_memory(0);
        assert_eq!(v1, [total, free, total - free]);
        assert_eq!(v2[..4], [total, 0, free, total - free]);
        let (v1, _) = nvml_memory(1);
        assert_eq!(
            v1[0],
            (8192 + 256) * MIB,
            "a card without a limit is shown as it is"
        );
    });
}

/// `nvmlDeviceGetMemoryInfo` and `_v2` of a card.
fn nvml_memory(card: usize) -> ([u64; 3], [u64; 4]) {
    // SAFETY: loading a library runs its constructors, and this one has none that matter.
    let nvml = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_NOW) };
    let call = |name: &std::ffi::CStr, one: *mut c_void, two: *mut c_void| {
        // SAFETY: the handle is good and the name a string.
        let function = unsafe { libc::dlsym(nvml, name.as_ptr()) };
        // SAFETY: all functions named below take two pointers.
        let function: extern "C" fn(*mut c_void, *mut c_void) -> i32 =
            unsafe { std::mem::transmute(function) };
        assert_eq!(function(one, two), 0, "{name:?}");
    };
    call(c"nvmlInit_v2", null_mut(), null_mut());
    let name = std::ffi::CString::new(uuid(card)).expect("it is plain text");
    let mut device: *mut c_void = null_mut();
    call(
        c"nvmlDeviceGetHandleByUUID",
        name.as_ptr() as *mut c_void,
        (&raw mut device).cast(),
    );
    let mut v1 = [0_u64; 3];
    call(c"nvmlDeviceGetMemoryInfo", device, v1.as_mut_ptr().cast());
    let mut v2 = [0_u64; 5];
    v2[0] = 40 | (2 << 24);
    call(
        c"nvmlDeviceGetMemoryInfo_v2",
        device,
        v2.as_mut_ptr().cast(),
    );
    (v1, [v2[1], v2[2], v2[3], v2[4]])
}
