//! Contexts: what they cost, and what ends with them.

use std::ptr::null_mut;

use apportion_abi::Bytes;

use crate::cuda::OUT_OF_MEMORY;
use crate::lookup::past_us;
use crate::stage::{AgentAccount, CONTEXT, FURTHER_CONTEXT, MIB, held, limited};

#[test]
fn a_retained_context_is_charged_once() {
    limited(&[1000], |cuda, account| {
        let mut context = null_mut();
        assert_eq!(cuda.primary_retain(&raw mut context, 0), 0);
        assert_eq!(account.claimed(0), CONTEXT);
        assert_eq!(cuda.primary_release(0), 0);
        assert_eq!(account.claimed(0), CONTEXT);
        assert_eq!(account.usage.usage().used(0).reserve.0, CONTEXT);
        assert_eq!(cuda.primary_release(0), 0);
        assert_eq!(account.claimed(0), 0);
        assert_eq!(account.usage.usage().used(0).reserve.0, 0);
        assert_eq!(held(0), 0);
    });
}

/// The driver gives all threads one context. The share has room for one, not for two.
#[test]
fn threads_that_retain_a_context_at_once_are_charged_for_one() {
    const THREADS: usize = 4;
    limited(&[600], |cuda, account| {
        assert_eq!(cuda.primary_release(0), 0);
        for round in 0..20 {
            let start = std::sync::Barrier::new(THREADS);
            let retained: Vec<(i32, usize)> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS)
                    .map(|_| {
                        scope.spawn(|| {
                            start.wait();
                            let mut context = null_mut();
                            let status = cuda.primary_retain(&raw mut context, 0);
                            (status, context as usize)
                        })
                    })
                    .collect();
                let ends = threads.into_iter().map(|thread| thread.join());
                ends.map(|end| end.expect("no thread panics")).collect()
            });
            let (_, context) = retained[0];
            assert!(context != 0, "round {round}: {retained:?}");
            assert_eq!(retained, [(0, context); THREADS], "round {round}");
            assert_eq!(account.claimed(0), CONTEXT, "round {round}");
            (0..THREADS).for_each(|_| assert_eq!(cuda.primary_release(0), 0));
            assert_eq!((account.claimed(0), held(0)), (0, 0), "round {round}");
        }
    });
}

/// Retains the primary context by the driver's own function, which no hook sees, as a private table of the driver
/// would.
fn retain_past_us() -> *mut std::ffi::c_void {
    type Retain = unsafe extern "C" fn(*mut *mut std::ffi::c_void, i32) -> i32;
    let real = past_us(c"cuDevicePrimaryCtxRetain");
    // SAFETY: the address is that of the driver's function.
    let real: Retain = unsafe { std::mem::transmute(real) };
    let mut context = null_mut();
    // SAFETY: the pointer is to a local variable.
    assert_eq!(unsafe { real(&raw mut context, 0) }, 0);
    context
}

#[test]
fn a_reset_ends_a_primary_context_that_nobody_saw_being_retained() {
    limited(&[2000], |cuda, account| {
        assert_eq!(cuda.primary_release(0), 0);
        for _ in 0..3 {
            assert_eq!(cuda.set_current(retain_past_us()), 0);
            cuda.alloc(512 * MIB).expect("it fits");
            assert_eq!(account.claimed(0), CONTEXT + 512 * MIB);
            assert_eq!(cuda.primary_reset(0), 0);
            assert_eq!((account.claimed(0), held(0)), (0, 0));
        }
        let mut context = null_mut();
        assert_eq!(cuda.primary_retain(&raw mut context, 0), 0);
        assert_eq!(cuda.set_current(context), 0);
        assert_eq!(cuda.info(), (2000 * MIB - CONTEXT, 2000 * MIB));
    });
}

/// The primary context is not recorded, and the reset does not mistake another context for it.
#[test]
fn a_reset_leaves_the_contexts_that_were_created() {
    limited(&[2000], |cuda, account| {
        assert_eq!(cuda.primary_release(0), 0);
        let mut created = null_mut();
        assert_eq!(cuda.create_context(&raw mut created, 0, 0), 0);
        let address = cuda.alloc(512 * MIB).expect("it fits");
        let before = account.claimed(0);
        let _ = retain_past_us();
        assert_eq!(cuda.primary_reset(0), 0);
        assert_eq!(account.claimed(0), before);
        assert_eq!(cuda.mem_free(address), 0);
        assert_eq!(account.claimed(0), before - 512 * MIB);
        assert_eq!(cuda.destroy_context(created), 0);
        assert_eq!((account.claimed(0), held(0)), (0, 0));
    });
}

