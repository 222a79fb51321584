//! The memory of a suspended allocation: given back when its processes sleep, and taken again before they wake.

use std::time::Duration;

use apportion_abi::{BurstTerms, Bytes, CardCapacity, CardRequest, CardUuid, Shortfall};
use apportion_ledger::{
    AccountSample, AllocationId, AllocationOwner, AllocationRefusal, CallClaimant, CardSample,
    ClaimWindow, EpochMillis, GuaranteeCall, Ledger, LedgerEffect, LedgerEvent, NodeSample,
    NoticeKind, OffenderPolicy, PlacementProposal, ProcessId, ProcessSample, SuspensionCause,
    SuspensionPhase,
};

const CARD: CardUuid = CardUuid([1; 16]);
const PROCESS: ProcessId = ProcessId { pid: 7, start: 1 };

/// A card of 1000 bytes.
fn ledger() -> Ledger {
    let mut ledger = Ledger::new(1, OffenderPolicy::Kill);
    let capacity = CardCapacity {
        total: Bytes(1000),
        reserved: Bytes::ZERO,
    };
    apply(
        &mut ledger,
        LedgerEvent::CardFound {
            card: CARD,
            capacity,
        },
    );
    ledger
}

fn apply(ledger: &mut Ledger, event: LedgerEvent) -> Vec<LedgerEffect> {
    ledger.apply(EpochMillis(1), event)
}

fn answer(effects: &[LedgerEffect]) -> Result<AllocationId, AllocationRefusal> {
    let mut answers = effects.iter().filter_map(|effect| match effect {
        LedgerEffect::Answer(answer) => Some(answer.clone()),
        _ => None,
    });
    answers.next_back().expect("a request is answered")
}

fn reserved(
    ledger: &mut Ledger,
    name: &str,
    bytes: u64,
) -> Result<AllocationId, AllocationRefusal> {
    let proposal = PlacementProposal {
        ceilings: Vec::new(),
        key: name.to_owned(),
        name: name.to_owned(),
        asks: vec![CardRequest {
            card: CARD,
            bytes: Bytes(bytes),
        }],
        terms: BurstTerms::default(),
        ttl: Duration::from_secs(1),
        idle_after: None,
    };
    answer(&apply(ledger, LedgerEvent::Allocate(proposal)))
}

fn allocated(ledger: &mut Ledger, name: &str, bytes: u64) -> AllocationId {
    let id = reserved(ledger, name, bytes).expect("it fits");
    let owner = AllocationOwner::Process(PROCESS);
    answer(&apply(ledger, LedgerEvent::Commit { id, owner })).expect("it is reserved")
}

fn asleep(ledger: &mut Ledger, id: &AllocationId) {
    let id = id.clone();
    answer(&apply(ledger, LedgerEvent::Suspend { id: id.clone() })).expect("it runs");
    apply(ledger, LedgerEvent::Suspended { id });
}

/// A sample in which the process of an allocation uses so much and claims so much.
fn sample(ledger: &mut Ledger, id: &AllocationId, nvml: u64, claimed: u64) -> Vec<LedgerEffect> {
    let generation = ledger.generation();
    sample_of(ledger, generation, id, nvml, claimed)
}

fn sample_of(
    ledger: &mut Ledger,
    generation: u64,
    id: &AllocationId,
    nvml: u64,
    claimed: u64,
) -> Vec<LedgerEffect> {
    let process = ProcessSample {
        process: PROCESS,
        owner: Some(id.clone()),
        nvml: Some(Bytes(nvml)),
        claimed: Some(ClaimWindow {
            lowest: Bytes(claimed),
            highest: Bytes(claimed),
        }),
        has_ended: false,
    };
    let card = CardSample {
        card: CARD,
        used: Bytes(nvml),
        unlisted: Bytes::ZERO,
        leeway: Bytes(10),
        // A sleeping process is not listed.
        processes: if nvml > 0 { vec![process] } else { Vec::new() },
    };
    let account = AccountSample {
        id: id.clone(),
        is_sound: true,
        claimed: vec![(CARD, Bytes(claimed))],
    };
    apply(
        ledger,
        LedgerEvent::Sampled(NodeSample {
            generation,
            cards: vec![card],
            accounts: vec![account],
        }),
    )
}

