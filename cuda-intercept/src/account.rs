//! This process's part of its account: finding the account, registering, charge and uncharge.

use core::ffi::CStr;
use core::ops::ControlFlow;
use core::sync::atomic::AtomicU64;

use apportion_abi::account::{
    AccountOpenError, AccountUsage, ApiFamily, ChargeOutcome, LimitsMap, ProcessRegistration,
    SlotOwner, UsageMap,
};
use apportion_abi::{Bytes, CardUuid, paths};

use apportion_gate::ContextReserve;

use crate::{elf, errno, spin_lock::SpinLock};

mod burst;
mod calls;
mod dead_processes;
pub(crate) mod descriptor_keys;
mod elastic;
mod liveness;
mod members;
mod open_retry;
mod path;
mod peers;
mod shared;
mod suspension;
mod throttle;
mod wake;

use burst::BurstRequests;
use liveness::LivenessLock;
use open_retry::is_absence;
use path::{PathBuffer, environment};
pub(crate) use shared::JoinedMemory;
use throttle::{DEEP_SCAN, SCAN, ScanThrottle};

/// Whether a limit applies to this process.
#[expect(clippy::large_enum_variant, reason = "a process has one")]
#[derive(Debug)]
pub(crate) enum LimitState {
    /// Nothing says that there is a limit.
    Unlimited,
    /// There is a limit, and its account is open.
    Limited(MappedAccount),
}

/// The account's files, mapped, and this process's record in them.
#[derive(Debug)]
pub(crate) struct MappedAccount {
    limits: LimitsMap,
    usage: UsageMap,
    /// How to ask for more, if the share is elastic.
    burst: Option<BurstRequests>,
    /// Where the agent hears that a call wakes the share, if the share sleeps when it is idle.
    fifo: Option<PathBuffer>,
    /// The path of the usage file.
    path: PathBuffer,
    slot: SpinLock<OwnProcessRecord>,
    /// Limits scans for dead processes that only a query asks for.
    scans: ScanThrottle,
    /// Limits full scans, which also check processes whose liveness locks are held.
    deep_scans: ScanThrottle,
    /// The last value of [`throttle::children`].
    /// Written by: the query that finds it changed. Read by: every query. Relaxed: it only tells one value from
    /// another.
    children: AtomicU64,
}

/// What this process holds, and its record that tells the other processes.
#[derive(Debug)]
struct OwnProcessRecord {
    owner: Option<SlotOwner>,
    /// The liveness lock of this process, once there was a free descriptor to take it.
    lifeline: Option<LivenessLock>,
    /// The same sums as in the process record. If the record is retired by mistake, a new one starts with them.
    held: [u64; apportion_abi::account::MAX_CARDS],
}

/// The memory of a card as the program sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CardMemoryView {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

impl LimitState {
    /// Finds the account: a container's at its fixed path, else the one that the environment names.
    ///
    /// `None` while there must be an account that cannot be opened. Then charges are refused, and the next call tries
    /// again. A process without a free descriptor or page is refused until it has one. A program that keeps the
    /// library from its account, for example by a system call filter, is refused for good.
    pub(crate) fn find() -> Option<Self> {
        Self::of(
            paths::CONTAINER_ACCOUNT.as_bytes(),
            is_in_a_container,
            environment(paths::ENV_ACCOUNT),
        )
    }

    fn of(
        container: &[u8],
        is_in_a_container: impl FnOnce() -> bool,
        named: Option<&[u8]>,
    ) -> Option<Self> {
        match MappedAccount::open(container) {
            Ok(account) => return Some(Self::Limited(account)),
            Err(problem) if is_absence(problem) => {}
            Err(_) => return None,
        }
        if is_in_a_container() {
            return None;
        }
        match named {
            None => Some(Self::Unlimited),
            Some(named) => {
                let opened = open_retry::wait(|| MappedAccount::open(named));
                opened.ok().map(Self::Limited)
            }
        }
    }
}

/// Whether this library was loaded from its path in a container. Then there is an account beside it, even if the
/// kernel says that the path does not exist.
fn is_in_a_container() -> bool {
    let path = elf::for_each(|object| {
        if object.is_ours() {
            ControlFlow::Break(object.path())
        } else {
            ControlFlow::Continue(())
        }
    });
    let Some(path) = path.filter(|path| !path.is_null()) else {
        return false;
    };
    // SAFETY: the linker keeps the path of a loaded object as a string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let rest = path.strip_prefix(paths::CONTAINER_ACCOUNT.as_bytes());
    rest.is_some_and(|rest| rest.starts_with(b"/"))
}

