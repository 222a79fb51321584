//! A ledger with one card, and samples of it, for the tests that model what programs and the agent do.

use apportion_abi::{Bytes, CardCapacity, CardRequest, CardUuid, SHARE_UNIT};
use apportion_ledger::{
    AccountSample, AllocationId, AllocationRefusal, CardSample, ClaimWindow, EpochMillis, Ledger,
    LedgerEffect, LedgerEvent, NodeSample, OffenderPolicy, ProcessId, ProcessSample,
};

pub(crate) const CARD: CardUuid = CardUuid([1; 16]);
/// What programs can get, in units of 2 MiB.
pub(crate) const UNITS: u64 = 1000;

pub(crate) fn units(count: u64) -> Bytes {
    Bytes(count * SHARE_UNIT)
}

pub(crate) fn request(count: u64) -> CardRequest {
    CardRequest {
        card: CARD,
        bytes: units(count),
    }
}

/// A ledger whose limits may add up to `factor` times the card.
pub(crate) fn ledger(factor: &str) -> Ledger {
    let mut ledger = Ledger::new(1, OffenderPolicy::Observe);
    ledger.set_overcommit(factor.parse().expect("a factor"));
    let capacity = CardCapacity {
        total: units(UNITS + 10),
        reserved: units(10),
    };
    let found = LedgerEvent::CardFound {
        card: CARD,
        capacity,
    };
    let _ = ledger.apply(EpochMillis(0), found);
    ledger
}

/// The answer to a request.
pub(crate) fn answer(effects: Vec<LedgerEffect>) -> Result<AllocationId, AllocationRefusal> {
    let mut answers = effects.into_iter().filter_map(|effect| match effect {
        LedgerEffect::Answer(answer) => Some(answer),
        _ => None,
    });
    answers.next().expect("a request is answered")
}

/// The program of an allocation.
pub(crate) struct SampledProgram<'a> {
    pub(crate) id: &'a AllocationId,
    pub(crate) pid: u32,
    pub(crate) used: u64,
    /// NVML lists no process that sleeps.
    pub(crate) is_awake: bool,
}

/// A sample of programs that have charged exactly what they use.
pub(crate) fn sample<'a>(
    ledger: &Ledger,
    programs: impl Iterator<Item = SampledProgram<'a>>,
) -> LedgerEvent {
    let (mut processes, mut accounts) = (Vec::new(), Vec::new());
    let mut on_card = 0;
    for program in programs {
        let used = units(program.used);
        accounts.push(AccountSample {
            id: program.id.clone(),
            is_sound: true,
            claimed: vec![(CARD, used)],
        });
        if !program.is_awake {
            continue;
        }
        on_card += program.used;
        processes.push(ProcessSample {
            process: ProcessId {
                pid: program.pid,
                start: 1,
            },
            owner: Some(program.id.clone()),
            nvml: Some(used),
            claimed: Some(ClaimWindow {
                lowest: used,
                highest: used,
            }),
            has_ended: false,
        });
    }
    let card = CardSample {
        card: CARD,
        used: units(on_card),
        unlisted: Bytes::ZERO,
        leeway: Bytes::ZERO,
        processes,
    };
    LedgerEvent::Sampled(NodeSample {
        generation: ledger.generation(),
        cards: vec![card],
        accounts,
    })
}
