//! Plain, pitched and managed memory under a limit.

use std::process::Command;
use std::ptr::null_mut;

use crate::cuda::{ArrayShape, OUT_OF_MEMORY};
use crate::harmless::compile;
use crate::stage::{CONTEXT, MIB, held, limited};

#[test]
fn an_allocation_above_the_limit_is_refused_and_writes_nothing() {
    limited(&[2000], |cuda, _| {
        let mut address = 42;
        let bytes = (2000 * MIB - CONTEXT + 1) as usize;
        assert_eq!(cuda.mem_alloc(&raw mut address, bytes), OUT_OF_MEMORY);
        assert_eq!(address, 42);
        assert_eq!(cuda.mem_alloc(&raw mut address, bytes - 1), 0);
    });
}

#[test]
fn freeing_makes_room_again() {
    limited(&[1000], |cuda, account| {
        for _ in 0..100 {
            let address = cuda.alloc(600 * MIB).expect("it fits");
            assert_eq!(cuda.alloc(600 * MIB), Err(OUT_OF_MEMORY));
            assert_eq!(cuda.mem_free(address), 0);
        }
        assert_eq!(account.claimed(0), CONTEXT);
    });
}

#[test]
fn many_small_allocations_cost_what_the_driver_takes() {
    limited(&[1000], |cuda, account| {
        let small: Vec<u64> = (0..3000)
            .map(|n| cuda.alloc(1000 + n * 7).expect("they fit"))
            .collect();
        assert_eq!(account.claimed(0), held(0));
        for address in small.iter().step_by(2) {
            assert_eq!(cuda.mem_free(*address), 0);
        }
        assert_eq!(account.claimed(0), held(0));
        for address in small.iter().skip(1).step_by(2) {
            assert_eq!(cuda.mem_free(*address), 0);
        }
        assert_eq!(account.claimed(0), CONTEXT);
        assert_eq!(held(0), CONTEXT);
    });
}

#[test]
fn the_limit_holds_to_the_last_small_allocation() {
    limited(&[500], |cuda, account| {
        let mut count = 0;
        while cuda.alloc(700_000).is_ok() {
            count += 1;
        }
        assert!(count > 100, "only {count} fitted");
        assert!(held(0) <= 500 * MIB);
        assert!(account.usage.usage().used(0).denied >= 1);
    });
}

#[test]
fn a_failure_of_the_driver_leaves_the_account_as_it_was() {
    crate::stage::on(&[1000], &[5000], |cuda, account| {
        assert_eq!(cuda.alloc(2000 * MIB), Err(OUT_OF_MEMORY));
        assert_eq!(account.claimed(0), CONTEXT);
        assert_eq!(account.usage.usage().used(0).denied, 0);
    });
}

#[test]
fn nonsense_is_answered_by_the_driver() {
    limited(&[1000], |cuda, account| {
        assert_eq!(cuda.mem_alloc(null_mut(), 5), 1);
        let mut address = 0;
        assert_eq!(cuda.mem_alloc(&raw mut address, 0), 1);
        assert_eq!(cuda.mem_free(0xdead_0000), 1);
        assert_eq!(account.claimed(0), CONTEXT);
    });
}

#[test]
fn pitched_managed_and_32_bit_memory_is_counted() {
    limited(&[1000], |cuda, account| {
        let (mut pitched, mut pitch, mut managed, mut low) = (0, 0, 0, 0);
        let rows = cuda.mem_alloc_pitch(&raw mut pitched, &raw mut pitch, 1_000_000, 100, 4);
        assert_eq!(rows, 0);
        assert!(pitch >= 1_000_000);
        assert_eq!(cuda.mem_alloc_managed(&raw mut managed, 100 << 20, 1), 0);
        // The simulated driver has addresses of 32 bits where the kernel gives them out.
        let has_low = cfg!(target_arch = "x86_64");
        if has_low {
            assert_eq!(cuda.mem_alloc_v1(&raw mut low, 10 << 20), 0);
        }
        assert_eq!(account.claimed(0), held(0));
        let mut too_much = 7;
        let status = cuda.mem_alloc_managed(&raw mut too_much, 900 << 20, 1);
        assert_eq!((status, too_much), (OUT_OF_MEMORY, 7));
        assert_eq!(cuda.mem_free(pitched), 0);
        assert_eq!(cuda.mem_free(managed), 0);
        if has_low {
            assert_eq!(cuda.mem_free_v1(low), 0);
        }
        assert_eq!(account.claimed(0), CONTEXT);
    });
}

fn shape(width: usize, height: usize) -> ArrayShape {
    ArrayShape {
        width,
        height,
        format: 0x20,
        channels: 4,
    }
}

#[test]
fn arrays_are_counted() {
    limited(&[1000], |cuda, account| {
        let (mut array, mut too_large) = (null_mut(), null_mut());
        assert_eq!(cuda.array_create(&raw mut array, &shape(4096, 1024)), 0);
        assert!(account.claimed(0) >= CONTEXT + 64 * MIB);
        let status = cuda.array_create(&raw mut too_large, &shape(65536, 1024));
        assert_eq!((status, too_large.is_null()), (OUT_OF_MEMORY, true));
        assert_eq!(cuda.array_destroy(array), 0);
        assert_eq!(account.claimed(0), CONTEXT);
    });
}

#[test]
fn arrays_of_all_sizes_never_hold_more_than_they_are_charged() {
    limited(&[1000], |cuda, account| {
        let mut live = Vec::new();
        for step in 0..400 {
            let mut array = null_mut();
            let size = shape(1 + step * 37 % 700, 1 + step * 11 % 200);
            if cuda.array_create(&raw mut array, &size) == 0 {
                live.push(array);
            }
            if step % 3 == 0 {
                assert_eq!(
                    cuda.array_destroy(live.swap_remove(step * 7 % live.len())),
                    0
                );
            }
        }
        assert!(
            held(0) <= account.claimed(0),
            "{} held, {}",
            held(0),
            account.claimed(0)
        );
        assert!(account.claimed(0) <= 1000 * MIB);
        live.into_iter()
            .for_each(|array| assert_eq!(cuda.array_destroy(array), 0));
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
    });
}

/// A process that finds no free descriptor for the account tries again.
#[test]
fn a_process_that_has_no_descriptor_left_is_limited_all_the_same() {
    limited(&[2000], |_, _| {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let source = r#"
            #include <dlfcn.h>
            #include <sys/resource.h>
            int main(void) {
                void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
                unsigned long address;
                struct rlimit limit, none;
                getrlimit(RLIMIT_NOFILE, &limit);
                none = limit;
                none.rlim_cur = 0;
                int (*alloc)(void *, long) = (int (*)(void *, long))dlsym(driver, "cuMemAlloc_v2");
                setrlimit(RLIMIT_NOFILE, &none);
                if (alloc(&address, 1) == 0) return 1;
                setrlimit(RLIMIT_NOFILE, &limit);
                if (((int (*)(unsigned))dlsym(driver, "cuInit"))(0)) return 2;
                if (((int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0)) return 3;
                if (((int (*)(void *))dlsym(driver, "cuCtxSetCurrent"))(context)) return 4;
                return alloc(&address, 3000l << 20) == 2 ? 0 : 5;
            }"#;
        let program = compile(folder.path(), "poor", source, &[]);
        let status = Command::new(program).status().expect("it was just built");
        assert_eq!(status.code(), Some(0));
    });
}
