//! Stream-ordered memory: a pool costs what it reserves.

use std::ptr::null_mut;

use crate::cuda::{Cuda, OUT_OF_MEMORY, Pointer, Properties};
use crate::stage::{CONTEXT, MIB, held, limited};

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: u32 = 4;

fn alloc(cuda: &Cuda, bytes: u64) -> Result<u64, i32> {
    let mut address = 0;
    match cuda.alloc_async(&raw mut address, bytes as usize, null_mut()) {
        0 => Ok(address),
        status => Err(status),
    }
}

fn pool(cuda: &Cuda, keep: u64) -> Pointer {
    let (mut pool, mut keep) = (null_mut(), keep);
    assert_eq!(cuda.pool_create(&raw mut pool, &Properties::device(0)), 0);
    assert_eq!(cuda.pool_set(pool, RELEASE_THRESHOLD, &raw mut keep), 0);
    pool
}

fn alloc_from(cuda: &Cuda, pool: Pointer, bytes: u64) -> Result<u64, i32> {
    let mut address = 0;
    match cuda.alloc_from_pool(&raw mut address, bytes as usize, pool, null_mut()) {
        0 => Ok(address),
        status => Err(status),
    }
}

#[test]
fn a_pool_is_charged_for_what_it_reserves() {
    limited(&[1000], |cuda, account| {
        let address = alloc(cuda, 5 * MIB).expect("it fits");
        assert_eq!(account.claimed(0), held(0));
        assert!(account.claimed(0) > CONTEXT);
        assert_eq!(cuda.free_async(address, null_mut()), 0);
        assert_eq!(cuda.synchronize(), 0);
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
    });
}

#[test]
fn the_limit_holds_for_stream_ordered_memory() {
    limited(&[1000], |cuda, _| {
        let mut address = 42;
        let bytes = (800 * MIB) as usize;
        assert_eq!(
            cuda.alloc_async(&raw mut address, bytes, null_mut()),
            OUT_OF_MEMORY
        );
        assert_eq!(
            cuda.alloc_async_ptsz(&raw mut address, bytes, null_mut()),
            OUT_OF_MEMORY
        );
        assert_eq!(address, 42);
        while alloc(cuda, 30 * MIB).is_ok() {}
        assert!(held(0) <= 1000 * MIB);
        assert!(held(0) > 900 * MIB);
    });
}

#[test]
fn what_a_pool_keeps_is_trimmed_before_an_allocation_is_refused() {
    limited(&[1000], |cuda, account| {
        let pool = pool(cuda, u64::MAX);
        let address = alloc_from(cuda, pool, 500 * MIB).expect("it fits");
        assert_eq!(cuda.free_async(address, null_mut()), 0);
        assert_eq!(cuda.synchronize(), 0);
        assert!(account.claimed(0) >= CONTEXT + 500 * MIB);
        cuda.alloc(500 * MIB).expect("the pool gives way");
        assert_eq!(account.claimed(0), held(0));
    });
}

#[test]
fn a_trim_and_the_end_of_a_pool_give_back() {
    limited(&[1000], |cuda, account| {
        let pool = pool(cuda, u64::MAX);
        let address = alloc_from(cuda, pool, 100 * MIB).expect("it fits");
        assert_eq!(cuda.free_async(address, null_mut()), 0);
        assert!(account.claimed(0) > CONTEXT);
        assert_eq!(cuda.pool_trim(pool, 0), 0);
        assert_eq!(account.claimed(0), CONTEXT);
        let address = alloc_from(cuda, pool, 100 * MIB).expect("it fits");
        assert_eq!(cuda.free_async(address, null_mut()), 0);
        assert_eq!(cuda.pool_destroy(pool), 0);
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
    });
}

#[test]
fn stream_ordered_memory_can_be_freed_like_plain_memory() {
    limited(&[1000], |cuda, account| {
        let address = alloc(cuda, 5 * MIB).expect("it fits");
        assert_eq!(cuda.mem_free(address), 0);
        assert_eq!(cuda.synchronize(), 0);
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
    });
}

#[test]
fn a_pool_in_the_host_costs_nothing() {
    limited(&[1000], |cuda, account| {
        let mut pool = null_mut();
        assert_eq!(cuda.pool_create(&raw mut pool, &Properties::host()), 0);
        alloc_from(cuda, pool, 2000 * MIB).expect("the host has room");
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
    });
}

#[test]
fn a_pool_is_charged_to_the_card_that_it_is_on() {
    limited(&[1000, 1000], |cuda, account| {
        let mut pool = null_mut();
        assert_eq!(cuda.pool_create(&raw mut pool, &Properties::device(1)), 0);
        alloc_from(cuda, pool, 100 * MIB).expect("it fits");
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
        assert_eq!(account.claimed(1), held(1));
        assert!(account.claimed(1) >= 100 * MIB);
    });
}

#[test]
fn a_pool_that_was_asked_for_by_its_place_is_charged_there() {
    /// `CU_MEM_LOCATION_TYPE_DEVICE` and the second device; `CU_MEM_ALLOCATION_TYPE_PINNED`.
    const SECOND: [i32; 2] = [1, 1];
    const PINNED: u32 = 1;
    limited(&[1000, 1000], |cuda, account| {
        let (mut default, mut current) = (null_mut(), null_mut());
        assert_eq!(cuda.pool_default_at(&raw mut default, &SECOND, PINNED), 0);
        assert_eq!(cuda.pool_current_at(&raw mut current, &SECOND, PINNED), 0);
        for pool in [default, current] {
            alloc_from(cuda, pool, 100 * MIB).expect("it fits");
        }
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
        assert_eq!(account.claimed(1), held(1));
        assert!(account.claimed(1) >= 200 * MIB);
    });
}
