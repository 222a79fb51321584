//! Contexts: what they cost, and what ends with them.

use std::ptr::null_mut;

use apportion_abi::Bytes;

use crate::cuda::OUT_OF_MEMORY;
use crate::stage::{Account, CONTEXT, FURTHER_CONTEXT, MIB, held, limited};

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

/// Another thread goes on in the context while one of its uses is given back.
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

/// What an agent writes that has measured it.
fn knows_further_contexts(account: &Account) {
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
