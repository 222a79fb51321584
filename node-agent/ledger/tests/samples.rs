//! What a sample does to the ledger: overhead, unmanaged memory, offenders.

use std::time::Duration;

use apportion_abi::{BurstTerms, Bytes, CardCapacity, CardRequest, CardUuid};
use apportion_ledger::{
    AccountSample, AllocationId, AllocationOwner, AllocationRefusal, CardSample, ClaimWindow,
    EpochMillis, Ledger, LedgerEffect, LedgerEvent, LimitEnforcement, NodeSample, NoticeKind,
    OffenderPolicy, PlacementProposal, ProcessId, ProcessSample,
};

const CARD: CardUuid = CardUuid([1; 16]);
const OTHER: CardUuid = CardUuid([2; 16]);
const PROGRAM: ProcessId = ProcessId { pid: 10, start: 1 };

/// A node with two cards of 1000 bytes and one allocation of 500 on the first.
fn node(policy: OffenderPolicy) -> (Ledger, AllocationId) {
    let mut ledger = Ledger::new(1, policy);
    let capacity = CardCapacity {
        total: Bytes(1000),
        reserved: Bytes(0),
    };
    for card in [CARD, OTHER] {
        let _ = ledger.apply(EpochMillis(0), LedgerEvent::CardFound { card, capacity });
    }
    let id = allocate(&mut ledger, "train", 500).expect("an empty card has room");
    (ledger, id)
}

fn allocate(
    ledger: &mut Ledger,
    name: &str,
    bytes: u64,
) -> Result<AllocationId, AllocationRefusal> {
    let asks = vec![CardRequest {
        card: CARD,
        bytes: Bytes(bytes),
    }];
    let ttl = Duration::from_secs(3600);
    let proposal = PlacementProposal {
        key: name.into(),
        name: name.into(),
        asks,
        ceilings: Vec::new(),
        terms: BurstTerms::default(),
        ttl,
        idle_after: None,
    };
    answer(ledger.apply(EpochMillis(0), LedgerEvent::Allocate(proposal)))
}

fn answer(effects: Vec<LedgerEffect>) -> Result<AllocationId, AllocationRefusal> {
    let mut answers = effects.into_iter().filter_map(|effect| match effect {
        LedgerEffect::Answer(answer) => Some(answer),
        _ => None,
    });
    answers.next_back().expect("requests are answered")
}

fn resize(
    ledger: &mut Ledger,
    id: &AllocationId,
    bytes: u64,
) -> Result<AllocationId, AllocationRefusal> {
    let asks = vec![CardRequest {
        card: CARD,
        bytes: Bytes(bytes),
    }];
    answer(ledger.apply(
        EpochMillis(0),
        LedgerEvent::Resize {
            id: id.clone(),
            asks,
            ceilings: Vec::new(),
        },
    ))
}

/// The program of the allocation on a card, with its use and its claim.
fn uses(id: &AllocationId, nvml: u64, claimed: Option<u64>) -> ProcessSample {
    ProcessSample {
        process: PROGRAM,
        owner: Some(id.clone()),
        nvml: Some(Bytes(nvml)),
        claimed: claimed.map(|claim| ClaimWindow {
            lowest: Bytes(claim),
            highest: Bytes(claim),
        }),
        has_ended: false,
    }
}

fn sample(
    ledger: &Ledger,
    id: &AllocationId,
    card: CardUuid,
    process: ProcessSample,
) -> LedgerEvent {
    let claimed = process
        .claimed
        .map_or(Bytes::ZERO, |claimed| claimed.highest);
    let account = AccountSample {
        id: id.clone(),
        is_sound: true,
        claimed: vec![(card, claimed)],
    };
    let used = process.nvml.unwrap_or_default();
    let seen = CardSample {
        card,
        used,
        unlisted: Bytes::ZERO,
        leeway: Bytes::ZERO,
        processes: vec![process],
    };
    LedgerEvent::Sampled(NodeSample {
        generation: ledger.generation(),
        cards: vec![seen],
        accounts: vec![account],
    })
}

fn see(ledger: &mut Ledger, id: &AllocationId, process: ProcessSample) -> Vec<LedgerEffect> {
    let event = sample(ledger, id, CARD, process);
    ledger.apply(EpochMillis(0), event)
}

