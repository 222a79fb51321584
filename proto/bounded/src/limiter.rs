//! Limits connections, in all and for each source. The oldest goes first.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::warn;

/// How often a warning about dropped connections is logged.
const AGAIN: Duration = Duration::from_secs(60);

/// How many connections are allowed.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections from all sources together.
    pub total: usize,
    /// From one source.
    pub per_source: usize,
}

/// What counts as one source: an IPv4 address, an IPv6 /64 network, or a user of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionSource {
    /// An address, or a network by its first address.
    Network(IpAddr),
    /// A user id, behind a Unix socket.
    User(u32),
}

impl From<IpAddr> for ConnectionSource {
    /// A client with one IPv6 address usually has the other 2^64 of its network.
    fn from(from: IpAddr) -> Self {
        Self::Network(match from.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                let network = u128::from(address) & !u128::from(u64::MAX);
                Ipv6Addr::from(network).into()
            }
            address => address,
        })
    }
}

impl fmt::Display for ConnectionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(f),
            Self::User(number) => write!(f, "user {number}"),
        }
    }
}

/// The permits of one listener.
#[derive(Clone, Debug)]
pub struct ConnectionLimiter {
    name: &'static str,
    bounds: ConnectionLimits,
    table: Arc<Mutex<PermitTable>>,
}

/// A permit. Dropping it frees the place.
#[derive(Debug)]
pub struct ConnectionPermit {
    number: u64,
    table: Arc<Mutex<PermitTable>>,
    lost: oneshot::Receiver<()>,
}

/// The permits in use. Numbers grow, so the first is the oldest.
#[derive(Debug, Default)]
struct PermitTable {
    next: u64,
    held: BTreeMap<u64, HeldPermit>,
    dropped: u64,
    last_warning: Option<Instant>,
}

#[derive(Debug)]
struct HeldPermit {
    source: ConnectionSource,
    /// Dropping it notifies the holder of the permit.
    _lose: oneshot::Sender<()>,
}

impl ConnectionLimiter {
    /// A limiter with these bounds. The name is for warnings.
    #[must_use]
    pub fn new(name: &'static str, bounds: ConnectionLimits) -> Self {
        Self {
            name,
            bounds,
            table: Arc::default(),
        }
    }

    /// A permit for a connection from this source. Another connection may lose its permit for it.
    #[must_use]
    pub fn take(&self, from: impl Into<ConnectionSource>) -> ConnectionPermit {
        let source = from.into();
        let (lose, lost) = oneshot::channel();
        let mut table = lock(&self.table);
        if let Some(number) = table.leaves(source, self.bounds) {
            table.held.remove(&number);
            table.dropped += 1;
            if table
                .last_warning
                .is_none_or(|last_warning| last_warning.elapsed() > AGAIN)
            {
                table.last_warning = Some(Instant::now());
                let dropped = table.dropped;
                warn!(listener = self.name, from = %source, dropped, "Too many connections, the oldest are dropped");
            }
        }
        let number = table.next;
        table.next += 1;
        table.held.insert(
            number,
            HeldPermit {
                source,
                _lose: lose,
            },
        );
        ConnectionPermit {
            number,
            table: self.table.clone(),
            lost,
        }
    }

    /// The listener's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How many connections have lost their permits.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        lock(&self.table).dropped
    }
}

impl ConnectionPermit {
    /// Waits until the permit goes to another connection.
    pub async fn lost(&mut self) {
        std::future::poll_fn(|context| self.poll_lost(context)).await;
    }

    /// Like `lost`, for pollers.
    pub fn poll_lost(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Nothing is ever sent; the sender's drop is the message.
        Pin::new(&mut self.lost).poll(context).map(|_| ())
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        lock(&self.table).held.remove(&self.number);
    }
}

impl PermitTable {
    /// Whose permit a new connection gets, if none is free for it: the oldest of its own source if that has reached
    /// its bound, else the oldest of the source with the most permits.
    fn leaves(&self, newcomer: ConnectionSource, bounds: ConnectionLimits) -> Option<u64> {
        let mut sources: BTreeMap<ConnectionSource, (usize, u64)> = BTreeMap::new();
        for (number, held) in &self.held {
            sources.entry(held.source).or_insert((0, *number)).0 += 1;
        }
        match sources.get(&newcomer) {
            Some((count, oldest)) if *count >= bounds.per_source => return Some(*oldest),
            Some(_) | None => {}
        }
        if self.held.len() < bounds.total {
            return None;
        }
        let most = sources
            .into_values()
            .max_by_key(|(count, oldest)| (*count, std::cmp::Reverse(*oldest)));
        most.map(|(_, oldest)| oldest)
    }
}

/// A panic elsewhere leaves the table consistent, because each change is one step.
fn lock(table: &Mutex<PermitTable>) -> MutexGuard<'_, PermitTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn is_lost(permit: &mut ConnectionPermit) -> bool {
        permit.lost.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    const FEW: ConnectionLimits = ConnectionLimits {
        total: 4,
        per_source: 3,
    };

    #[test]
    fn a_source_with_its_part_loses_its_own_oldest() {
        let limiter = ConnectionLimiter::new("test", FEW);
        let mut other = limiter.take(address(1));
        let mut own: Vec<_> = (0..4).map(|_| limiter.take(address(2))).collect();
        assert!(!is_lost(&mut other));
        let lost: Vec<_> = own.iter_mut().map(is_lost).collect();
        assert_eq!(lost, [true, false, false, false]);
        assert_eq!(limiter.dropped(), 1);
    }

    #[test]
    fn whoever_has_most_makes_room_for_a_newcomer() {
        let limiter = ConnectionLimiter::new("test", FEW);
        let mut first = limiter.take(address(1));
        let mut many: Vec<_> = (0..3).map(|_| limiter.take(address(2))).collect();
        let mut newcomer = limiter.take(address(3));
        assert!(!is_lost(&mut first) && !is_lost(&mut newcomer));
        assert!(is_lost(&mut many[0]));
    }

    #[test]
    fn a_seat_is_free_when_its_holder_leaves() {
        let limiter = ConnectionLimiter::new("test", FEW);
        for last in 0..100 {
            drop(limiter.take(address(last)));
        }
        assert_eq!(limiter.dropped(), 0);
        assert!(lock(&limiter.table).held.is_empty());
    }

    #[test]
    fn an_ipv6_network_is_one_source_and_a_mapped_address_is_what_it_maps() {
        let of = |text: &str| ConnectionSource::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("::1"), of("::2"));
    }
}
