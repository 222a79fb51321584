//! The driver's own memory limits by control group (R615 and later). As in the driver's `misc` backend, the limits are
//! a flat map: the nearest group with a limit decides for a process, and a parent's limit does not bound children that
//! have their own. A limit below what the group holds under its present one is refused, and so is one of the root
//! group (`memacctSetLimits` in `src/nvidia/src/kernel/mem_mgr/memacct.c` of the open kernel modules 615.71.09). Soft
//! limits are stored and reported, but evict nothing.

use std::collections::BTreeMap;

use crate::machine::Machine;
use crate::{DriverGeneration, GroupView, MemoryLimits, NO_LIMIT, NvmlRefusal, Pid};

/// The soft and hard limits of groups, by card.
#[derive(Debug, Default)]
pub(crate) struct GroupLimits {
    limits: BTreeMap<(usize, String), (u64, u64)>,
}

impl GroupLimits {
    /// The nearest group with a limit on the card, from `group` upwards.
    fn deciding<'a>(&self, card: usize, group: &'a str) -> Option<(&'a str, u64)> {
        ancestors(group).find_map(|group| {
            let (_, hard) = self.limits.get(&(card, group.to_owned()))?;
            Some((group, *hard))
        })
    }
}

impl Machine {
    /// The driver's hard limit for a process on a card, where one is set.
    #[must_use]
    pub fn driver_limit(&self, pid: Pid, card: usize) -> Option<u64> {
        self.group_view(pid, card).map(|view| view.limit)
    }

    /// What a process may still allocate under the driver's limit, where one is set.
    pub(crate) fn driver_memory_left(&self, pid: Pid, card: usize) -> Option<u64> {
        let view = self.group_view(pid, card)?;
        Some(view.limit.saturating_sub(view.used))
    }

    /// The limit that applies to a process, and the memory of all processes under it.
    pub(crate) fn group_view(&self, pid: Pid, card: usize) -> Option<GroupView> {
        let process = self.processes.get(&pid)?;
        let (group, limit) = self.group_limits.deciding(card, &process.peer.cgroup)?;
        Some(GroupView {
            limit,
            used: self.used_by_group(card, group),
        })
    }

    pub(crate) fn set_memory_limits(
        &mut self,
        pid: Pid,
        card: u32,
        group: String,
        soft: u64,
        hard: u64,
    ) -> Result<(), NvmlRefusal> {
        let card = self.limitable(card)?;
        self.needs_root(pid)?;
        let total = self.cards[card].config.memory;
        if soft > hard || soft > total || (hard != NO_LIMIT && hard > total) {
            return Err(NvmlRefusal::InvalidArgument);
        }
        if group == "/" {
            return Err(NvmlRefusal::NotSupported);
        }
        let key = (card, group);
        if self.group_limits.limits.contains_key(&key) && self.used_by_group(card, &key.1) > hard {
            return Err(NvmlRefusal::InvalidArgument);
        }
        if (soft, hard) == (0, NO_LIMIT) {
            self.group_limits.limits.remove(&key);
        } else {
            self.group_limits.limits.insert(key, (soft, hard));
        }
        Ok(())
    }

    pub(crate) fn get_memory_limits(
        &self,
        card: u32,
        group: String,
    ) -> Result<MemoryLimits, NvmlRefusal> {
        let card = self.limitable(card)?;
        let used = self.used_by_group(card, &group);
        let limits = self.group_limits.limits.get(&(card, group));
        let (soft, hard) = *limits.ok_or(NvmlRefusal::NotFound)?;
        Ok(MemoryLimits { soft, hard, used })
    }

    fn limitable(&self, card: u32) -> Result<usize, NvmlRefusal> {
        if self.driver != DriverGeneration::R615 {
            return Err(NvmlRefusal::NotSupported);
        }
        let card = usize::try_from(card).map_err(|_| NvmlRefusal::InvalidArgument)?;
        self.cards.get(card).ok_or(NvmlRefusal::InvalidArgument)?;
        Ok(card)
    }

    fn needs_root(&self, pid: Pid) -> Result<(), NvmlRefusal> {
        let process = self.processes.get(&pid);
        let is_root = process.is_some_and(|process| process.peer.uid == 0);
        is_root.then_some(()).ok_or(NvmlRefusal::NoPermission)
    }

    fn used_by_group(&self, card: usize, group: &str) -> u64 {
        let members = self.processes.iter().filter(|(_, process)| {
            let deciding = self.group_limits.deciding(card, &process.peer.cgroup);
            deciding.is_some_and(|(deciding, _)| deciding == group)
        });
        members.map(|(pid, _)| self.cards[card].held_by(*pid)).sum()
    }
}