fn notices(effects: &[LedgerEffect]) -> Vec<NoticeKind> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            LedgerEffect::Notice(notice) => Some(notice.kind),
            _ => None,
        })
        .collect()
}

fn enforcement(ledger: &Ledger, id: &AllocationId) -> LimitEnforcement {
    let grant = ledger
        .allocation(id)
        .and_then(|allocation| allocation.grant(CARD));
    grant.expect("the allocation has the card").enforcement
}

#[test]
fn what_the_driver_takes_beyond_the_claims_becomes_overhead_and_goes_with_the_process() {
    let (mut ledger, id) = node(OffenderPolicy::Observe);
    let set = |overhead| LedgerEffect::SetOverhead {
        id: id.clone(),
        card: CARD,
        overhead,
    };
    assert_eq!(
        see(&mut ledger, &id, uses(&id, 130, Some(100))),
        [set(Bytes(30))]
    );
    assert_eq!(see(&mut ledger, &id, uses(&id, 130, Some(100))), []);
    assert_eq!(enforcement(&ledger, &id), LimitEnforcement::Attached);
    let account = AccountSample {
        id: id.clone(),
        is_sound: true,
        claimed: Vec::new(),
    };
    let seen = CardSample {
        card: CARD,
        used: Bytes(0),
        unlisted: Bytes::ZERO,
        leeway: Bytes::ZERO,
        processes: Vec::new(),
    };
    let quiet = NodeSample {
        generation: 9,
        cards: vec![seen],
        accounts: vec![account],
    };
    assert_eq!(
        ledger.apply(EpochMillis(0), LedgerEvent::Sampled(quiet)),
        [set(Bytes(0))]
    );
    assert_eq!(enforcement(&ledger, &id), LimitEnforcement::Pending);
}

#[test]
fn a_strangers_memory_cannot_be_given() {
    let (mut ledger, id) = node(OffenderPolicy::Observe);
    let stranger = ProcessSample {
        owner: None,
        ..uses(&id, 200, None)
    };
    assert_eq!(see(&mut ledger, &id, stranger), []);
    assert_eq!(ledger.free(CARD), Bytes(300));
    let Err(AllocationRefusal::Shortfall(shortfall)) = allocate(&mut ledger, "late", 301) else {
        panic!("301 of 300 free bytes were given")
    };
    assert_eq!(
        (shortfall.free, shortfall.unmanaged),
        (Bytes(300), Bytes(200))
    );
    assert!(allocate(&mut ledger, "fits", 300).is_ok());
}

/// For example a video encoder, which uses the card through an interface that charges nothing.
#[test]
fn a_process_without_a_claim_is_overhead_up_to_the_limit_and_an_offender_in_the_sample_above_it() {
    for policy in [OffenderPolicy::Observe, OffenderPolicy::Kill] {
        let (mut ledger, id) = node(policy);
        for used in [1, 100, 499, 500] {
            assert_eq!(
                see(&mut ledger, &id, uses(&id, used, None)),
                [LedgerEffect::SetOverhead {
                    id: id.clone(),
                    card: CARD,
                    overhead: Bytes(used),
                }]
            );
            for _ in 0..5 {
                assert_eq!(see(&mut ledger, &id, uses(&id, used, None)), []);
            }
            assert_eq!(enforcement(&ledger, &id), LimitEnforcement::Attached);
        }
        let told = notices(&see(&mut ledger, &id, uses(&id, 501, None)));
        assert!(told.contains(&NoticeKind::Bypassed), "{told:?}");
        assert_eq!(enforcement(&ledger, &id), LimitEnforcement::Bypassed);
        let _ = see(&mut ledger, &id, uses(&id, 400, None));
        assert_eq!(enforcement(&ledger, &id), LimitEnforcement::Attached);
    }
}

#[test]
fn what_claims_and_what_does_not_count_together() {
    let (mut ledger, id) = node(OffenderPolicy::Observe);
    let encoder = ProcessId { pid: 11, start: 1 };
    let both = |ledger: &mut Ledger, claimed: u64, unclaimed: u64| {
        let mut event = sample(ledger, &id, CARD, uses(&id, claimed, Some(claimed)));
        let LedgerEvent::Sampled(seen) = &mut event else {
            panic!("it is a sample")
        };
        seen.cards[0].processes.push(ProcessSample {
            process: encoder,
            ..uses(&id, unclaimed, None)
        });
        seen.cards[0].used = Bytes(claimed + unclaimed);
        notices(&ledger.apply(EpochMillis(0), event))
    };
    assert_eq!(both(&mut ledger, 300, 200), []);
    assert_eq!(enforcement(&ledger, &id), LimitEnforcement::Attached);
    let told = both(&mut ledger, 300, 201);
    assert_eq!(told, [NoticeKind::Overlimit, NoticeKind::Bypassed]);
    assert_eq!(enforcement(&ledger, &id), LimitEnforcement::Bypassed);
}

