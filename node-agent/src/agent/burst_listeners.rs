//! Hears the programs that ask for more.
//!
//! A program wakes the agent through the FIFO of its account. A task for each FIFO empties it and tells the agent's loop
//! which account to look at. It lets at most [`WAKES`] wakes pass in each [`PERIOD`], so a program that does nothing but
//! ask costs the agent little, and delays only itself. The channel to the loop is bounded, too.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use apportion_abi::account::BurstTicket;
use apportion_abi::{Bytes, CardUuid};
use apportion_ledger::{AllocationId, BurstRequest};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::abandoned_requests::AbandonedRequests;
use crate::account::burst::OpenRequest;

/// How many wakes of one account are passed on in each [`PERIOD`].
const WAKES: u32 = 64;
const PERIOD: Duration = Duration::from_millis(50);
/// How many wakes may wait for the agent's loop.
const QUEUE: usize = 64;
/// How long a program may take to use what it waited for, before others that ask get it.
pub(super) const SETTLING: Duration = Duration::from_millis(100);

/// An account whose programs ask for more.
pub(super) struct BurstWake {
    pub(super) id: AllocationId,
    pub(super) at: Instant,
}

/// A request of an account, while the agent decides.
#[derive(Clone, Debug)]
pub(super) struct PendingRequest {
    pub(super) id: AllocationId,
    pub(super) request: OpenRequest,
    pub(super) since: Instant,
    /// The samples that were taken since.
    pub(super) samples: u8,
}

impl PendingRequest {
    pub(super) fn ask(&self) -> BurstRequest {
        BurstRequest {
            id: self.id.clone(),
            card: self.request.card,
            wanted: self.request.wanted,
        }
    }

    /// What it was given, until its program uses it.
    pub(super) fn raised(&self) -> ((CardUuid, AllocationId), RaisedAllowance) {
        let raised = RaisedAllowance {
            wanted: self.request.wanted,
            ticket: self.request.ticket,
            until: Instant::now() + SETTLING,
        };
        ((self.request.card, self.id.clone()), raised)
    }

    /// Adds a later request of the same account for the same card. One answer is for both.
    pub(super) fn join(&mut self, later: OpenRequest) {
        let wanted = self.request.wanted.max(later.wanted);
        self.request = OpenRequest { wanted, ..later };
    }
}

/// An allowance that was raised for a request, and that its program may not have used yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct RaisedAllowance {
    /// What the program waited for.
    pub(super) wanted: Bytes,
    pub(super) ticket: BurstTicket,
    pub(super) until: Instant,
}

/// The FIFOs of all elastic accounts, and the requests that wait.
pub(super) struct BurstListeners {
    wake: mpsc::Sender<BurstWake>,
    woken: mpsc::Receiver<BurstWake>,
    tasks: BTreeMap<AllocationId, AbortHandle>,
    /// The requests that wait for a sample, or for raised allowances to be used.
    pub(super) pending: Vec<PendingRequest>,
    /// The allowances that were raised, and that programs may not have used yet.
    pub(super) raised: BTreeMap<(CardUuid, AllocationId), RaisedAllowance>,
    /// The requests whose programs were killed while they asked.
    pub(super) abandoned: AbandonedRequests,
}

impl Default for BurstListeners {
    fn default() -> Self {
        let (wake, woken) = mpsc::channel(QUEUE);
        Self {
            wake,
            woken,
            tasks: BTreeMap::new(),
            pending: Vec::new(),
            raised: BTreeMap::new(),
            abandoned: AbandonedRequests::default(),
        }
    }
}

impl BurstListeners {
    /// The next account whose programs ask, or one that has waited long enough for another program. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> BurstWake {
        let waiting = self.pending.first();
        let settled = self.raised.values().map(|raised| raised.until).min();
        let Some((first, settled)) = waiting.zip(settled) else {
            return next_of(&mut self.woken).await;
        };
        tokio::select! {
            woken = next_of(&mut self.woken) => woken,
            () = tokio::time::sleep_until(settled.into()) => BurstWake {
                id: first.id.clone(),
                at: first.since,
            },
        }
    }

    /// What the programs of a card wait for and do not use yet.
    pub(super) fn settling(&self, card: CardUuid) -> BTreeMap<AllocationId, Bytes> {
        let here = self.raised.iter().filter(|((of, _), _)| *of == card);
        let wanted = here.map(|((_, id), raised)| (id.clone(), raised.wanted));
        wanted.collect()
    }

    /// Whether the program of another allocation does not use yet what it was given on the card.
    pub(super) fn is_another_settling(&self, id: &AllocationId, card: CardUuid) -> bool {
        let mut raised = self.raised.keys();
        raised.any(|(of, other)| *of == card && other != id)
    }

    /// Stops to listen to an account.
    pub(super) fn forget(&mut self, id: &AllocationId) {
        if let Some(task) = self.tasks.remove(id) {
            task.abort();
        }
        self.pending.retain(|pending| pending.id != *id);
        self.raised.retain(|(_, of), _| of != id);
        self.abandoned.forget(id);
    }

    /// Listens to an account.
    pub(super) fn listen(&mut self, id: &AllocationId, fifo: OwnedFd) -> io::Result<()> {
        let fifo = Receiver::from_owned_fd(fifo)?;
        let task = tokio::spawn(pass_on(id.clone(), fifo, self.wake.clone()));
        if let Some(earlier) = self.tasks.insert(id.clone(), task.abort_handle()) {
            earlier.abort();
        }
        Ok(())
    }

    /// The accounts that it listens to.
    pub(super) fn accounts(&self) -> Vec<AllocationId> {
        self.tasks.keys().cloned().collect()
    }

    /// The other accounts that asked meanwhile. Those who ask at the same time are decided together.
    pub(super) fn others(&mut self) -> impl Iterator<Item = BurstWake> + '_ {
        std::iter::from_fn(|| self.woken.try_recv().ok())
    }
}

async fn next_of(woken: &mut mpsc::Receiver<BurstWake>) -> BurstWake {
    match woken.recv().await {
        Some(woken) => woken,
        None => std::future::pending().await,
    }
}

/// Passes on that a FIFO was written to, until the agent ends.
async fn pass_on(id: AllocationId, fifo: Receiver, wake: mpsc::Sender<BurstWake>) {
    let (mut begun, mut count) = (Instant::now(), 0);
    let mut buffer = [0; 512];
    while fifo.readable().await.is_ok() {
        let at = Instant::now();
        match fifo.try_read(&mut buffer) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Ok(_) | Err(_) => return,
        }
        let woken = BurstWake { id: id.clone(), at };
        if wake.send(woken).await.is_err() {
            return;
        }
        if begun.elapsed() >= PERIOD {
            (begun, count) = (at, 0);
        }
        count += 1;
        if count >= WAKES {
            tokio::time::sleep(PERIOD.saturating_sub(begun.elapsed())).await;
        }
    }
}
