//! The account under every interleaving that `loom` finds. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p apportion-abi --release --test loom`.
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a test may")]

use apportion_abi::account::{
    AccountUsage, CallWords, CardLimit, CardUse, ChargeOutcome, JoinOutcome, ProcessRegistration,
    SLOTS, SharedCallWords, SlotCard, SlotHead, SlotOwner,
};
use apportion_abi::{Bytes, CardUuid, SHARE_UNIT};
use loom::sync::Arc;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::thread;

/// Amounts are in share units, because limits are whole ones.
fn units(count: u64) -> Bytes {
    Bytes(count * SHARE_UNIT)
}

struct AccountPages {
    limits: CardLimit,
    cards: Vec<CardUse>,
    heads: Vec<SlotHead>,
    claims: Vec<SlotCard>,
    slots_used: AtomicU64,
}

impl AccountPages {
    fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limits: CardLimit::new(CardUuid([1; 16]), units(1000), units(limit), Bytes::ZERO),
            cards: vec![CardUse::default()],
            heads: (0..SLOTS).map(|_| SlotHead::default()).collect(),
            claims: (0..SLOTS).map(|_| SlotCard::default()).collect(),
            slots_used: AtomicU64::new(0),
        })
    }

    fn usage(&self) -> AccountUsage<'_> {
        AccountUsage::new(&self.cards, &self.heads, &self.claims, &self.slots_used)
    }

    fn enter(&self, pid: u32) -> SlotOwner {
        self.usage()
            .register(ProcessRegistration {
                pid,
                start_time: 1,
                pid_namespace: 1,
            })
            .unwrap()
    }

    fn charge(&self, owner: SlotOwner, count: u64) -> ChargeOutcome {
        self.usage().charge(owner, 0, units(count), &self.limits)
    }
}

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

#[test]
fn two_charges_that_do_not_fit_together_do_not_both_pass() {
    model(|| {
        let pages = AccountPages::new(10);
        let owners = [pages.enter(1), pages.enter(2)];
        let other = pages.clone();
        let rival = thread::spawn(move || other.charge(owners[1], 6) == ChargeOutcome::Granted);
        let mine = pages.charge(owners[0], 6) == ChargeOutcome::Granted;
        let theirs = rival.join().unwrap();
        assert!(!(mine && theirs));
        let held = 6 * (u64::from(mine) + u64::from(theirs));
        assert_eq!(
            pages.usage().claimed(0),
            units(held),
            "a refused charge leaves nothing"
        );
    });
}

#[test]
fn two_charges_that_fit_together_both_pass() {
    model(|| {
        let pages = AccountPages::new(10);
        let owners = [pages.enter(1), pages.enter(2)];
        let other = pages.clone();
        let rival = thread::spawn(move || other.charge(owners[1], 5));
        assert_eq!(pages.charge(owners[0], 5), ChargeOutcome::Granted);
        assert_eq!(rival.join().unwrap(), ChargeOutcome::Granted);
    });
}

#[test]
fn threads_of_one_process_share_its_slot_without_loss() {
    model(|| {
        let pages = AccountPages::new(10);
        let owner = pages.enter(1);
        let other = pages.clone();
        let rival = thread::spawn(move || {
            assert_eq!(other.charge(owner, 3), ChargeOutcome::Granted);
            other.usage().uncharge(owner, 0, units(3));
        });
        assert_eq!(pages.charge(owner, 4), ChargeOutcome::Granted);
        rival.join().unwrap();
        assert_eq!(pages.usage().claimed(0), units(4));
    });
}

#[test]
fn the_dead_are_retired_once_however_many_try() {
    model(|| {
        let pages = AccountPages::new(10);
        let dead = pages.enter(1);
        assert_eq!(pages.charge(dead, 6), ChargeOutcome::Granted);
        let other = pages.clone();
        let rival = thread::spawn(move || {
            other.usage().retire(dead);
            // Either retirement has freed the slot, so a new process can register and charge.
            let newcomer = other.enter(2);
            assert_eq!(other.charge(newcomer, 5), ChargeOutcome::Granted);
        });
        pages.usage().retire(dead);
        rival.join().unwrap();
        assert_eq!(
            pages.usage().claimed(0),
            units(5),
            "a late retirement takes nothing from a successor"
        );
    });
}

#[test]
fn two_newcomers_never_share_a_slot() {
    model(|| {
        let pages = AccountPages::new(10);
        let other = pages.clone();
        let rival = thread::spawn(move || other.enter(2).slot());
        let mine = pages.enter(1).slot();
        assert_ne!(mine, rival.join().unwrap());
        assert_eq!(pages.slots_used.load(Ordering::Acquire), 2);
    });
}

