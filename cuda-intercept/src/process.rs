//! The state of this process. It is created when first needed and abandoned by a child of `fork`.
//!
//! A child inherits neither the parent's memory on the card nor the right to the parent's process record. Also, a
//! thread that does not exist in the child may have held one of the parent's locks. So the child starts with nothing.
//! The pointer to the state lies in a page that the kernel wipes at a fork, and inherited state is never used.
//!
//! # Decision: closed until the account is open
//! A process with a limit whose account cannot be opened has no state. It is refused memory as on a full card, and
//! each call tries again. No resource that a program can take away from itself (descriptors, pages, system calls)
//! frees it from its limit. The page is part of the library, so that it needs no mapping that could fail.

use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8};

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;

use apportion_abi::CardUuid;
use apportion_gate::{Card, ContextId, PoolSettlement, ProcessAllocations};

use crate::account::{LimitState, MappedAccount};
use crate::call_watch;
use crate::driver;
use crate::errno;
use crate::foreign::{Device, OUT_OF_MEMORY, SUCCESS, Status};
use crate::launch_cache;
use crate::spin_lock::SpinLock;

/// The state of a process.
#[derive(Debug)]
pub(crate) struct ProcessState {
    pid: i32,
    limit_state: LimitState,
    pub(crate) allocations: SpinLock<ProcessAllocations>,
}

/// Where to charge: a limited process, one of its cards, and the context of the call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeTarget {
    pub(crate) process: &'static ProcessState,
    pub(crate) account: &'static MappedAccount,
    pub(crate) card: Card,
    pub(crate) context: ContextId,
}

/// Whether a call that takes memory is charged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChargeScope {
    /// No limit applies, or there is no current context on a card of the account.
    Free,
    /// The call is charged.
    Charged(ChargeTarget),
    /// A limit applies, but the account cannot be opened.
    Closed,
}

/// The page that the kernel wipes at a fork: all zero in a child. The kernel wipes whole pages, so this is as large as
/// the largest page that the machine's kernels use: 4 KiB on x86-64, and 4, 16 or 64 KiB on aarch64.
#[cfg_attr(target_arch = "x86_64", repr(C, align(4096)))]
#[cfg_attr(target_arch = "aarch64", repr(C, align(65536)))]
struct WipeOnForkPage {
    /// Written by: the first call that needs the state. Read by: every hook. AcqRel.
    process: AtomicPtr<ProcessState>,
    /// Whether the kernel wipes the page at a fork. A child asks again. It is in the page itself, so that the library
    /// needs one page less.
    /// Written by: the first call, always with the same value. Read by: every hook. Relaxed: the state is created
    /// only after it is known.
    wipes: AtomicU8,
    /// Whether the program has opened a library since [`take_opened`].
    /// Written by: `dlopen` (set), the first call of the driver in an epoch (clear). Relaxed: a library's calls come
    /// after it was opened.
    has_opened: AtomicBool,
}

static PAGE: WipeOnForkPage = WipeOnForkPage {
    process: AtomicPtr::new(ptr::null_mut()),
    wipes: AtomicU8::new(NOT_ASKED),
    has_opened: AtomicBool::new(false),
};

/// The values of [`WipeOnForkPage::wipes`]: unknown until the first call, then the kernel's answer.
const NOT_ASKED: u8 = 0;
const WIPED: u8 = 1;
const KEPT: u8 = 2;

/// This process's state. `None` while a limit applies whose account cannot be opened, or if there is no memory for
/// the state.
pub(crate) fn current() -> Option<&'static ProcessState> {
    let cell = cell();
    let known = cell.load(Acquire);
    // SAFETY: state that the page points to is never freed.
    if let Some(process) = unsafe { known.as_ref() }
        && process.is_here()
    {
        return Some(process);
    }
    let _errno = errno::ErrnoGuard::now();
    let fresh = make()?;
    match cell.compare_exchange(known, fresh, AcqRel, Acquire) {
        Ok(_) => {
            // SAFETY: the state was just made. The page points to it now, so it is never freed.
            let process = unsafe { fresh.as_ref() }?;
            if let Some(account) = process.account() {
                call_watch::watch(account);
            }
            Some(process)
        }
        Err(first) => {
            // SAFETY: no other thread has seen it.
            unsafe { discard(fresh) };
            // SAFETY: state that the page points to is never freed.
            unsafe { first.as_ref() }
        }
    }
}

/// Notes that the program opens a library.
pub(crate) fn note_opened() {
    PAGE.has_opened.store(true, Relaxed);
}

/// Whether the program has opened a library since the last call of this. A child of `fork` that has opened none itself
/// gets false: it must not read the linker's list, see [`crate::elf`].
pub(crate) fn take_opened() -> bool {
    PAGE.has_opened.load(Relaxed) && PAGE.has_opened.swap(false, Relaxed)
}

fn cell() -> &'static AtomicPtr<ProcessState> {
    if PAGE.wipes.load(Relaxed) == NOT_ASKED {
        let _errno = errno::ErrnoGuard::now();
        let page = (&raw const PAGE).cast_mut().cast();
        // Kernels before 4.14 refuse this. There the pid in the state tells a child from its parent.
        // SAFETY: the range is whole pages of our own static, and all zero is a valid value of it.
        let advised =
            unsafe { libc::madvise(page, size_of::<WipeOnForkPage>(), libc::MADV_WIPEONFORK) };
        let answer = if advised == 0 { WIPED } else { KEPT };
        PAGE.wipes.store(answer, Relaxed);
    }
    &PAGE.process
}

