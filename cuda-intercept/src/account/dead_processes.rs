//! Processes that are in the account but dead: when they are looked for, and among whom.

use core::sync::atomic::Ordering::Relaxed;

use apportion_abi::Bytes;
use apportion_abi::account::{AccountUsage, SlotOwner};

use super::liveness::LivenessProbe;
use super::{MappedAccount, peers, throttle};
use crate::errno;

impl MappedAccount {
    /// Takes dead processes out of the account, for a charge that would otherwise fail. True if the charge is worth
    /// another try. That includes the case that nobody was dead any more, because another process may have been
    /// quicker.
    ///
    /// Scans that cannot help are skipped: if the charge would not fit beside what this process holds itself, and for
    /// processes that have nothing on the card. See [`super::throttle`] for why all others are checked at each such
    /// charge.
    pub(crate) fn retire_for(&self, card: usize, bytes: u64) -> bool {
        let could_fit = self.could_fit(card, bytes);
        if could_fit {
            self.retire(|usage, other| usage.may_count(other, card));
        }
        could_fit
    }

    /// Whether the charge would fit if this process were alone in the account.
    fn could_fit(&self, card: usize, bytes: u64) -> bool {
        let held = self.slot.lock().held.get(card).copied();
        let limits = self.limits.cards().get(card).map(|card| card.limits());
        held.zip(limits).is_some_and(|(held, limits)| {
            Bytes(held).plus(Bytes(bytes)).plus(limits.overhead) <= limits.limit
        })
    }

    /// Takes every dead process out of the account.
    pub(super) fn retire_the_dead(&self) {
        self.retire(|_, _| true);
    }

    /// Takes dead processes that matter out of the account.
    ///
    /// A process whose liveness lock is held counts as alive, except in an occasional full scan: a child that is
    /// forked at the moment when the lock is made keeps the lock.
    fn retire(&self, matters: impl Fn(&AccountUsage<'_>, SlotOwner) -> bool) {
        let _errno = errno::ErrnoGuard::now();
        let usage = self.usage.usage();
        let own = self.slot.lock().owner;
        let mut others = usage
            .processes()
            .filter(|other| Some(other.owner) != own)
            .peekable();
        if others.peek().is_none() {
            return;
        }
        let is_deep = self.deep_scans.is_due();
        let others = others.filter(|other| is_deep || matters(&usage, other.owner));
        let lifelines = if is_deep {
            self.hold_lifeline();
            None
        } else {
            self.path.get().and_then(LivenessProbe::open)
        };
        let here = peers::namespace();
        let dead = others.filter(|other| {
            let lifelines = lifelines.as_ref();
            peers::is_from(other.registration, here)
                && !lifelines.is_some_and(|lifelines| lifelines.is_held(other.owner.number()))
                && peers::is_dead(other.registration, here)
        });
        for process in dead {
            usage.retire(process.owner);
        }
    }

    /// Like `retire_the_dead`, for a query, whose cost must not depend on the other processes: at most once in
    /// [`SCAN`](throttle::LOOK) milliseconds, and whenever this process has waited for a child that ended.
    pub(crate) fn retire_the_dead_in_time(&self) {
        let children = throttle::children();
        let has_lost = self.children.load(Relaxed) != children;
        if self.scans.is_due() || has_lost {
            self.children.store(children, Relaxed);
            self.retire_the_dead();
        }
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "a test may")]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    use apportion_abi::account::{JoinOutcome, LimitsMap, NewCard, ProcessRegistration, UsageMap};
    use apportion_abi::{CardUuid, paths};
    use proptest::prelude::*;

    use super::*;

    const CARDS: usize = 2;
    const MOST: u64 = 100;

    /// Another process in the account. All sizes are in MiB.
    #[derive(Clone, Debug)]
    struct OtherProcess {
        lives: bool,
        claims: [u64; CARDS],
    }

    /// Memory that one process made and others hold, by their indexes.
    #[derive(Clone, Debug)]
    struct SharedAllocation {
        maker: prop::sample::Index,
        holders: Vec<prop::sample::Index>,
        card: usize,
        bytes: u64,
    }

    fn other() -> impl Strategy<Value = OtherProcess> {
        let claim = prop_oneof![Just(0), 0..MOST];
        (any::<bool>(), [claim.clone(), claim])
            .prop_map(|(lives, claims)| OtherProcess { lives, claims })
    }