#[test]
fn a_process_that_claims_nothing_and_whose_use_nobody_knows_bypasses_at_once() {
    let (mut ledger, id) = node(OffenderPolicy::Observe);
    let unknown = ProcessSample {
        nvml: None,
        ..uses(&id, 0, None)
    };
    assert_eq!(
        notices(&see(&mut ledger, &id, unknown)),
        [NoticeKind::Bypassed]
    );
    let idle = uses(&id, 0, None);
    assert_eq!(notices(&see(&mut ledger, &id, idle)), []);
    assert_eq!(enforcement(&ledger, &id), LimitEnforcement::Attached);
}

#[test]
fn a_process_without_a_claim_above_the_limit_is_told_once_and_killed_where_that_is_the_policy() {
    // The allocation belongs to no pod, so there is nothing to evict.
    for policy in [
        OffenderPolicy::Observe,
        OffenderPolicy::Kill,
        OffenderPolicy::Evict,
    ] {
        let (mut ledger, id) = node(policy);
        let mut all = Vec::new();
        for _ in 0..5 {
            all.extend(see(&mut ledger, &id, uses(&id, 501, None)));
        }
        assert_eq!(enforcement(&ledger, &id), LimitEnforcement::Bypassed);
        let kills = all
            .iter()
            .filter(|effect| **effect == LedgerEffect::Kill(PROGRAM))
            .count();
        match policy {
            OffenderPolicy::Observe => {
                assert_eq!(
                    (notices(&all), kills),
                    (vec![NoticeKind::Overlimit, NoticeKind::Bypassed], 0)
                );
            }
            OffenderPolicy::Kill | OffenderPolicy::Evict => {
                let told = vec![
                    NoticeKind::Overlimit,
                    NoticeKind::Bypassed,
                    NoticeKind::Killed,
                ];
                assert_eq!((notices(&all), kills), (told, 1));
            }
        }
    }
}

#[test]
fn the_pod_of_an_offender_is_evicted_and_asked_for_again_only_much_later() {
    let (mut ledger, id) = node(OffenderPolicy::Evict);
    let owner = AllocationOwner::Pod("uid".into());
    let _ = ledger.apply(
        EpochMillis(0),
        LedgerEvent::Commit {
            id: id.clone(),
            owner,
        },
    );
    let mut told = Vec::new();
    for _ in 0..45 {
        let effects = see(&mut ledger, &id, uses(&id, 700, None));
        assert!(!effects.contains(&LedgerEffect::Kill(PROGRAM)));
        told.extend(notices(&effects));
    }
    let evictions = told.iter().filter(|kind| **kind == NoticeKind::Evicted);
    assert_eq!(evictions.count(), 2);
}

#[test]
fn use_above_the_limit_is_an_offence_and_cannot_be_given_to_others() {
    let (mut ledger, id) = node(OffenderPolicy::Observe);
    let effects = see(&mut ledger, &id, uses(&id, 700, Some(400)));
    assert_eq!(notices(&effects), [NoticeKind::Overlimit]);
    assert_eq!(enforcement(&ledger, &id), LimitEnforcement::Overlimit);
    assert_eq!(ledger.free(CARD), Bytes(300));
}

#[test]
fn use_that_stays_above_the_limit_is_told_once_and_ended_where_that_is_the_policy() {
    let (mut ledger, id) = node(OffenderPolicy::Kill);
    let mut all = Vec::new();
    for _ in 0..5 {
        all.extend(see(&mut ledger, &id, uses(&id, 700, Some(400))));
    }
    let told = [NoticeKind::Overlimit, NoticeKind::Killed];
    assert_eq!(notices(&all), told);
    assert!(all.contains(&LedgerEffect::Kill(PROGRAM)));
}

