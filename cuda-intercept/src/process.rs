//! The state of this process, made when it is first needed and given up by a child of `fork`.
//!
//! A child inherits neither the parent's memory on the card nor the right to the parent's slot, and any
//! lock of the parent's may have been held by a thread that does not exist in the child. So the child
//! starts with nothing: the pointer to the state lies in a page that the kernel wipes at a fork, and a
//! state that was inherited is never looked at again.
//!
//! # Decision: closed until the account is open
//! A process under a limit whose account cannot be opened has no state. It is refused what it asks for, as on a card
//! without free memory, and each call looks again. Nothing that a program can take from itself (descriptors, pages,
//! system calls) makes it a program without a limit. The page is part of the library, so that no mapping can be refused.

use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicPtr, AtomicU8};

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;

use apportion_abi::CardUuid;
use apportion_abi::account::ApiFamily;
use apportion_gate::{Card, ContextId, PoolSettlement, ProcessAllocations};

use crate::account::{CardMemoryView, LimitState, MappedAccount};
use crate::driver;
use crate::errno;
use crate::foreign::{Device, OUT_OF_MEMORY, SUCCESS, Status};
use crate::launch_cache;
use crate::spin_lock::SpinLock;

/// What a process knows of itself.
#[derive(Debug)]
pub(crate) struct ProcessState {
    pid: i32,
    standing: LimitState,
    pub(crate) books: SpinLock<ProcessAllocations>,
}

/// A limited process on one of its cards, with the context that a call is made in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeTarget {
    pub(crate) process: &'static ProcessState,
    pub(crate) account: &'static MappedAccount,
    pub(crate) card: Card,
    pub(crate) context: ContextId,
}

/// Where a call that takes memory is made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChargeScope {
    /// Nothing is counted here.
    Free,
    /// It is to be charged.
    Charged(ChargeTarget),
    /// A limit applies that cannot be read.
    Closed,
}

/// The wiped page: all zero in a child.
#[repr(C, align(4096))]
struct WipeOnForkPage {
    /// Written by: whoever needs it first. Read by: every hook. AcqRel.
    process: AtomicPtr<ProcessState>,
    /// Whether the kernel wipes the page at a fork. A child asks again. It is here and not beside the page, so that a
    /// process has one page less to be given by the kernel.
    /// Written by: whoever asks first, always the same. Read by: every hook. Relaxed: there is no process until it is
    /// known.
    wipes: AtomicU8,
}

static PAGE: WipeOnForkPage = WipeOnForkPage {
    process: AtomicPtr::new(ptr::null_mut()),
    wipes: AtomicU8::new(NOT_ASKED),
};

/// What [`WipeOnForkPage::wipes`] says before anybody asked, and then.
const NOT_ASKED: u8 = 0;
const WIPED: u8 = 1;
const KEPT: u8 = 2;

/// This process; `None` while a limit applies whose account cannot be opened, and where there is no memory for the state.
pub(crate) fn current() -> Option<&'static ProcessState> {
    let cell = cell();
    let known = cell.load(Acquire);
    // SAFETY: a state that was entered in the page is never freed.
    if let Some(process) = unsafe { known.as_ref() }
        && process.is_here()
    {
        return Some(process);
    }
    let _kept = errno::ErrnoGuard::now();
    let fresh = make()?;
    match cell.compare_exchange(known, fresh, AcqRel, Acquire) {
        // SAFETY: it was just made, and is entered now, so it is never freed.
        Ok(_) => unsafe { fresh.as_ref() },
        Err(first) => {
            // SAFETY: nobody else has seen it.
            unsafe { discard(fresh) };
            // SAFETY: a state that was entered in the page is never freed.
            unsafe { first.as_ref() }
        }
    }
}

fn cell() -> &'static AtomicPtr<ProcessState> {
    if PAGE.wipes.load(Relaxed) == NOT_ASKED {
        let _kept = errno::ErrnoGuard::now();
        let page = (&raw const PAGE).cast_mut().cast();
        // Kernels before 4.14 refuse this; there the pid in the state tells a child from its parent.
        // SAFETY: the page is a static of its own, whole, and its content after a fork is a valid value.
        let advised =
            unsafe { libc::madvise(page, size_of::<WipeOnForkPage>(), libc::MADV_WIPEONFORK) };
        let answer = if advised == 0 { WIPED } else { KEPT };
        PAGE.wipes.store(answer, Relaxed);
    }
    &PAGE.process
}

fn make() -> Option<*mut ProcessState> {
    // What a parent knew of its functions is nothing to a child.
    launch_cache::forget();
    let process = ProcessState {
        // SAFETY: the call cannot fail.
        pid: unsafe { libc::getpid() },
        standing: LimitState::find()?,
        books: SpinLock::new(ProcessAllocations::default()),
    };
    // SAFETY: the layout is not empty.
    let place = unsafe { alloc(Layout::new::<ProcessState>()) }.cast::<ProcessState>();
    if place.is_null() {
        return None;
    }
    // SAFETY: the place is fresh and of the right layout.
    unsafe { place.write(process) };
    Some(place)
}

/// # Safety
/// `process` must come from [`make`] and be unknown to anybody else.
unsafe fn discard(process: *mut ProcessState) {
    // SAFETY: the caller guarantees that it is a valid value.
    unsafe { process.drop_in_place() };
    // SAFETY: it was allocated with this layout.
    unsafe { dealloc(process.cast(), Layout::new::<ProcessState>()) };
}

impl ProcessState {
    /// Whether this is the process that made the state. The wiped page has answered that already where
    /// the kernel wipes pages; asking is for those that do not, and costs one system call there only.
    fn is_here(&self) -> bool {
        // SAFETY: the call cannot fail.
        PAGE.wipes.load(Relaxed) == WIPED || self.pid == unsafe { libc::getpid() }
    }