fn make() -> Option<*mut ProcessState> {
    // Handles that the parent cached mean nothing in a child.
    launch_cache::forget();
    let process = ProcessState {
        // SAFETY: the call cannot fail.
        pid: unsafe { libc::getpid() },
        limit_state: LimitState::find()?,
        allocations: SpinLock::new(ProcessAllocations::default()),
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
/// `process` must come from [`make`] and be unknown to all other threads.
unsafe fn discard(process: *mut ProcessState) {
    // SAFETY: the caller guarantees that it is a valid value.
    unsafe { process.drop_in_place() };
    // SAFETY: it was allocated with this layout.
    unsafe { dealloc(process.cast(), Layout::new::<ProcessState>()) };
}

impl ProcessState {
    /// Whether this process made the state. Where the kernel wipes the page, the answer is always yes. Other kernels
    /// need one system call to find out.
    fn is_here(&self) -> bool {
        // SAFETY: the call cannot fail.
        PAGE.wipes.load(Relaxed) == WIPED || self.pid == unsafe { libc::getpid() }
    }

    /// The account, if this process is under a limit that it can read.
    pub(crate) fn account(&self) -> Option<&MappedAccount> {
        match &self.limit_state {
            LimitState::Limited(account) => Some(account),
            LimitState::Unlimited => None,
        }
    }

    /// The index in the account of a device.
    pub(crate) fn card_of(&self, device: Device) -> Option<Card> {
        let account = self.account()?;
        account.card(CardUuid(driver::uuid_of(device)?))
    }

    /// The current context, registered if it is not known yet.
    ///
    /// A context that no hook saw being created was created inside the driver. If it is the first on its card, the
    /// driver has already taken the context's memory, and that is charged now.
    fn context(&self, account: &MappedAccount) -> Option<(ContextId, Card)> {
        let handle = driver::current_context()? as u64;
        let known = self.allocations.lock().context(handle);
        if known.is_some() {
            return known;
        }
        let device = driver::current_device()?;
        let card = self.card_of(device)?;
        let (entered, reserve, libraries) = {
            let mut allocations = self.allocations.lock();
            let is_first = allocations.reserves(card) == 0;
            let reserve = if is_first {
                account.reserve(card).first
            } else {
                0
            };
            let is_new = allocations.open_context(handle, card, device, reserve, false);
            if is_new {
                (
                    allocations.context(handle),
                    reserve,
                    allocations.libraries_in(handle),
                )
            } else {
                (allocations.context(handle), 0, 0)
            }
        };
        self.adjust(card, 0, reserve.saturating_add(libraries));
        if reserve > 0 {
            account.set_reserve(card, reserve);
        }
        entered
    }

    /// The status for memory that could not be charged. The driver also refuses more than the whole card, and its
    /// error may be a different one if other arguments are wrong. So for such sizes `ask` calls the driver, and frees
    /// what it got if the driver granted it.
    pub(crate) fn refusal(&self, card: Card, bytes: u64, ask: impl FnOnce() -> Status) -> Status {
        match self
            .account()
            .is_some_and(|account| account.is_absurd(card, bytes))
            .then(ask)
        {
            None | Some(SUCCESS) => OUT_OF_MEMORY,
            Some(refused) => refused,
        }
    }

    /// Records how much of the charge is for code.
    pub(crate) fn show_modules(&self, card: Card) {
        let total = self.allocations.lock().loads.on(card);
        if let Some(account) = self.account() {
            account.set_modules(card, total);
        }
    }

    /// Takes a charge off.
    pub(crate) fn uncharge(&self, card: Card, bytes: u64) {
        if let Some(account) = self.account()
            && bytes > 0
        {
            account.uncharge(card, bytes);
        }
    }

    /// Changes a charge from `before` to `after` bytes. The driver has already taken the memory.
    pub(crate) fn adjust(&self, card: Card, before: u64, after: u64) {
        if after > before {
            if let Some(account) = self.account() {
                account.charge_anyway(card, after.saturating_sub(before));
            }
        } else {
            self.uncharge(card, before.saturating_sub(after))
        }
    }

    /// Applies the settlement of a pool.
    pub(crate) fn settle(&self, settled: PoolSettlement) {
        match settled {
            PoolSettlement::Even => {}
            PoolSettlement::GiveBack(card, bytes) => self.uncharge(card, bytes),
            PoolSettlement::Take(card, bytes) => self.adjust(card, 0, bytes),
        }
    }
}

/// Whether and where a call in the current context is charged.
pub(crate) fn charge_scope() -> ChargeScope {
    let Some(process) = current() else {
        return ChargeScope::Closed;
    };
    match &process.limit_state {
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

/// This process's state, if it has a limit.
pub(crate) fn limited() -> Option<&'static ProcessState> {
    current().filter(|process| process.account().is_some())
}

/// Whether this process has a limit, or may have one that is not known yet.
pub(crate) fn may_be_limited() -> bool {
    current().is_none_or(|process| !matches!(process.limit_state, LimitState::Unlimited))
}

/// This process's state, for a call that takes memory, or the status to refuse it with.
pub(crate) fn to_charge() -> Result<&'static ProcessState, Status> {
    current().ok_or(OUT_OF_MEMORY)
}
