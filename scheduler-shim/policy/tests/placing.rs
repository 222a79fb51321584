//! The guarantees of a placement, by example and over random cards.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::collections::HashSet;

use apportion_abi::{Bytes, CardCapacity, CardUuid, GpuRequest, Holder, Share};
use apportion_policy::{CandidateCard, PlacementRefusal, place};
use proptest::prelude::*;

/// A card with `total` and `held` in MiB; its number is its UUID.
fn card(number: u8, total: u64, held: u64) -> CandidateCard {
    let holder = Holder {
        name: format!("holder-{number}"),
        bytes: Bytes::from_mib(held),
    };
    CandidateCard {
        uuid: CardUuid([number; 16]),
        capacity: CardCapacity {
            total: Bytes::from_mib(total),
            reserved: Bytes::ZERO,
        },
        holders: if held > 0 { vec![holder] } else { vec![] },
        unmanaged: Bytes::ZERO,
        is_healthy: true,
    }
}

fn memory(mib: u64, devices: u32) -> GpuRequest {
    GpuRequest {
        share: Share::Memory(Bytes::from_mib(mib)),
        devices,
    }
}

fn fraction(text: &str) -> GpuRequest {
    GpuRequest::parse(None, Some(text), None).unwrap()
}

/// The numbers of the chosen cards.
fn chosen(request: &GpuRequest, cards: &[CandidateCard]) -> Vec<u8> {
    place(request, cards)
        .unwrap()
        .asks
        .iter()
        .map(|ask| ask.card.0[0])
        .collect()
}

#[test]
fn the_smallest_hole_that_fits_is_taken() {
    let cards = [card(1, 1000, 0), card(2, 1000, 700), card(3, 1000, 800)];
    assert_eq!(chosen(&memory(300, 1), &cards), [2]);
    assert_eq!(chosen(&memory(150, 1), &cards), [3]);
    assert_eq!(
        chosen(&memory(301, 1), &cards),
        [2],
        "300 MiB in whole units"
    );
    assert_eq!(chosen(&memory(302, 1), &cards), [1]);
}

#[test]
fn several_devices_go_to_distinct_cards() {
    let cards = [card(1, 1000, 0), card(2, 1000, 700), card(3, 1000, 800)];
    assert_eq!(chosen(&memory(200, 3), &cards), [3, 2, 1]);
}

#[test]
fn a_whole_card_is_one_that_nobody_shares_and_the_smallest_such() {
    let cards = [card(1, 2000, 0), card(2, 500, 1), card(3, 1000, 0)];
    assert_eq!(
        chosen(
            &GpuRequest {
                share: Share::Whole,
                devices: 1
            },
            &cards
        ),
        [3]
    );
}

#[test]
fn a_fraction_is_of_the_card_that_it_goes_to() {
    let cards = [card(1, 2000, 0), card(2, 1000, 501)];
    assert_eq!(chosen(&fraction("0.5"), &cards), [1]);
    assert_eq!(chosen(&fraction("0.4"), &cards), [2]);
}

#[test]
fn refuses_more_cards_than_are_healthy() {
    let mut cards = [card(1, 1000, 0), card(2, 1000, 0)];
    cards[1].is_healthy = false;
    let refusal = place(&memory(2, 2), &cards).unwrap_err();
    assert_eq!(
        refusal,
        PlacementRefusal::TooFewCards {
            asked: 2,
            healthy: 1
        }
    );
    assert!(!refusal.waiting_helps());
}

#[test]
fn a_share_of_less_than_two_mib_is_none() {
    let cards = [card(1, 1000, 0)];
    let refusal = place(&fraction("0.0019"), &cards).unwrap_err();
    assert!(!refusal.waiting_helps());
    assert!(refusal.to_string().contains("less than 2 MiB"), "{refusal}");
    assert!(place(&fraction("0.002"), &cards).is_ok());
}

#[test]
fn the_refusal_names_the_card_that_comes_closest_and_can_still_come() {
    let cards = [card(1, 100, 0), card(2, 1000, 900), card(3, 1000, 950)];
    let refusal = place(&memory(110, 1), &cards).unwrap_err();
    assert!(refusal.waiting_helps());
    assert!(
        refusal
            .to_string()
            .starts_with("asked for 110 MiB on GPU-02020202"),
        "{refusal}"
    );
}

#[test]
fn a_limit_above_every_card_says_that_waiting_does_not_help() {
    let refusal = place(&memory(5000, 1), &[card(1, 1000, 0), card(2, 2000, 0)]).unwrap_err();
    assert!(
        refusal.to_string().ends_with("waiting does not help"),
        "{refusal}"
    );
}

prop_compose! {
    fn any_cards()(cards in prop::collection::vec((1u64..100, 0u64..100, any::<bool>()), 0..8))
        -> Vec<CandidateCard> {
        let cards = cards.into_iter().enumerate();
        cards.map(|(number, (total, held, is_healthy))| CandidateCard {
            is_healthy,
            ..card(u8::try_from(number).unwrap(), total, held.min(total))
        }).collect()
    }
}

/// What is free on a card, in MiB.
fn free(card: &CandidateCard) -> u64 {
    let held: Bytes = card.holders.iter().map(|holder| holder.bytes).sum();
    card.capacity.allocatable().minus(held).as_mib()
}

proptest! {
    #[test]
    fn a_placement_fits_and_no_better_one_was_passed_over(
        cards in any_cards(), mib in 1u64..100, devices in 1u32..4
    ) {
        // A share is a multiple of 2 MiB, at least one.
        let least = (mib / 2 * 2).max(2);
        let able: Vec<&CandidateCard> = cards.iter().filter(|c| c.is_healthy && free(c) >= least && mib >= 2).collect();
        match place(&memory(mib, devices), &cards) {
            Ok(placement) => {
                let taken: HashSet<_> = placement.asks.iter().map(|ask| ask.card).collect();
                prop_assert_eq!(taken.len(), devices as usize);
                let (used, passed): (Vec<&CandidateCard>, Vec<&CandidateCard>) =
                    able.into_iter().partition(|c| taken.contains(&c.uuid));
                prop_assert_eq!(used.len(), taken.len());
                let largest = used.iter().map(|c| free(c)).max();
                prop_assert!(passed.iter().all(|c| Some(free(c)) >= largest));
            }
            Err(_) => prop_assert!(able.len() < devices as usize),
        }
    }

    #[test]
    fn the_order_of_the_cards_changes_nothing(
        (cards, shuffled) in any_cards().prop_flat_map(|c| (Just(c.clone()), Just(c).prop_shuffle())),
        mib in 1u64..100, devices in 1u32..4
    ) {
        prop_assert_eq!(place(&memory(mib, devices), &cards), place(&memory(mib, devices), &shuffled));
    }
}