    /// The account, if this process is under a limit that it can read.
    pub(crate) fn account(&self) -> Option<&MappedAccount> {
        match &self.standing {
            LimitState::Limited(account) => Some(account),
            LimitState::Unlimited => None,
        }
    }

    /// The account's card of a device.
    pub(crate) fn card_of(&self, device: Device) -> Option<Card> {
        let account = self.account()?;
        account.card(CardUuid(driver::uuid_of(device)?))
    }

    /// The context that calls are made in, entered if it is not known yet.
    ///
    /// One that nobody saw being created came by a way of the driver's own. If it is the first on its
    /// card, the driver has taken what a context takes; that is charged now.
    fn context(&self, account: &MappedAccount) -> Option<(ContextId, Card)> {
        let handle = driver::current_context()? as u64;
        let known = self.books.lock().context(handle);
        if known.is_some() {
            return known;
        }
        let device = driver::current_device()?;
        let card = self.card_of(device)?;
        let (entered, reserve, libraries) = {
            let mut books = self.books.lock();
            let is_first = books.reserves(card) == 0;
            let reserve = if is_first {
                account.reserve(card).first
            } else {
                0
            };
            let is_new = books.open_context(handle, (card, device), reserve, false);
            match is_new {
                true => (books.context(handle), reserve, books.libraries_in(handle)),
                false => (books.context(handle), 0, 0),
            }
        };
        self.adjust(card, 0, reserve.saturating_add(libraries));
        if reserve > 0 {
            account.set_reserve(card, reserve);
        }
        entered
    }

    /// Charges a card. When it is full, first the dead are taken out of the account, then this process's
    /// pools give back what they do not use.
    pub(crate) fn charge(&self, card: Card, bytes: u64) -> bool {
        self.charge_for(ApiFamily::Other, card, bytes)
    }

    /// The same for a family of calls whose refusals are counted apart.
    pub(crate) fn charge_for(&self, api: ApiFamily, card: Card, bytes: u64) -> bool {
        let Some(account) = self.account() else {
            return true;
        };
        let fits = || account.charge(card, bytes);
        let fits_after_the_dead = || account.retire_for(card, bytes) && fits();
        let granted = fits()
            || fits_after_the_dead()
            || (crate::hooks::pool::trim_all(self, card) && (fits() || fits_after_the_dead()));
        if !granted {
            account.deny(card, api, bytes);
        }
        granted
    }

    /// What the program is told of memory that could not be charged. More than the whole card has the driver refuses,
    /// too, and for a reason of its own, if the arguments are wrong in another way: then `ask` asks it, and gives back
    /// what it gave should it give anything.
    pub(crate) fn refusal(&self, card: Card, bytes: u64, ask: impl FnOnce() -> Status) -> Status {
        let is_absurd = |account: &MappedAccount| account.is_absurd(card, bytes);
        match self.account().is_some_and(is_absurd).then(ask) {
            None | Some(SUCCESS) => OUT_OF_MEMORY,
            Some(refused) => refused,
        }
    }

    /// Says how much of what is charged is for code.
    pub(crate) fn show_modules(&self, card: Card) {
        let total = self.books.lock().loads.on(card);
        if let Some(account) = self.account() {
            account.set_modules(card, total);
        }
    }

    /// Gives back what was charged.
    pub(crate) fn uncharge(&self, card: Card, bytes: u64) {
        if let Some(account) = self.account()
            && bytes > 0
        {
            account.uncharge(card, bytes);
        }
    }

    /// Turns a charge for `before` bytes into one for `after`, which the driver has already taken.
    pub(crate) fn adjust(&self, card: Card, before: u64, after: u64) {
        match after > before {
            true => {
                if let Some(account) = self.account() {
                    account.charge_anyway(card, after.saturating_sub(before));
                }
            }
            false => self.uncharge(card, before.saturating_sub(after)),
        }
    }

    /// Does what a pool's settlement says.
    pub(crate) fn settle(&self, settled: PoolSettlement) {
        match settled {
            PoolSettlement::Even => {}
            PoolSettlement::GiveBack(card, bytes) => self.uncharge(card, bytes),
            PoolSettlement::Take(card, bytes) => self.adjust(card, 0, bytes),
        }
    }

    /// A card as the program is to see it.
    pub(crate) fn view(&self, card: Card, total: u64, free: u64) -> Option<CardMemoryView> {
        crate::hooks::exported_descriptors::look(self);
        Some(self.account()?.view(card, total, free))
    }
}

/// The ground that the current context is on.
pub(crate) fn ground() -> ChargeScope {
    let Some(process) = current() else {
        return ChargeScope::Closed;
    };
    match &process.standing {
        LimitState::Unlimited => ChargeScope::Free,
        LimitState::Limited(account) => match process.context(account) {
            None => ChargeScope::Free,
            Some((context, card)) => ChargeScope::Charged(ChargeTarget {
                process,
                account,
                card,
                context,
            }),
        },
    }
}

/// This process, if what it takes is charged.
pub(crate) fn limited() -> Option<&'static ProcessState> {
    current().filter(|process| process.account().is_some())
}

/// Whether a limit applies to this process, which may not have been found out yet.
pub(crate) fn may_be_limited() -> bool {
    current().is_none_or(|process| !matches!(process.standing, LimitState::Unlimited))
}

/// This process, for a call that takes memory; else what the program is told.
pub(crate) fn to_charge() -> Result<&'static ProcessState, Status> {
    current().ok_or(OUT_OF_MEMORY)
}