#[test]
fn memory_is_free_when_a_later_sample_shows_it() {
    let mut ledger = ledger();
    let id = allocated(&mut ledger, "a", 600);
    sample(&mut ledger, &id, 500, 500);
    let before = ledger.generation();
    let effects = apply(&mut ledger, LedgerEvent::Suspend { id: id.clone() });
    let wait = LedgerEffect::SetSuspended {
        id: id.clone(),
        is_suspended: true,
    };
    assert_eq!(
        effects[..2],
        [LedgerEffect::Save, wait],
        "saved before it is done"
    );
    assert_eq!(ledger.free(CARD), Bytes(400), "its processes still run");
    apply(&mut ledger, LedgerEvent::Suspended { id: id.clone() });
    sample_of(&mut ledger, before, &id, 500, 500);
    assert_eq!(ledger.free(CARD), Bytes(400), "the sample is older");
    sample(&mut ledger, &id, 0, 500);
    assert_eq!(ledger.free(CARD), Bytes(1000), "charges alone hold nothing");
    assert_eq!(ledger.granted(CARD), Bytes::ZERO);
    sample(&mut ledger, &id, 70, 500);
    assert_eq!(
        ledger.free(CARD),
        Bytes(930),
        "what the driver reports is held"
    );
}

#[test]
fn a_sleeper_is_no_offender_and_its_overhead_is_kept() {
    let mut ledger = ledger();
    let id = allocated(&mut ledger, "a", 600);
    sample(&mut ledger, &id, 550, 500);
    let overhead = |ledger: &Ledger| ledger.allocation(&id).unwrap().grants[0].overhead;
    assert_eq!(overhead(&ledger), Bytes(50));
    asleep(&mut ledger, &id);
    for _ in 0..5 {
        assert_eq!(sample(&mut ledger, &id, 0, 500), []);
    }
    assert_eq!(overhead(&ledger), Bytes(50));
}

#[test]
fn a_resume_takes_back_all_or_is_refused_with_numbers() {
    let mut ledger = ledger();
    let id = allocated(&mut ledger, "a", 600);
    // The driver took more than the limit.
    sample(&mut ledger, &id, 620, 600);
    asleep(&mut ledger, &id);
    sample(&mut ledger, &id, 0, 600);
    let other = allocated(&mut ledger, "b", 500);
    let resume = LedgerEvent::Resume { id: id.clone() };
    let refused = answer(&apply(&mut ledger, resume.clone())).unwrap_err();
    let AllocationRefusal::Shortfall(Shortfall { ask, free, .. }) = refused else {
        panic!("{refused}");
    };
    assert_eq!((ask.bytes, free), (Bytes(620), Bytes(500)));
    assert_eq!(
        ledger.allocation(&id).unwrap().suspension,
        SuspensionPhase::Suspended
    );
    assert_eq!(ledger.free(CARD), Bytes(500));
    apply(&mut ledger, LedgerEvent::Release { id: other.clone() });
    apply(&mut ledger, LedgerEvent::Emptied { id: other });
    answer(&apply(&mut ledger, resume)).unwrap();
    assert_eq!(
        ledger.free(CARD),
        Bytes(380),
        "held before the first process wakes"
    );
    assert!(reserved(&mut ledger, "c", 400).is_err());
    let effects = apply(&mut ledger, LedgerEvent::Resumed { id: id.clone() });
    let go_on = LedgerEffect::SetSuspended {
        id: id.clone(),
        is_suspended: false,
    };
    assert_eq!(effects[..2], [LedgerEffect::Save, go_on]);
    sample(&mut ledger, &id, 600, 600);
    assert_eq!(ledger.free(CARD), Bytes(400));
}

#[test]
fn a_transition_that_is_undone_leaves_what_was_before() {
    let mut ledger = ledger();
    let id = allocated(&mut ledger, "a", 600);
    let notices = |effects: Vec<LedgerEffect>| {
        let notices = effects.into_iter().filter_map(|effect| match effect {
            LedgerEffect::Notice(notice) => Some(notice.kind),
            _ => None,
        });
        notices.collect::<Vec<NoticeKind>>()
    };
    apply(&mut ledger, LedgerEvent::Suspend { id: id.clone() });
    let undone = apply(&mut ledger, LedgerEvent::Resumed { id: id.clone() });
    assert_eq!(notices(undone), []);
    assert_eq!(ledger.free(CARD), Bytes(400));
    asleep(&mut ledger, &id);
    sample(&mut ledger, &id, 0, 500);
    apply(&mut ledger, LedgerEvent::Resume { id: id.clone() });
    let undone = apply(&mut ledger, LedgerEvent::Suspended { id: id.clone() });
    assert_eq!(notices(undone), []);
    sample(&mut ledger, &id, 0, 500);
    assert_eq!(ledger.free(CARD), Bytes(1000));
    apply(&mut ledger, LedgerEvent::Resume { id: id.clone() });
    let done = apply(&mut ledger, LedgerEvent::Resumed { id });
    assert_eq!(notices(done), [NoticeKind::Resumed]);
}