impl MappedAccount {
    /// Only a missing limits file is reported as absence. So one failed call shows that there is no account.
    fn open(folder: &[u8]) -> Result<Self, AccountOpenError> {
        let mut path = PathBuffer::default();
        let limits = path.join(folder, paths::LIMITS_FILE);
        let limits = LimitsMap::open(limits.ok_or(AccountOpenError::NotAnAccount)?)?;
        let usage = path.join(folder, paths::USAGE_FILE);
        let usage = UsageMap::open(usage.ok_or(AccountOpenError::NotAnAccount)?);
        let usage = usage.map_err(|problem| {
            if is_absence(problem) {
                AccountOpenError::NotAnAccount
            } else {
                problem
            }
        })?;
        if limits.cards().len() != usage.cards() {
            return Err(AccountOpenError::NotAnAccount);
        }
        let burst = BurstRequests::open(folder, &limits)?;
        let fifo = wake::fifo(folder, &limits);
        let slot = SpinLock::new(OwnProcessRecord {
            owner: None,
            lifeline: None,
            held: [0; apportion_abi::account::MAX_CARDS],
        });
        Ok(Self {
            limits,
            usage,
            burst,
            fifo,
            path,
            slot,
            scans: ScanThrottle::of(SCAN),
            deep_scans: ScanThrottle::of(DEEP_SCAN),
            children: AtomicU64::new(0),
        })
    }

    /// The index of a card in the account.
    pub(crate) fn card(&self, uuid: CardUuid) -> Option<usize> {
        let mut cards = self.limits.cards().iter();
        cards.position(|card| card.card() == uuid)
    }

    /// Whether this is more than the whole card has, so that the driver refuses it too. If the card's size is
    /// unknown, no amount is too much.
    pub(crate) fn is_absurd(&self, card: usize, bytes: u64) -> bool {
        let card = self.limits.cards().get(card);
        card.is_some_and(|card| card.total > 0 && bytes > card.total)
    }

    /// The reserves for contexts on the card.
    pub(crate) fn reserve(&self, card: usize) -> ContextReserve {
        let card = self.limits.cards().get(card);
        let limits = card.map(|card| card.limits());
        ContextReserve {
            first: limits.map_or(0, |limits| limits.context_reserve.0),
            further: limits.map_or(0, |limits| limits.further_reserve.0),
        }
    }

    /// Charges a card, if the charge fits.
    pub(crate) fn charge(&self, card: usize, bytes: u64) -> bool {
        let Some(limits) = self.limits.cards().get(card) else {
            return false;
        };
        let usage = self.usage.usage();
        let charge = |owner| usage.charge(owner, card, Bytes(bytes), limits);
        let Some(owner) = self.owner(&usage) else {
            return false;
        };
        let outcome = match charge(owner) {
            ChargeOutcome::Lost => self.enter(&usage, Some(owner)).map(charge),
            decided @ (ChargeOutcome::Granted | ChargeOutcome::Refused) => Some(decided),
        };
        let granted = outcome == Some(ChargeOutcome::Granted);
        if granted {
            self.slot.lock().add(card, bytes);
        }
        granted
    }

    /// Charges a card for memory that is already taken.
    pub(crate) fn charge_anyway(&self, card: usize, bytes: u64) {
        let usage = self.usage.usage();
        let Some(owner) = self.owner(&usage) else {
            return;
        };
        if !usage.claim_anyway(owner, card, Bytes(bytes))
            && let Some(owner) = self.enter(&usage, Some(owner))
        {
            let _ = usage.claim_anyway(owner, card, Bytes(bytes));
        }
        self.slot.lock().add(card, bytes);
    }

    /// Takes a charge off.
    pub(crate) fn uncharge(&self, card: usize, bytes: u64) {
        let owner = {
            let mut slot = self.slot.lock();
            slot.subtract(card, bytes);
            slot.owner
        };
        if let Some(owner) = owner {
            self.usage.usage().uncharge(owner, card, Bytes(bytes));
        }
    }

    /// Records how much of the charge is for contexts.
    pub(crate) fn set_reserve(&self, card: usize, bytes: u64) {
        let owner = self.slot.lock().owner;
        if let Some(owner) = owner {
            self.usage.usage().set_reserve(owner, card, Bytes(bytes));
        }
    }