    fn common() -> impl Strategy<Value = SharedAllocation> {
        let place = any::<prop::sample::Index>;
        let holders = prop::collection::vec(place(), 0..4);
        (place(), holders, 0..CARDS, 1..MOST).prop_map(|(maker, holders, card, bytes)| {
            SharedAllocation {
                maker,
                holders,
                card,
                bytes,
            }
        })
    }

    fn account(folder: &std::path::Path, limit: u64, overhead: u64) -> MappedAccount {
        let at = |file| {
            let path = folder.join(file);
            CString::new(path.as_os_str().as_bytes()).expect("paths hold no zero")
        };
        let card = |number| NewCard {
            uuid: CardUuid([number; 16]),
            total: Bytes(1 << 40),
            limit: Bytes::from_mib(limit),
            context_reserve: Bytes(0),
        };
        UsageMap::create(&at(paths::USAGE_FILE), CARDS).expect("it is new");
        let limits = LimitsMap::create(&at(paths::LIMITS_FILE), &[card(1), card(2)]);
        for card in limits.expect("it is new").cards() {
            card.set_overhead(Bytes::from_mib(overhead));
        }
        MappedAccount::open(folder.as_os_str().as_bytes()).expect("it is good")
    }

    /// A living process is this test's parent; a dead one has a pid that no system assigns.
    fn enter(usage: &AccountUsage<'_>, place: usize, lives: bool) -> SlotOwner {
        let nobody = 0x7fff_0000_u32.saturating_add(u32::try_from(place).expect("they are few"));
        let who = ProcessRegistration {
            pid: if lives {
                std::os::unix::process::parent_id()
            } else {
                nobody
            },
            start_time: 0,
            pid_namespace: peers::namespace(),
        };
        usage.register(who).expect("there is a slot")
    }

    proptest! {
        /// A charge is granted exactly if it fits beside the living processes. The number of others, what they share,
        /// and whether this is a full scan make no difference.
        #[test]
        fn a_charge_is_refused_only_if_it_does_not_fit_beside_the_living(
            own in 0..MOST,
            others in prop::collection::vec(other(), 0..6),
            commons in prop::collection::vec(common(), 0..3),
            (ask, limit, overhead) in (1..MOST, 1..4 * MOST, 0..MOST / 4),
            card in 0..CARDS,
            is_deep in any::<bool>(),
        ) {
            let folder = tempfile::tempdir().expect("room");
            let account = account(folder.path(), limit, overhead);
            if !is_deep {
                prop_assert!(account.deep_scans.is_due());
            }
            account.charge_anyway(card, Bytes::from_mib(own).0);
            let usage = account.usage.usage();
            let owners: Vec<SlotOwner> = (others.iter().enumerate())
                .map(|(place, other)| enter(&usage, place, other.lives))
                .collect();
            let claim = |owner: &SlotOwner, card, bytes| {
                assert!(usage.claim_anyway(*owner, card, Bytes::from_mib(bytes)), "it is in the account");
            };
            for (other, owner) in others.iter().zip(&owners) {
                for (card, bytes) in other.claims.iter().enumerate() {
                    claim(owner, card, *bytes);
                }
            }
            let mut living = own;
            living += others.iter().filter(|other| other.lives).map(|other| other.claims[card]).sum::<u64>();
            for (key, common) in commons.iter().enumerate().filter(|_| !others.is_empty()) {
                let key = u64::try_from(key).expect("they are few") + 1;
                let at = |index: &prop::sample::Index| index.index(others.len());
                let maker = at(&common.maker);
                claim(&owners[maker], common.card, common.bytes);
                prop_assert!(usage.offer(owners[maker], common.card, key, Bytes::from_mib(common.bytes)).is_some());
                for holder in common.holders.iter().map(at) {
                    let joined = usage.join(owners[holder], key, |card| account.limits.cards().get(card));
                    prop_assert!(matches!(joined, JoinOutcome::Joined(_)));
                }
                let mut all = common.holders.iter().map(at).chain([maker]);
                if common.card == card && all.any(|holder| others[holder].lives) {
                    living += common.bytes;
                }
            }
            let asked = Bytes::from_mib(ask).0;
            let charge = || account.charge(card, asked);
            let granted = charge() || (account.retire_for(card, asked) && charge());
            // A limit is a whole number of 2 MiB shares.
            prop_assert_eq!(granted, living + ask + overhead <= limit - limit % 2);
        }
    }
}
