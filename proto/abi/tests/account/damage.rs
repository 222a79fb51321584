//! Whatever a tenant writes into its own page, it changes nothing of another's, and cannot keep a reader busy for
//! long.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use apportion_abi::Bytes;
use apportion_abi::account::{ApiFamily, CardCharges, ChargeOutcome, SLOTS, SlotOwner, UsageMap};
use proptest::prelude::*;

use crate::{TestAccount, account, c_path};

const CARDS: usize = 2;
const LINE: usize = 64;
/// The first lines of the cards, of the slots' heads and of the claims, and the end of the page.
const USES: usize = 2;
const HEADS: usize = USES + CARDS;
const CLAIMS: usize = HEADS + SLOTS;
const END: usize = CLAIMS + SLOTS * CARDS;
/// A flag of a share's holder: taken, and no claim pays for it.
const TAKEN: u64 = 1 << 63;

#[derive(Clone, Debug)]
enum DamageStep {
    /// The tenant writes a word of its page.
    Write {
        line: usize,
        word: usize,
        value: u64,
    },
    /// It truncates or extends its page, and restores the old length.
    Cut {
        bytes: u64,
    },
    /// The other process charges, uncharges or is refused.
    Charge {
        card: usize,
        mib: u64,
    },
    Uncharge {
        card: usize,
        mib: u64,
    },
    Deny {
        card: usize,
    },
    /// The agent reads both, and retires processes that it considers dead.
    Tick {
        dead: usize,
    },
}

fn value() -> impl Strategy<Value = u64> {
    let slot_and_generation =
        (0..4_u64, 0..1030_u64).prop_map(|(of, slot)| TAKEN | slot << 32 | of);
    prop_oneof![
        any::<u64>(),
        0..4_u64,
        slot_and_generation,
        Just(u64::MAX),
        (0..3_u64, 0..1_u64 << 48).prop_map(|(tag, bytes)| tag << 48 | bytes),
    ]
}

fn step() -> impl Strategy<Value = DamageStep> {
    // The first slots, where most happens, and the whole page.
    let line = prop_oneof![0..HEADS + 4, CLAIMS..CLAIMS + 8, 0..END];
    prop_oneof![
        8 => (line, 0..8_usize, value()).prop_map(|(line, word, value)| DamageStep::Write { line, word, value }),
        1 => (0..300_000_u64).prop_map(|bytes| DamageStep::Cut { bytes }),
        2 => (0..CARDS, 1..60_u64).prop_map(|(card, mib)| DamageStep::Charge { card, mib }),
        1 => (0..CARDS, 1..60_u64).prop_map(|(card, mib)| DamageStep::Uncharge { card, mib }),
        1 => (0..CARDS).prop_map(|card| DamageStep::Deny { card }),
        2 => (1..4_usize).prop_map(|dead| DamageStep::Tick { dead }),
    ]
}

/// The expected numbers of the other process, counted without a page.
#[derive(Debug, Default)]
struct UsageModel {
    claimed: u64,
    peak: u64,
    denied: u64,
}

impl UsageModel {
    fn charge(&mut self, mib: u64) -> ChargeOutcome {
        if self.claimed + mib > crate::LIMIT.as_mib() {
            return ChargeOutcome::Refused;
        }
        self.claimed += mib;
        self.peak = self.peak.max(self.claimed);
        ChargeOutcome::Granted
    }

    fn is(&self, used: &CardCharges) -> bool {
        let seen = (used.claimed, used.peak, used.denied);
        seen == (
            Bytes::from_mib(self.claimed),
            Bytes::from_mib(self.peak),
            self.denied,
        )
    }
}

fn page(account: &TestAccount) -> File {
    File::options()
        .write(true)
        .open(account.dir.join("usage"))
        .unwrap()
}