    /// Records how much of the charge is for code.
    pub(crate) fn set_modules(&self, card: usize, bytes: u64) {
        let owner = self.slot.lock().owner;
        if let Some(owner) = owner {
            self.usage.usage().set_modules(owner, card, Bytes(bytes));
        }
    }

    /// Counts a refusal that the program sees.
    pub(crate) fn deny(&self, card: usize, api: ApiFamily, bytes: u64) {
        self.usage.usage().deny(card, api, Bytes(bytes));
    }

    /// The card's memory as every query reports it. `total` and `free` are the driver's values for the whole card.
    pub(crate) fn view(&self, card: usize, total: u64, free: u64) -> CardMemoryView {
        let Some(limits) = self.limits.cards().get(card).map(|card| card.limits()) else {
            return CardMemoryView {
                total,
                free,
                used: total.saturating_sub(free),
            };
        };
        let claimed = self.usage.usage().claimed(card).0;
        let used = claimed.saturating_add(limits.overhead.0);
        let shown = self.shown(card).unwrap_or(limits.limit.0);
        let total = shown.min(total);
        CardMemoryView {
            total,
            free: total.saturating_sub(used).min(free),
            used: used.min(total),
        }
    }

    /// This process's record, registered at the first call.
    fn owner(&self, usage: &AccountUsage<'_>) -> Option<SlotOwner> {
        let known = self.slot.lock().owner;
        known.or_else(|| self.enter(usage, None))
    }

    /// Registers a new record in place of `old`, which another process has retired by mistake, with all that this
    /// process holds. Does nothing if another thread was quicker. An earlier record of the same process (from before
    /// an `exec`) is retired.
    fn enter(&self, usage: &AccountUsage<'_>, old: Option<SlotOwner>) -> Option<SlotOwner> {
        let _errno = errno::ErrnoGuard::now();
        // This reads files, so it comes before the lock.
        let own = peers::own();
        let entered = self.enter_as(own, usage, old).or_else(|| {
            self.retire_the_dead();
            self.enter_as(own, usage, old)
        });
        self.hold_lifeline();
        entered
    }

    /// Takes the liveness lock, if this process has a record and does not hold the lock yet.
    fn hold_lifeline(&self) {
        let wanted = |slot: &OwnProcessRecord| {
            let held = slot.lifeline.as_ref().map(LivenessLock::number);
            let number = slot.owner.map(SlotOwner::number);
            number.filter(|number| held != Some(*number))
        };
        let number = wanted(&self.slot.lock());
        let Some((number, path)) = number.zip(self.path.get()) else {
            return;
        };
        // This opens a file, so it happens while the record is unlocked. The replaced lock is dropped after
        // unlocking.
        let Some(lifeline) = LivenessLock::take(path, number) else {
            return;
        };
        let mut replaced = Some(lifeline);
        let mut slot = self.slot.lock();
        if wanted(&slot) == Some(number) {
            core::mem::swap(&mut slot.lifeline, &mut replaced);
        }
        drop(slot);
        drop(replaced);
    }

    fn enter_as(
        &self,
        own: ProcessRegistration,
        usage: &AccountUsage<'_>,
        old: Option<SlotOwner>,
    ) -> Option<SlotOwner> {
        let mut slot = self.slot.lock();
        if slot.owner != old {
            return slot.owner;
        }
        let earlier = usage.processes();
        for earlier in earlier.filter(|process| peers::is_same(process.registration, own)) {
            usage.retire(earlier.owner);
        }
        let owner = usage.register(own)?;
        for (card, held) in slot.held.iter().enumerate().filter(|(_, held)| **held > 0) {
            let _ = usage.claim_anyway(owner, card, Bytes(*held));
        }
        slot.owner = Some(owner);
        slot.owner
    }
}

impl OwnProcessRecord {
    fn add(&mut self, card: usize, bytes: u64) {
        if let Some(held) = self.held.get_mut(card) {
            *held = held.saturating_add(bytes);
        }
    }