/// Several samples of these processes of an allocation, with a leeway of 60 bytes each.
fn watch(ledger: &mut Ledger, id: &AllocationId, processes: &[ProcessSample]) -> Vec<LedgerEffect> {
    let mut all = Vec::new();
    for _ in 0..5 {
        let LedgerEvent::Sampled(mut seen) = sample(ledger, id, CARD, processes[0].clone()) else {
            unreachable!("it is a sample");
        };
        let used = processes.iter().filter_map(|process| process.nvml);
        seen.cards[0].used = used.sum();
        seen.cards[0].leeway = Bytes(60);
        seen.cards[0].processes = processes.to_vec();
        all.extend(ledger.apply(EpochMillis(0), LedgerEvent::Sampled(seen)));
    }
    all.retain(|effect| !matches!(effect, LedgerEffect::SetOverhead { .. }));
    all
}

/// The same sample for another process.
fn other(pid: u32, process: ProcessSample) -> ProcessSample {
    let process_id = ProcessId { pid, start: 1 };
    ProcessSample {
        process: process_id,
        ..process
    }
}

#[test]
fn what_the_driver_takes_by_itself_of_a_full_limit_is_shown_and_no_offence() {
    for policy in [OffenderPolicy::Kill, OffenderPolicy::Evict] {
        let (mut ledger, id) = node(policy);
        assert_eq!(watch(&mut ledger, &id, &[uses(&id, 500, Some(500))]), []);
        assert_eq!(watch(&mut ledger, &id, &[uses(&id, 560, Some(500))]), []);
        assert_eq!(enforcement(&ledger, &id), LimitEnforcement::Overlimit);
        assert_eq!(ledger.free(CARD), Bytes(440), "nobody else gets it");
        let workers = [
            uses(&id, 310, Some(250)),
            other(11, uses(&id, 310, Some(250))),
        ];
        assert_eq!(watch(&mut ledger, &id, &workers), [], "each has its leeway");
    }
}

#[test]
fn more_than_a_driver_takes_by_itself_is_an_offence_of_who_took_most() {
    let (mut ledger, id) = node(OffenderPolicy::Kill);
    let processes = [
        uses(&id, 310, Some(250)),
        other(11, uses(&id, 350, Some(250))),
    ];
    let all = watch(&mut ledger, &id, &processes);
    assert_eq!(notices(&all), [NoticeKind::Overlimit, NoticeKind::Killed]);
    assert!(all.contains(&LedgerEffect::Kill(processes[1].process)));
}

#[test]
fn a_process_without_a_claim_has_no_leeway_and_is_not_blamed_for_that_of_others() {
    let (mut ledger, id) = node(OffenderPolicy::Kill);
    let honest = uses(&id, 490, Some(450));
    let encoder = other(11, uses(&id, 50, None));
    assert_eq!(watch(&mut ledger, &id, &[honest.clone(), encoder]), []);
    for claimed in [None, Some(0)] {
        let (mut ledger, id) = node(OffenderPolicy::Kill);
        let sly = other(11, uses(&id, 51, claimed));
        let all = watch(&mut ledger, &id, &[honest.clone(), sly.clone()]);
        assert!(
            all.contains(&LedgerEffect::Kill(sly.process)),
            "{claimed:?}"
        );
        assert!(!all.contains(&LedgerEffect::Kill(honest.process)));
    }
}

#[test]
fn what_is_forgiven_all_processes_is_never_more_than_the_limit() {
    let (mut ledger, id) = node(OffenderPolicy::Observe);
    let processes: Vec<_> = (11..28)
        .map(|pid| other(pid, uses(&id, 60, Some(1))))
        .collect();
    let all = watch(&mut ledger, &id, &processes[..16]);
    assert_eq!(notices(&all), []);
    let all = watch(&mut ledger, &id, &processes);
    assert_eq!(notices(&all), [NoticeKind::Overlimit]);
}

#[test]
fn memory_that_a_dead_process_keeps_is_no_offence_up_to_the_limit() {
    let dead = |id: &AllocationId, bytes| ProcessSample {
        has_ended: true,
        ..other(11, uses(id, bytes, Some(0)))
    };
    let (mut ledger, id) = node(OffenderPolicy::Evict);
    let heir = uses(&id, 500, Some(500));
    assert_eq!(watch(&mut ledger, &id, &[heir.clone(), dead(&id, 400)]), []);
    let all = watch(&mut ledger, &id, &[heir.clone(), dead(&id, 501)]);
    assert_eq!(notices(&all), [NoticeKind::Overlimit, NoticeKind::Killed]);
    assert!(
        all.contains(&LedgerEffect::Kill(heir.process)),
        "the dead cannot be ended"
    );
}