#[test]
fn only_programs_of_this_machine_that_run_are_suspended() {
    let mut ledger = ledger();
    let suspend = |ledger: &mut Ledger, id: &AllocationId| {
        answer(&apply(ledger, LedgerEvent::Suspend { id: id.clone() }))
    };
    let id = reserved(&mut ledger, "a", 100).unwrap();
    assert_eq!(
        suspend(&mut ledger, &id),
        Err(AllocationRefusal::Uncommitted(id.clone()))
    );
    let owner = AllocationOwner::Pod("uid".into());
    apply(
        &mut ledger,
        LedgerEvent::Commit {
            id: id.clone(),
            owner,
        },
    );
    assert_eq!(suspend(&mut ledger, &id), Err(AllocationRefusal::OfPod(id)));
    let id = allocated(&mut ledger, "b", 100);
    asleep(&mut ledger, &id);
    let resize = LedgerEvent::Resize {
        id: id.clone(),
        asks: vec![CardRequest {
            card: CARD,
            bytes: Bytes(50),
        }],
        ceilings: Vec::new(),
    };
    let refused = answer(&apply(&mut ledger, resize));
    assert_eq!(refused, Err(AllocationRefusal::Suspended(id.clone())));
    apply(&mut ledger, LedgerEvent::OwnerGone { id: id.clone() });
    let resumed = answer(&apply(&mut ledger, LedgerEvent::Resume { id: id.clone() }));
    assert_eq!(
        resumed,
        Ok(id),
        "children of its owner could not end otherwise"
    );
}

fn idle(ledger: &mut Ledger, id: &AllocationId) {
    let id = id.clone();
    answer(&apply(ledger, LedgerEvent::Idle { id: id.clone() })).expect("it runs");
    apply(ledger, LedgerEvent::Suspended { id: id.clone() });
    sample(ledger, &id, 0, 0);
}

#[test]
fn what_is_idle_gives_all_back_and_comes_before_later_newcomers_when_it_is_called() {
    let mut ledger = ledger();
    let server = allocated(&mut ledger, "server", 600);
    idle(&mut ledger, &server);
    assert_eq!(ledger.free(CARD), Bytes(1000));
    assert_eq!(ledger.granted(CARD), Bytes::ZERO);
    let train = allocated(&mut ledger, "train", 700);
    let resume = |ledger: &mut Ledger| {
        let id = server.clone();
        answer(&apply(ledger, LedgerEvent::Resume { id }))
    };
    let refused = resume(&mut ledger);
    assert!(
        matches!(refused, Err(AllocationRefusal::Shortfall(_))),
        "{refused:?}"
    );
    let allocation = ledger.allocation(&server).expect("it is there");
    let call = GuaranteeCall {
        claimant: allocation.claimant(),
        name: "server".to_owned(),
        asks: allocation.needs(),
    };
    assert_eq!(call.claimant, CallClaimant::IdleSleeper(server.clone()));
    apply(&mut ledger, LedgerEvent::CallOpened(call));
    assert!(
        reserved(&mut ledger, "late", 200).is_err(),
        "it would overtake"
    );
    apply(&mut ledger, LedgerEvent::Release { id: train.clone() });
    apply(&mut ledger, LedgerEvent::Emptied { id: train });
    assert!(
        reserved(&mut ledger, "late", 500).is_err(),
        "it would overtake"
    );
    assert!(
        reserved(&mut ledger, "small", 400).is_ok(),
        "it fits beside"
    );
    assert_eq!(resume(&mut ledger), Ok(server.clone()));
    assert!(!ledger.has_call(&CallClaimant::IdleSleeper(server)));
}

