//! Stream-ordered memory: a pool costs what it reserves.

use std::ptr::null_mut;
use std::thread;

use crate::cuda::{LoadedCuda, OUT_OF_MEMORY, PinnedProperties, Pointer};
use crate::stage::{CONTEXT, MIB, held, limited};

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: u32 = 4;

fn alloc(cuda: &LoadedCuda, bytes: u64) -> Result<u64, i32> {
    let mut address = 0;
    match cuda.alloc_async(&raw mut address, bytes as usize, null_mut()) {
        0 => Ok(address),
        status => Err(status),
    }
}

fn pool(cuda: &LoadedCuda, keep: u64) -> Pointer {
    let (mut pool, mut keep) = (null_mut(), keep);
    assert_eq!(
        cuda.pool_create(&raw mut pool, &PinnedProperties::device(0)),
        0
    );
    assert_eq!(cuda.pool_set(pool, RELEASE_THRESHOLD, &raw mut keep), 0);
    pool
}

fn alloc_from(cuda: &LoadedCuda, pool: Pointer, bytes: u64) -> Result<u64, i32> {
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
fn a_destroyed_pool_is_charged_until_its_last_allocation_is_freed() {
    limited(&[1000], |cuda, account| {
        let pool = pool(cuda, u64::MAX);
        let first = alloc_from(cuda, pool, 300 * MIB).expect("it fits");
        let last = alloc_from(cuda, pool, 100 * MIB).expect("it fits");
        assert_eq!(cuda.pool_destroy(pool), 0);
        assert!(held(0) >= CONTEXT + 400 * MIB, "the driver keeps it");
        assert_eq!(account.claimed(0), held(0));
        assert_eq!(cuda.alloc(300 * MIB), Err(OUT_OF_MEMORY));
        assert_eq!(cuda.free_async(first, null_mut()), 0);
        assert_eq!(account.claimed(0), held(0));
        assert_eq!(cuda.mem_free(last), 0);
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
        assert_ne!(cuda.mem_free(last), 0);
        cuda.alloc(600 * MIB).expect("there is room again");
    });
}

#[test]
fn a_pool_made_after_one_that_was_destroyed_is_charged_by_itself() {
    limited(&[1000], |cuda, account| {
        let first = pool(cuda, u64::MAX);
        let kept = alloc_from(cuda, first, 100 * MIB).expect("it fits");
        assert_eq!(cuda.pool_destroy(first), 0);
        let second = pool(cuda, u64::MAX);
        let other = alloc_from(cuda, second, 100 * MIB).expect("it fits");
        assert_eq!(account.claimed(0), held(0));
        assert_eq!(cuda.free_async(kept, null_mut()), 0);
        assert_eq!(account.claimed(0), held(0));
        assert_eq!(cuda.free_async(other, null_mut()), 0);
        assert_eq!(cuda.pool_destroy(second), 0);
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
    });
}

#[test]
fn pools_that_are_destroyed_at_once_by_many_threads_leave_nothing() {
    limited(&[2000], |cuda, account| {
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut context = null_mut();
                    assert_eq!(cuda.primary_retain(&raw mut context, 0), 0);
                    assert_eq!(cuda.set_current(context), 0);
                    for _ in 0..50 {
                        let pool = pool(cuda, u64::MAX);
                        let address = alloc_from(cuda, pool, MIB);
                        assert_eq!(cuda.pool_destroy(pool), 0);
                        if let Ok(address) = address {
                            assert_eq!(cuda.free_async(address, null_mut()), 0);
                        }
                    }
                    assert_eq!(cuda.primary_release(0), 0);
                });
            }
        });
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
        assert_eq!(
            cuda.pool_create(&raw mut pool, &PinnedProperties::host()),
            0
        );
        alloc_from(cuda, pool, 2000 * MIB).expect("the host has room");
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
    });
}

#[test]
fn a_pool_is_charged_to_the_card_that_it_is_on() {
    limited(&[1000, 1000], |cuda, account| {
        let mut pool = null_mut();
        assert_eq!(
            cuda.pool_create(&raw mut pool, &PinnedProperties::device(1)),
            0
        );
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