    fn subtract(&mut self, card: usize, bytes: u64) {
        if let Some(held) = self.held.get_mut(card) {
            *held = held.saturating_sub(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use apportion_abi::account::NewCard;

    use super::*;

    fn bytes(path: &Path) -> &[u8] {
        path.as_os_str().as_bytes()
    }

    /// A valid account for a card of 16 MiB, limited to 8 MiB.
    fn make(folder: &Path) -> LimitsMap {
        let at = |file| CString::new(bytes(&folder.join(file))).expect("paths hold no zero");
        let card = NewCard {
            uuid: CardUuid([7; 16]),
            total: Bytes(16 << 20),
            limit: Bytes(8 << 20),
            context_reserve: Bytes(0),
        };
        UsageMap::create(&at(paths::USAGE_FILE), 1).expect("it is new");
        LimitsMap::create(&at(paths::LIMITS_FILE), &[card]).expect("it is new")
    }

    /// What is found on a machine without containers.
    fn found(container: &Path, named: Option<&Path>) -> Option<LimitState> {
        LimitState::of(bytes(container), || false, named.map(bytes))
    }

    #[test]
    fn a_container_s_account_comes_before_the_one_that_is_named() {
        let (container, named) = (tempfile::tempdir(), tempfile::tempdir());
        let (container, named) = (container.expect("room"), named.expect("room"));
        let nowhere = container.path().join("nowhere");
        make(named.path());
        assert!(matches!(
            found(&nowhere, Some(named.path())),
            Some(LimitState::Limited(_))
        ));
        fs::write(container.path().join(paths::LIMITS_FILE), "garbage").expect("it is writable");
        let closed = found(container.path(), Some(named.path()));
        assert!(closed.is_none(), "a known limit cannot be kept");
        fs::remove_file(container.path().join(paths::LIMITS_FILE)).expect("it is there");
        make(container.path());
        fs::remove_file(container.path().join(paths::USAGE_FILE)).expect("it is there");
        let closed = found(container.path(), Some(named.path()));
        assert!(
            closed.is_none(),
            "a limit without its usage file cannot be kept"
        );
    }

    #[test]
    fn there_is_no_limit_only_where_nothing_says_that_there_is_one() {
        let folder = tempfile::tempdir().expect("room");
        let nowhere = folder.path().join("nowhere");
        assert!(matches!(found(&nowhere, None), Some(LimitState::Unlimited)));
        assert!(
            found(&nowhere, Some(folder.path())).is_none(),
            "an account is named and cannot be opened"
        );
        assert!(
            LimitState::of(bytes(&nowhere), || true, None).is_none(),
            "the library is a container's, and its account cannot be opened"
        );
        make(folder.path());
        assert!(matches!(
            found(&nowhere, Some(folder.path())),
            Some(LimitState::Limited(_))
        ));
    }

    #[test]
    fn a_slot_that_was_retired_under_us_is_entered_again_with_all_that_is_held() {
        let folder = tempfile::tempdir().expect("room");
        make(folder.path());
        let Some(LimitState::Limited(account)) = found(folder.path(), None) else {
            unreachable!("the account is good");
        };
        assert!(account.charge(0, 3 << 20));
        let usage = account.usage.usage();
        let ours = usage.processes().next().expect("we are in it").owner;
        assert_eq!(usage.retire(ours), Bytes(3 << 20));
        assert!(account.charge(0, 4 << 20));
        assert_eq!(usage.claimed(0), Bytes(7 << 20));
        assert!(!account.charge(0, 2 << 20));
        account.uncharge(0, 7 << 20);
        assert_eq!(usage.claimed(0), Bytes::ZERO);
    }

    #[test]
    fn a_view_never_shows_more_than_there_is() {
        let folder = tempfile::tempdir().expect("room");
        let agent = make(folder.path());
        let Some(LimitState::Limited(account)) = found(folder.path(), None) else {
            unreachable!("the account is good");
        };
        let view = |total, free, used| CardMemoryView { total, free, used };
        const MIB: u64 = 1 << 20;
        assert_eq!(
            account.view(0, 16 * MIB, 16 * MIB),
            view(8 * MIB, 8 * MIB, 0)
        );
        assert_eq!(account.view(0, 16 * MIB, MIB), view(8 * MIB, MIB, 0));
        assert_eq!(account.view(0, 4 * MIB, 4 * MIB), view(4 * MIB, 4 * MIB, 0));
        if let Some(card) = agent.cards().first() {
            card.set_overhead(Bytes(9 * MIB));
        }
        assert_eq!(
            account.view(0, 16 * MIB, 16 * MIB),
            view(8 * MIB, 0, 8 * MIB)
        );
    }
}