#[test]
fn memory_that_is_given_up_while_another_joins_is_never_uncounted() {
    model(|| {
        let pages = AccountPages::new(10);
        let (maker, taker) = (pages.enter(1), pages.enter(2));
        assert_eq!(pages.charge(maker, 6), ChargeOutcome::Granted);
        let offered = pages.usage().offer(maker, 0, 7, units(6)).unwrap();
        let other = pages.clone();
        let rival = thread::spawn(move || {
            let usage = other.usage();
            usage.leave(offered);
            usage.uncharge(maker, 0, units(6));
            other.charge(maker, 6) == ChargeOutcome::Granted
        });
        let joined = pages.usage().join(taker, 7, |_| Some(&pages.limits));
        let holds = matches!(joined, JoinOutcome::Joined(_));
        let charged = rival.join().unwrap();
        assert!(!(holds && charged), "twelve of ten");
        let held = 6 * (u64::from(holds) + u64::from(charged));
        assert_eq!(pages.usage().claimed(0), units(held));
    });
}

#[test]
fn what_a_dead_maker_leaves_to_another_counts_at_every_moment() {
    model(|| {
        let pages = AccountPages::new(10);
        let (maker, taker) = (pages.enter(1), pages.enter(2));
        assert_eq!(pages.charge(maker, 6), ChargeOutcome::Granted);
        assert!(pages.usage().offer(maker, 0, 7, units(6)).is_some());
        let joined = pages.usage().join(taker, 7, |_| Some(&pages.limits));
        assert!(matches!(joined, JoinOutcome::Joined(_)));
        let other = pages.clone();
        let rival = thread::spawn(move || other.usage().retire(maker));
        assert_eq!(pages.charge(taker, 5), ChargeOutcome::Refused);
        rival.join().unwrap();
        assert_eq!(pages.usage().claimed(0), units(6));
        assert_eq!(pages.usage().claimed_by(taker, 0).0, units(6));
    });
}

/// A share that sleeps when it is idle, and the driver's gate.
struct IdlePages {
    epoch: AtomicU64,
    suspended: AtomicU64,
    heads: Vec<SlotHead>,
    without_slot: AtomicU64,
    /// Whether a thread is between its look at the epoch and the gate, as its state shows the agent.
    on_its_way: AtomicBool,
    /// Whether the driver holds calls.
    gate: Mutex<bool>,
    is_held: AtomicBool,
    has_rung: AtomicBool,
}

impl IdlePages {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            epoch: AtomicU64::new(1),
            suspended: AtomicU64::new(0),
            heads: (0..SLOTS).map(|_| SlotHead::default()).collect(),
            without_slot: AtomicU64::new(0),
            on_its_way: AtomicBool::new(false),
            gate: Mutex::new(false),
            is_held: AtomicBool::new(false),
            has_rung: AtomicBool::new(false),
        })
    }

    fn shared(&self) -> SharedCallWords<'_> {
        SharedCallWords::new(&self.epoch, &self.suspended)
    }

    fn words(&self) -> CallWords<'_> {
        CallWords::new(&self.heads, Some(&self.without_slot), None)
    }

    /// One call of a process in this slot, as the hooks make it. `seen` is the last epoch that it published.
    fn call(&self, slot: Option<usize>, seen: &mut u64) {
        self.on_its_way.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let epoch = self.shared().epoch();
        if epoch != *seen {
            self.words().publish(slot, epoch);
            *seen = epoch;
            if self.shared().wakes() {
                self.has_rung.store(true, Ordering::SeqCst);
            }
        }
        if *self.gate.lock().unwrap() {
            self.is_held.store(true, Ordering::SeqCst);
        }
        self.on_its_way.store(false, Ordering::SeqCst);
    }

    /// One look of the agent at a share that runs. Returns whether it put it to sleep.
    fn look(&self) -> bool {
        let shared = self.shared();
        if self.words().has_called(shared.epoch()) {
            shared.begin_epoch();
        }
        fence(Ordering::SeqCst);
        // The agent waits until each thread was seen elsewhere. Here it gives up if it is not.
        if self.on_its_way.load(Ordering::SeqCst) || self.words().has_called(shared.epoch()) {
            return false;
        }
        self.suspended.store(2, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        *self.gate.lock().unwrap() = true;
        true
    }
}

fn no_call_is_overlooked(slots: [Option<usize>; 2]) {
    model(move || {
        let pages = IdlePages::new();
        let mut before = 0;
        pages.call(slots[0], &mut before);
        let other = pages.clone();
        let program = thread::spawn(move || {
            let mut seen = before;
            other.call(slots[0], &mut seen);
            let mut newcomer = 0;
            other.call(slots[1], &mut newcomer);
        });
        let mut sleeps = false;
        for _ in 0..2 {
            sleeps = sleeps || pages.look();
        }
        program.join().unwrap();
        let called = pages.words().has_called(pages.shared().epoch());
        if pages.is_held.load(Ordering::SeqCst) {
            assert!(sleeps && called, "a call waits that the agent does not see");
        }
        if pages.has_rung.load(Ordering::SeqCst) {
            assert!(called, "the agent is told, and finds the call");
        }
    });
}

#[test]
fn a_call_that_a_sleeping_share_holds_is_seen() {
    no_call_is_overlooked([Some(0), Some(1)]);
}

#[test]
fn a_call_of_a_process_without_a_slot_is_seen() {
    no_call_is_overlooked([Some(0), None]);
}