/// A group and its ancestors: `/a/b`, `/a`, `/`.
fn ancestors(group: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(group), |group| {
        let (parent, name) = group.rsplit_once('/')?;
        match (parent, name) {
            ("", "") => None,
            ("", _) => Some("/"),
            (parent, _) => Some(parent),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MachineConfig, MachineReply, MachineRequest, PeerIdentity};

    const MIB: u64 = 1 << 20;
    const ROOT: Pid = 1;

    fn machine(driver: DriverGeneration) -> Machine {
        let config = MachineConfig::uniform(1, 16384 * MIB, driver);
        let mut machine = Machine::new(config).expect("the machine can be");
        machine.process_came(ROOT, peer("/"));
        machine
    }

    fn peer(cgroup: &str) -> PeerIdentity {
        PeerIdentity {
            cgroup: cgroup.to_owned(),
            uid: 0,
        }
    }

    fn set(machine: &mut Machine, group: &str, hard: u64) -> Result<(), NvmlRefusal> {
        machine.set_memory_limits(ROOT, 0, group.to_owned(), 0, hard)
    }

    /// Creates a context on the card. False if that fails.
    fn take_context(machine: &mut Machine, pid: Pid) -> bool {
        let answer = machine.apply(pid, MachineRequest::PrimaryRetain(0));
        matches!(answer.reply, MachineReply::Created(_))
    }

    #[test]
    fn a_group_is_in_all_groups_above_it() {
        let groups: Vec<_> = ancestors("/a/b").collect();
        assert_eq!(groups, ["/a/b", "/a", "/"]);
        assert_eq!(ancestors("/").count(), 1);
    }

    #[test]
    fn the_nearest_limit_decides_and_its_group_shares_it() {
        let mut machine = machine(DriverGeneration::R615);
        set(&mut machine, "/pods", 100 * MIB).expect("the limit is in order");
        set(&mut machine, "/pods/one", 800 * MIB).expect("the limit is in order");
        for pid in 10..13 {
            machine.process_came(pid, peer("/pods/one/main"));
        }
        machine.process_came(13, peer("/pods/two"));
        machine.process_came(14, peer("/elsewhere"));
        let went_well: Vec<_> = (10..15)
            .map(|pid| take_context(&mut machine, pid))
            .collect();
        assert_eq!(went_well, [true, true, false, false, true]);
        assert_eq!(machine.driver_limit(12, 0), Some(800 * MIB));
        assert_eq!(machine.driver_limit(14, 0), None);
    }

    #[test]
    fn a_cleared_limit_is_not_found() {
        let mut machine = machine(DriverGeneration::R615);
        set(&mut machine, "/pod", MIB).expect("the limit is in order");
        let read = machine.get_memory_limits(0, "/pod".to_owned());
        assert_eq!(read.map(|limits| limits.hard), Ok(MIB));
        set(&mut machine, "/pod", NO_LIMIT).expect("the limit is in order");
        let read = machine.get_memory_limits(0, "/pod".to_owned());
        assert_eq!(read, Err(NvmlRefusal::NotFound));
    }

    #[test]
    fn refuses_a_limit_below_what_the_group_holds() {
        let mut machine = machine(DriverGeneration::R615);
        set(&mut machine, "/pod", 800 * MIB).expect("the limit is in order");
        machine.process_came(10, peer("/pod"));
        assert!(take_context(&mut machine, 10));
        let below = set(&mut machine, "/pod", MIB);
        assert_eq!(below, Err(NvmlRefusal::InvalidArgument));
        assert_eq!(machine.driver_limit(10, 0), Some(800 * MIB));
        assert_eq!(set(&mut machine, "/pod", NO_LIMIT), Ok(()));
    }

    #[test]
    fn the_root_group_has_no_limit() {
        let mut machine = machine(DriverGeneration::R615);
        let of_root = set(&mut machine, "/", 800 * MIB);
        assert_eq!(of_root, Err(NvmlRefusal::NotSupported));
    }

    #[test]
    fn refuses_limits_that_make_no_sense() {
        let mut machine = machine(DriverGeneration::R615);
        let above_card = set(&mut machine, "/pod", 16385 * MIB);
        assert_eq!(above_card, Err(NvmlRefusal::InvalidArgument));
        let soft_above_hard = machine.set_memory_limits(ROOT, 0, "/pod".to_owned(), 2, 1);
        assert_eq!(soft_above_hard, Err(NvmlRefusal::InvalidArgument));
    }

    #[test]
    fn only_root_sets_limits_and_only_on_a_driver_that_has_them() {
        let mut old = machine(DriverGeneration::R580);
        assert_eq!(set(&mut old, "/pod", MIB), Err(NvmlRefusal::NotSupported));
        let mut machine = machine(DriverGeneration::R615);
        machine.process_came(
            20,
            PeerIdentity {
                uid: 1000,
                ..peer("/")
            },
        );
        let by_user = machine.set_memory_limits(20, 0, "/pod".to_owned(), 0, MIB);
        assert_eq!(by_user, Err(NvmlRefusal::NoPermission));
    }
}