#[test]
fn an_idle_sleeper_is_not_resized() {
    let mut ledger = ledger();
    let id = allocated(&mut ledger, "server", 600);
    idle(&mut ledger, &id);
    for bytes in [500, 700] {
        let resize = LedgerEvent::Resize {
            id: id.clone(),
            asks: vec![CardRequest {
                card: CARD,
                bytes: Bytes(bytes),
            }],
            ceilings: Vec::new(),
        };
        let refused = answer(&apply(&mut ledger, resize));
        assert_eq!(refused, Err(AllocationRefusal::Suspended(id.clone())));
    }
}

#[test]
fn a_client_that_takes_an_idle_sleeper_over_ends_its_call() {
    let mut ledger = ledger();
    let server = allocated(&mut ledger, "server", 600);
    idle(&mut ledger, &server);
    let claimant = CallClaimant::IdleSleeper(server.clone());
    let call = GuaranteeCall {
        claimant: claimant.clone(),
        name: "server".to_owned(),
        asks: Vec::new(),
    };
    apply(&mut ledger, LedgerEvent::CallOpened(call));
    let id = server.clone();
    let effects = apply(&mut ledger, LedgerEvent::Suspend { id });
    assert!(effects.contains(&LedgerEffect::SetSuspended {
        id: server.clone(),
        is_suspended: true
    }));
    assert!(!ledger.has_call(&claimant));
    let allocation = ledger.allocation(&server).expect("it is there");
    assert_eq!(allocation.suspension_cause, SuspensionCause::Client);
}

fn pod(ledger: &mut Ledger, bytes: u64) -> AllocationId {
    let id = reserved(ledger, "pod", bytes).expect("it fits");
    let owner = AllocationOwner::Pod("uid".to_owned());
    answer(&apply(ledger, LedgerEvent::Commit { id, owner })).expect("it is reserved")
}

fn reclaimed(ledger: &mut Ledger, id: &AllocationId) -> Result<AllocationId, AllocationRefusal> {
    answer(&apply(ledger, LedgerEvent::Reclaim { id: id.clone() }))
}

#[test]
fn only_its_scheduler_takes_the_guarantee_of_a_pod() {
    let mut ledger = ledger();
    let id = pod(&mut ledger, 600);
    sample(&mut ledger, &id, 500, 500);
    let by_client = answer(&apply(&mut ledger, LedgerEvent::Suspend { id: id.clone() }));
    assert_eq!(by_client, Err(AllocationRefusal::OfPod(id.clone())));
    assert_eq!(reclaimed(&mut ledger, &id), Ok(id.clone()));
    assert_eq!(ledger.free(CARD), Bytes(400), "its processes still run");
    let effects = apply(&mut ledger, LedgerEvent::Suspended { id: id.clone() });
    let said = format!("{effects:?}");
    assert!(
        said.contains("the pod's scheduler needs what was guaranteed"),
        "{said}"
    );
    sample(&mut ledger, &id, 0, 500);
    assert_eq!(ledger.free(CARD), Bytes(1000));
    let late = reserved(&mut ledger, "late", 700).expect("all of it is free");
    let resume = LedgerEvent::Resume { id: id.clone() };
    let refused = answer(&apply(&mut ledger, resume.clone()));
    assert!(
        matches!(refused, Err(AllocationRefusal::Shortfall(_))),
        "{refused:?}"
    );
    apply(&mut ledger, LedgerEvent::Release { id: late });
    assert_eq!(answer(&apply(&mut ledger, resume)), Ok(id.clone()));
    apply(&mut ledger, LedgerEvent::Resumed { id });
    assert_eq!(ledger.free(CARD), Bytes(400));
}

#[test]
fn a_scheduler_takes_an_idle_pod_over() {
    let mut ledger = ledger();
    let id = pod(&mut ledger, 600);
    idle(&mut ledger, &id);
    assert_eq!(ledger.free(CARD), Bytes(400), "it keeps its guarantee");
    assert_eq!(reclaimed(&mut ledger, &id), Ok(id.clone()));
    sample(&mut ledger, &id, 0, 0);
    assert_eq!(ledger.free(CARD), Bytes(1000));
    let allocation = ledger.allocation(&id).expect("it is there");
    assert_eq!(allocation.suspension_cause, SuspensionCause::Client);
}

#[test]
fn an_idle_pod_keeps_its_guarantee() {
    let mut ledger = ledger();
    let id = pod(&mut ledger, 600);
    idle(&mut ledger, &id);
    assert_eq!(ledger.free(CARD), Bytes(400));
    assert!(reserved(&mut ledger, "late", 500).is_err());
}