/// Another thread continues in the context while one of its uses ends.
#[test]
fn a_use_that_ends_takes_nothing_from_those_who_go_on() {
    limited(&[2000], |cuda, account| {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut context = null_mut();
                assert_eq!(cuda.primary_retain(&raw mut context, 0), 0);
                assert_eq!(cuda.set_current(context), 0);
                for _ in 0..1000 {
                    let address = cuda.alloc(MIB).expect("it fits");
                    assert_eq!(cuda.mem_free(address), 0);
                }
            });
            while !worker.is_finished() {
                let mut context = null_mut();
                assert_eq!(cuda.primary_retain(&raw mut context, 0), 0);
                assert_eq!(cuda.primary_release(0), 0);
            }
        });
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
    });
}

#[test]
fn all_that_was_in_a_context_ends_with_it() {
    limited(&[2000], |cuda, account| {
        let mut context = null_mut();
        assert_eq!(cuda.create_context(&raw mut context, 0, 0), 0);
        for bytes in [100, 70_000, 3 * MIB] {
            cuda.alloc(bytes).expect("it fits");
        }
        assert!(account.claimed(0) > 2 * CONTEXT);
        assert_eq!(cuda.destroy_context(context), 0);
        assert_eq!(account.claimed(0), CONTEXT);
    });
}

/// Writes what an agent writes that has measured further contexts.
fn knows_further_contexts(account: &AgentAccount) {
    let known = Some(Bytes(FURTHER_CONTEXT));
    let cards = account.limits.cards().iter();
    cards.for_each(|card| card.set_further_reserve(known));
}

#[test]
fn a_further_context_is_charged_what_it_costs() {
    limited(&[2000], |cuda, account| {
        knows_further_contexts(account);
        let (mut second, mut third) = (null_mut(), null_mut());
        assert_eq!(cuda.create_context(&raw mut second, 0, 0), 0);
        assert_eq!(cuda.create_context(&raw mut third, 0, 0), 0);
        let all = CONTEXT + 2 * FURTHER_CONTEXT;
        assert_eq!((account.claimed(0), held(0)), (all, all));
        assert_eq!(account.usage.usage().used(0).reserve.0, all);
        assert_eq!(cuda.destroy_context(second), 0);
        assert_eq!(cuda.destroy_context(third), 0);
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
    });
}

#[test]
fn the_last_context_on_a_card_is_charged_like_a_first() {
    limited(&[2000], |cuda, account| {
        knows_further_contexts(account);
        let mut second = null_mut();
        assert_eq!(cuda.create_context(&raw mut second, 0, 0), 0);
        assert_eq!(cuda.primary_release(0), 0);
        assert_eq!(account.claimed(0), CONTEXT);
        assert!(account.claimed(0) >= held(0));
        assert_eq!(cuda.destroy_context(second), 0);
        assert_eq!((account.claimed(0), held(0)), (0, 0));
        let mut context = null_mut();
        assert_eq!(cuda.primary_retain(&raw mut context, 0), 0);
        assert_eq!((account.claimed(0), held(0)), (CONTEXT, CONTEXT));
    });
}

#[test]
fn a_reset_gives_everything_back() {
    limited(&[2000], |cuda, account| {
        cuda.alloc(1000 * MIB).expect("it fits");
        assert_eq!(cuda.primary_reset(0), 0);
        assert_eq!((account.claimed(0), held(0)), (0, 0));
    });
}

#[test]
fn a_context_that_does_not_fit_is_refused() {
    limited(&[500], |cuda, account| {
        let mut context = null_mut();
        let status = cuda.create_context(&raw mut context, 0, 0);
        assert_eq!((status, context.is_null()), (OUT_OF_MEMORY, true));
        assert_eq!(account.claimed(0), CONTEXT);
    });
}

#[test]
fn memory_is_charged_to_the_card_of_its_context() {
    limited(&[1000, 3000], |cuda, account| {
        let mut context = null_mut();
        assert_eq!(cuda.primary_retain(&raw mut context, 1), 0);
        assert_eq!(cuda.set_current(context), 0);
        let address = cuda.alloc(2000 * MIB).expect("it fits on the second card");
        assert_eq!(account.claimed(0), CONTEXT);
        assert_eq!(account.claimed(1), CONTEXT + 2000 * MIB);
        assert_eq!(cuda.primary_retain(&raw mut context, 0), 0);
        assert_eq!(cuda.set_current(context), 0);
        assert_eq!(cuda.mem_free(address), 0);
        assert_eq!(account.claimed(1), CONTEXT);
    });
}

#[test]
fn a_card_that_the_account_does_not_name_is_left_alone() {
    limited(&[1000], |cuda, account| {
        let mut context = null_mut();
        assert_eq!(cuda.primary_retain(&raw mut context, 1), 0);
        assert_eq!(cuda.set_current(context), 0);
        cuda.alloc(4000 * MIB)
            .expect("there is no limit on this card");
        assert_eq!(cuda.info().1, 8192 * MIB);
        assert_eq!(account.claimed(0), CONTEXT);
    });
}
