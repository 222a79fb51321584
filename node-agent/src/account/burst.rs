//! The part of an elastic share's account in which its programs ask for more: see `apportion_abi::account`.
//!
//! A program can damage its `burst` file. Then nobody answers, and it keeps the allowance that it has.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

use apportion_abi::account::{
    AccountOpenError, BurstMap, BurstTicket, CardBurst, LimitsMap, NewBurst,
};
use apportion_abi::{Bytes, CardUuid, SHARE_UNIT, paths};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use super::{AccountCard, AccountError, AccountFiles, c_path};

/// A request that the agent has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenRequest {
    pub(crate) card: CardUuid,
    pub(crate) ticket: BurstTicket,
    /// The allowance that the program wants.
    pub(crate) wanted: Bytes,
}

/// The file of an existing account, if it is intact.
pub(super) fn adopt(folder: &Path, limits: &LimitsMap) -> Option<BurstMap> {
    let map = BurstMap::adopt(&c_path(folder, paths::BURST_FILE)?).ok()?;
    map.fits(limits).then_some(map)
}

/// Creates the file, if the limit of any card is above its guarantee.
pub(super) fn create(
    folder: &Path,
    cards: &[AccountCard],
) -> Result<Option<BurstMap>, AccountError> {
    if cards.iter().all(|card| card.burst.ceiling == Bytes::ZERO) {
        return Ok(None);
    }
    let bursts: Vec<_> = cards.iter().map(|card| card.burst).collect();
    let name = c_path(folder, paths::BURST_FILE).ok_or(AccountOpenError::NotAnAccount);
    let map = name.and_then(|name| BurstMap::create(&name, &bursts));
    map.map(Some).map_err(|source| AccountError::File {
        path: folder.join(paths::BURST_FILE),
        source,
    })
}

/// Creates the FIFO through which programs wake the agent.
pub(super) fn create_fifo(folder: &Path) -> Result<(), AccountError> {
    let fifo = folder.join(paths::WAKE_FIFO);
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, fifo.as_path(), FileType::Fifo, mode, 0).map_err(|error| AccountError::Folder {
        path: fifo,
        source: error.into(),
    })
}

impl AccountFiles {
    /// Opens the FIFO through which programs wake the agent; `None` if they have no reason to. The agent opens it for
    /// both directions, so that it never sees its end when no program has it open.
    pub(crate) fn open_fifo(&self) -> Option<io::Result<OwnedFd>> {
        (self.burst.is_some() || self.asks_about_calls()).then_some(())?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fifo = self.folder.join(paths::WAKE_FIFO);
        Some(rustix::fs::open(fifo, flags, Mode::empty()).map_err(io::Error::from))
    }

    /// The requests of all cards that are not answered.
    pub(crate) fn open_requests(&self) -> Vec<OpenRequest> {
        let bursts = self.burst.iter().flat_map(BurstMap::cards);
        let open = self.cards.iter().zip(bursts);
        open.filter_map(|(card, words): (&CardUuid, &CardBurst)| {
            let (ticket, wanted) = words.take()?;
            Some(OpenRequest {
                card: *card,
                ticket,
                wanted,
            })
        })
        .collect()
    }

    /// Answers a request, and all before it.
    pub(crate) fn answer(&self, request: &OpenRequest) {
        if let Some(words) = self.burst_of(request.card) {
            words.answer(request.ticket);
        }
    }

    /// How many requests, of this one and all before it, are not over. In a damaged file none are.
    pub(crate) fn open_until(&self, card: CardUuid, ticket: BurstTicket) -> u32 {
        let words = self.burst_of(card);
        words.map_or(0, |words| words.open_until(ticket))
    }

    /// Publishes the allowance that could be had now.
    pub(crate) fn set_reachable(&self, card: CardUuid, reachable: Bytes) {
        if let Some(words) = self.burst_of(card) {
            words.set_reachable(reachable);
        }
    }

    /// Lowers the allowance on a card to what is used, but not below `least`. Returns the new allowance; `None` if
    /// the account is damaged, so that nobody knows what is used, or if there is nothing to withdraw.
    ///
    /// A program publishes a claim, and reads the limit after that. So either its claim is in the sum that is read here
    /// after the limit was lowered, or the program sees the lower limit. The sum may contain claims that are withdrawn
    /// right away. Then some of the allowance stays, and goes the next time.
    ///
    /// After a resize more may be in use than is allowed. Then nothing is withdrawn, and the ledger goes on holding what
    /// is used.
    pub(crate) fn withdraw(&self, card: CardUuid, least: Bytes) -> Option<Bytes> {
        let place = self.position(card)?;
        let words = self.limits.cards().get(place)?;
        if !self.is_in_place() {
            return None;
        }
        let usage = self.usage.usage();
        let before = words.limits();
        let floor = || {
            let used = usage.claimed(place).plus(before.overhead);
            let used = used.rounded_up(SHARE_UNIT);
            (used <= before.limit).then(|| used.max(least).min(before.limit))
        };
        let first = floor()?;
        words.set_limit(first);
        fence(SeqCst);
        let last = floor().map(|last| last.max(first));
        let limit = last.unwrap_or(before.limit);
        if limit > first {
            words.set_limit(limit);
        }
        last
    }

    /// Writes the guarantee and the limit of an elastic share.
    pub(crate) fn set_range(&self, card: CardUuid, range: NewBurst) {
        if let Some(words) = self.burst_of(card) {
            words.set_range(range);
        }
    }

    /// The files that programs can write, and so must be able to open.
    pub(super) fn written_by_programs(&self) -> impl Iterator<Item = &'static str> + use<> {
        let has_burst = self.limits.has_burst();
        let has_fifo = has_burst || self.asks_about_calls();
        let burst = has_burst.then_some(paths::BURST_FILE);
        let fifo = has_fifo.then_some(paths::WAKE_FIFO);
        [paths::USAGE_FILE].into_iter().chain(burst).chain(fifo)
    }

    /// Truncates a `burst` file that programs have extended, as the `usage` file. Returns whether it was extended.
    pub(super) fn cut_back_burst(&self) -> bool {
        let Some(burst) = &self.burst else {
            return false;
        };
        let path = self.folder.join(paths::BURST_FILE);
        let size = burst.size() as u64;
        fs::symlink_metadata(&path).is_ok_and(|found| found.is_file() && found.len() > size)
            && fs::File::options()
                .write(true)
                .open(path)
                .is_ok_and(|file| file.set_len(size).is_ok())
    }

    fn burst_of(&self, card: CardUuid) -> Option<&CardBurst> {
        let burst = self.burst.as_ref().filter(|burst| !burst.is_damaged())?;
        burst.cards().get(self.position(card)?)
    }
}