#[test]
fn a_claim_that_changes_while_nvml_is_asked_makes_no_offender() {
    let (mut ledger, id) = node(OffenderPolicy::Kill);
    let window = |lowest, highest| ClaimWindow {
        lowest: Bytes(lowest),
        highest: Bytes(highest),
    };
    let freeing = ProcessSample {
        claimed: Some(window(0, 440)),
        ..uses(&id, 470, Some(440))
    };
    let charging = ProcessSample {
        claimed: Some(window(60, 500)),
        ..other(11, uses(&id, 90, Some(60)))
    };
    assert_eq!(watch(&mut ledger, &id, &[freeing, charging]), []);
}

#[test]
fn a_namespace_has_a_policy_of_its_own() {
    for (name, expected) in [
        ("lenient/train", None),
        ("strict/train/main", Some(NoticeKind::Killed)),
        ("others/train", Some(NoticeKind::Evicted)),
    ] {
        let (mut ledger, id) = node(OffenderPolicy::Evict);
        let _ = ledger.apply(EpochMillis(0), LedgerEvent::Release { id });
        ledger.override_policy("lenient".into(), OffenderPolicy::Observe);
        ledger.override_policy("strict".into(), OffenderPolicy::Kill);
        let id = allocate(&mut ledger, name, 500).expect("the card is empty");
        let owner = AllocationOwner::Pod("uid".into());
        let commit = LedgerEvent::Commit {
            id: id.clone(),
            owner,
        };
        let _ = ledger.apply(EpochMillis(0), commit);
        let mut told = Vec::new();
        for _ in 0..5 {
            told.extend(notices(&see(&mut ledger, &id, uses(&id, 700, Some(400)))));
        }
        let acted = told
            .into_iter()
            .filter(|kind| *kind != NoticeKind::Overlimit);
        assert_eq!(
            acted.collect::<Vec<_>>(),
            Vec::from_iter(expected),
            "{name}"
        );
    }
}

#[test]
fn a_process_that_does_two_wrongs_is_ended_once() {
    let (mut ledger, id) = node(OffenderPolicy::Kill);
    let mut all = see(&mut ledger, &id, uses(&id, 100, None));
    for _ in 0..5 {
        all.extend(see(&mut ledger, &id, uses(&id, 700, None)));
    }
    let kills = all
        .iter()
        .filter(|e| **e == LedgerEffect::Kill(PROGRAM))
        .count();
    let mut told = notices(&all);
    told.sort_unstable();
    let mut expected = [
        NoticeKind::Bypassed,
        NoticeKind::Overlimit,
        NoticeKind::Killed,
    ];
    expected.sort_unstable();
    assert_eq!((told.as_slice(), kills), (expected.as_slice(), 1));
}

#[test]
fn what_was_used_when_an_agent_took_over_is_no_offence_and_more_is() {
    let (mut ledger, id) = node(OffenderPolicy::Kill);
    let allocation = ledger.allocation(&id).unwrap().clone();
    let _ = ledger.apply(EpochMillis(0), LedgerEvent::Adopted(allocation));
    for _ in 0..5 {
        let effects = see(&mut ledger, &id, uses(&id, 700, Some(700)));
        assert_eq!(notices(&effects), []);
    }
    let effects = see(&mut ledger, &id, uses(&id, 800, Some(700)));
    assert_eq!(notices(&effects), [NoticeKind::Overlimit]);
}

#[test]
fn a_limit_lowered_below_the_use_is_shown_and_never_punished() {
    let (mut ledger, id) = node(OffenderPolicy::Kill);
    let _ = see(&mut ledger, &id, uses(&id, 400, Some(400)));
    assert!(resize(&mut ledger, &id, 100).is_ok());
    assert_eq!(
        ledger.free(CARD),
        Bytes(500),
        "until a sample shows what is used"
    );
    for _ in 0..5 {
        let effects = see(&mut ledger, &id, uses(&id, 400, Some(400)));
        assert_eq!(notices(&effects), []);
    }
    assert_eq!(enforcement(&ledger, &id), LimitEnforcement::Overlimit);
    assert_eq!(ledger.free(CARD), Bytes(600));
    let _ = see(&mut ledger, &id, uses(&id, 90, Some(90)));
    assert_eq!(ledger.free(CARD), Bytes(900));
    assert_eq!(enforcement(&ledger, &id), LimitEnforcement::Attached);
}