/// Reads an account as the agent does. Every third of its processes is considered dead.
fn tick(account: &TestAccount, dead: usize) {
    // The page may have been truncated under an earlier mapping. A damaged page is not opened.
    let Ok(mapped) = UsageMap::adopt(&c_path(&account.dir.join("usage"))) else {
        return;
    };
    let usage = mapped.usage();
    for (place, process) in usage.processes().enumerate() {
        for card in 0..CARDS {
            let (claimed, _) = usage.claimed_by(process.owner, card);
            assert!(usage.take_high(process.owner, card) >= claimed);
        }
        if place % 3 == dead - 1 {
            let _ = usage.retire(process.owner);
        }
    }
    for card in 0..CARDS {
        let used = usage.used(card);
        assert!(used.reserve <= used.claimed && used.modules <= used.claimed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_a_tenant_writes_changes_anothers_numbers(steps in prop::collection::vec(step(), 1..60)) {
        let (own, other) = (account(CARDS), account(CARDS));
        let (file, length) = (page(&own), (END * LINE) as u64);
        let mut models = [(); CARDS].map(|()| UsageModel::default());
        let owner: SlotOwner = other.enter(21);
        let program = own.enter(22);
        let usage = other.usage.usage();
        for step in steps {
            match step {
                DamageStep::Write { line, word, value } => {
                    let at = (line * LINE + word * 8) as u64;
                    file.write_all_at(&value.to_ne_bytes(), at).unwrap();
                }
                DamageStep::Cut { bytes } => {
                    file.set_len(bytes).unwrap();
                    tick(&own, 1);
                    file.set_len(length).unwrap();
                }
                DamageStep::Charge { card, mib } => {
                    let limit = &other.limits.cards()[card];
                    let charged = usage.charge(owner, card, Bytes::from_mib(mib), limit);
                    prop_assert_eq!(charged, models[card].charge(mib));
                    // The tenant's own program continues with whatever its page holds.
                    let _ = own.usage.usage().charge(program, card, Bytes::from_mib(mib), limit);
                }
                DamageStep::Uncharge { card, mib } => {
                    usage.uncharge(owner, card, Bytes::from_mib(mib));
                    models[card].claimed = models[card].claimed.saturating_sub(mib);
                }
                DamageStep::Deny { card } => {
                    usage.deny(card, ApiFamily::ALL[0], Bytes(1));
                    models[card].denied += 1;
                }
                DamageStep::Tick { dead } => {
                    tick(&own, dead);
                    let others: Vec<_> = usage.processes().map(|process| process.owner).collect();
                    prop_assert_eq!(others, [owner]);
                }
            }
            for (card, model) in models.iter().enumerate() {
                prop_assert!(model.is(&usage.used(card)), "{:?}, not {:?}", usage.used(card), model);
                for account in [&own, &other] {
                    let limits = account.limits.cards()[card].limits();
                    prop_assert_eq!((limits.limit, limits.overhead), (crate::LIMIT, Bytes::ZERO));
                }
            }
        }
    }
}

/// Every slot is taken, and every place holds a share that no claim pays for. Each process was once compared with
/// each pair of shares, which took minutes.
#[test]
fn a_page_full_of_nonsense_keeps_no_reader_for_long() {
    let account = account(1);
    let file = page(&account);
    let write = |line: usize, word: usize, value: u64| {
        let at = (line * LINE + word * 8) as u64;
        file.write_all_at(&value.to_ne_bytes(), at).unwrap();
    };
    let (heads, slots) = (USES + 1, SLOTS as u64);
    write(1, 0, slots);
    write(USES, 4, slots);
    for slot in 0..SLOTS {
        let number = slot as u64;
        write(heads + slot, 0, number + 1);
        write(heads + slot, 3, TAKEN | number << 32);
        write(heads + slot, 4, number);
        write(heads + slot, 5, 1);
        write(heads + SLOTS + slot, 0, 1);
    }
    let begun = Instant::now();
    let usage = account.usage.usage();
    let looked_at = usage
        .processes()
        .map(|process| usage.take_high(process.owner, 0));
    assert_eq!(looked_at.count(), SLOTS);
    assert_eq!(usage.used(0).claimed, Bytes(2 * slots));
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
}