#[test]
fn a_sample_from_before_a_shrink_frees_nothing() {
    let (mut ledger, id) = node(OffenderPolicy::Observe);
    let old = sample(&ledger, &id, CARD, uses(&id, 50, Some(50)));
    assert!(resize(&mut ledger, &id, 100).is_ok());
    let _ = ledger.apply(EpochMillis(0), old);
    assert_eq!(ledger.free(CARD), Bytes(500));
    let _ = see(&mut ledger, &id, uses(&id, 50, Some(50)));
    assert_eq!(ledger.free(CARD), Bytes(900));
}

#[test]
fn growing_beside_others_is_refused_whole_and_shrinking_never() {
    let (mut ledger, id) = node(OffenderPolicy::Observe);
    let second = allocate(&mut ledger, "second", 400).unwrap();
    let Err(AllocationRefusal::Shortfall(shortfall)) = resize(&mut ledger, &id, 601) else {
        panic!("601 beside 400 of 1000 fitted")
    };
    assert_eq!(shortfall.free, Bytes(600));
    assert!(resize(&mut ledger, &id, 600).is_ok());
    assert!(resize(&mut ledger, &second, 1).is_ok());
}

#[test]
fn a_card_that_was_not_granted_is_an_offence_and_counts_as_unmanaged() {
    let (mut ledger, id) = node(OffenderPolicy::Observe);
    let event = sample(&ledger, &id, OTHER, uses(&id, 250, None));
    assert_eq!(
        notices(&ledger.apply(EpochMillis(0), event)),
        [NoticeKind::Ungranted]
    );
    assert_eq!(ledger.free(OTHER), Bytes(750));
}

#[test]
fn a_damaged_account_is_shown_as_missing() {
    let (mut ledger, id) = node(OffenderPolicy::Observe);
    let LedgerEvent::Sampled(mut sample) = sample(&ledger, &id, CARD, uses(&id, 10, Some(10)))
    else {
        unreachable!("a sample is sampled")
    };
    sample.accounts[0].is_sound = false;
    let told = [NoticeKind::Damaged];
    let effects = ledger.apply(EpochMillis(0), LedgerEvent::Sampled(sample.clone()));
    assert_eq!(notices(&effects), told);
    assert_eq!(enforcement(&ledger, &id), LimitEnforcement::Missing);
    let effects = ledger.apply(EpochMillis(1), LedgerEvent::Sampled(sample));
    assert_eq!(notices(&effects), [], "it is told once");
}

#[test]
fn claims_that_nothing_backs_take_nothing_from_others() {
    let (mut ledger, id) = node(OffenderPolicy::Observe);
    let _ = see(&mut ledger, &id, uses(&id, 100, Some(999_999)));
    assert_eq!(ledger.free(CARD), Bytes(500));
}

#[test]
fn the_overhead_of_a_process_goes_at_once_when_it_ends() {
    let (mut ledger, id) = node(OffenderPolicy::Observe);
    let _ = see(&mut ledger, &id, uses(&id, 130, Some(100)));
    let gone = LedgerEvent::ProcessGone {
        id: id.clone(),
        process: PROGRAM,
    };
    let none = LedgerEffect::SetOverhead {
        id: id.clone(),
        card: CARD,
        overhead: Bytes(0),
    };
    assert_eq!(ledger.apply(EpochMillis(0), gone.clone()), [none]);
    assert_eq!(ledger.apply(EpochMillis(0), gone), []);
}

#[test]
fn memory_that_its_process_claimed_is_explained_though_nvml_does_not_list_the_process() {
    let (mut ledger, _) = node(OffenderPolicy::Observe);
    for _ in 0..8 {
        let (used, unlisted) = (Bytes(300), Bytes(280));
        let seen = CardSample {
            card: CARD,
            used,
            unlisted,
            leeway: Bytes::ZERO,
            processes: Vec::new(),
        };
        let sample = NodeSample {
            generation: 9,
            cards: vec![seen],
            accounts: Vec::new(),
        };
        let _ = ledger.apply(EpochMillis(0), LedgerEvent::Sampled(sample));
    }
    assert_eq!(ledger.free(CARD), Bytes(480), "the rest is a stranger's");
}
