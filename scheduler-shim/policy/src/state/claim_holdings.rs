//! Which claims have which devices.
//!
//! An allocation counts as long as a task has it. Two accounts are kept: one of the devices that somebody has now, and
//! one without those that are about to be given up. Both follow from the tasks alone, so undoing a change of a task
//! undoes it here too.

use std::sync::Arc;

use crate::claim_devices::ClaimDevices;
use crate::cluster::{DeviceAccount, DeviceGrant};
use crate::snapshot::ClusterSnapshot;
use crate::task_state::TaskState;

/// Which claims have which devices.
#[derive(Debug, Default)]
pub(crate) struct ClaimHoldings {
    /// The allocations of each claim.
    claims: Vec<Vec<HeldDevices>>,
    /// Nothing where devices are only counted.
    accounts: Option<DeviceAccounts>,
}

#[derive(Debug)]
struct DeviceAccounts {
    /// What somebody has.
    now: Box<dyn DeviceAccount>,
    /// What somebody has who does not leave.
    soon: Box<dyn DeviceAccount>,
}

/// An allocation, and how many tasks have it.
#[derive(Clone, Debug)]
struct HeldDevices {
    grant: DeviceGrant,
    stays: i64,
    leaves: i64,
}

impl Clone for ClaimHoldings {
    fn clone(&self) -> Self {
        let accounts = self.accounts.as_ref();
        Self {
            claims: self.claims.clone(),
            accounts: accounts.map(|accounts| DeviceAccounts {
                now: accounts.now.copy(),
                soon: accounts.soon.copy(),
            }),
        }
    }
}

impl ClaimHoldings {
    /// The holdings of no tasks. Claims that keep their devices whatever happens have them already.
    pub(super) fn of(facts: &ClusterSnapshot<'_>) -> Self {
        let Some(allocator) = facts.allocator() else {
            return Self::default();
        };
        let mut holdings = Self {
            claims: vec![Vec::new(); facts.claims().len()],
            accounts: Some(DeviceAccounts {
                now: allocator.account(),
                soon: allocator.account(),
            }),
        };
        for (number, claim) in facts.claims().iter().enumerate() {
            if let Some(grant) = &claim.claim.allocation
                && claim.claim.is_kept
            {
                holdings.note(number, grant, false, 1);
            }
        }
        holdings
    }

    /// Counts the devices of a task, or takes them back.
    pub(super) fn update(&mut self, devices: &ClaimDevices, leaves: bool, count: i64) {
        for (claim, grant) in &devices.0 {
            self.note(*claim, grant, leaves, count);
        }
    }

    fn note(&mut self, claim: usize, grant: &DeviceGrant, leaves: bool, count: i64) {
        let (Some(all), Some(accounts)) = (self.claims.get_mut(claim), &mut self.accounts) else {
            return;
        };
        let known = all.iter().position(|held| Arc::ptr_eq(&held.grant, grant));
        let place = known.unwrap_or_else(|| {
            all.push(HeldDevices {
                grant: Arc::clone(grant),
                stays: 0,
                leaves: 0,
            });
            all.len() - 1
        });
        let held = &mut all[place];
        let before = (held.stays + held.leaves > 0, held.stays > 0);
        if leaves {
            held.leaves += count;
        } else {
            held.stays += count;
        }
        let after = (held.stays + held.leaves > 0, held.stays > 0);
        move_to(&mut *accounts.now, grant, before.0, after.0);
        move_to(&mut *accounts.soon, grant, before.1, after.1);
        if held.stays == 0 && held.leaves == 0 {
            all.remove(place);
        }
    }

    /// The devices that a claim has and that another task than this keeps.
    pub(crate) fn staying(&self, claim: usize, task: &TaskState) -> Option<&DeviceGrant> {
        let all = self.claims.get(claim)?;
        let found = all.iter().find(|held| {
            let stays = task.stays_on().is_some();
            let mut own = task.devices.0.iter().filter(|_| stays);
            let is_own = own.any(|(_, grant)| Arc::ptr_eq(grant, &held.grant));
            held.stays > i64::from(is_own)
        });
        found.map(|held| &held.grant)
    }

    /// Whether a claim has devices that it is about to give up.
    pub(crate) fn is_leaving(&self, claim: usize) -> bool {
        let mut all = self.claims.get(claim).into_iter().flatten();
        all.any(|held| held.leaves > 0)
    }

    /// Devices for claims on a node that nobody has.
    pub(crate) fn allocate_now(
        &self,
        node: &str,
        claims: &[&str],
    ) -> Result<Vec<DeviceGrant>, String> {
        self.allocate(node, claims, |accounts| &*accounts.now)
    }

    /// Devices for claims on a node that nobody has, or that are about to be given up.
    pub(crate) fn allocate_soon(
        &self,
        node: &str,
        claims: &[&str],
    ) -> Result<Vec<DeviceGrant>, String> {
        self.allocate(node, claims, |accounts| &*accounts.soon)
    }

    /// Whether `allocate_soon` would find devices.
    pub(crate) fn can_allocate_soon(&self, node: &str, claims: &[&str]) -> bool {
        let accounts = self.accounts.as_ref().filter(|_| !claims.is_empty());
        accounts.is_none_or(|accounts| accounts.soon.can_allocate(node, claims))
    }

    fn allocate(
        &self,
        node: &str,
        claims: &[&str],
        account: impl FnOnce(&DeviceAccounts) -> &dyn DeviceAccount,
    ) -> Result<Vec<DeviceGrant>, String> {
        match &self.accounts {
            Some(accounts) if !claims.is_empty() => account(accounts).allocate(node, claims),
            Some(_) | None => Ok(Vec::new()),
        }
    }

    /// Whether a node reaches the devices of an allocation.
    pub(crate) fn reaches(&self, node: &str, grant: &DeviceGrant) -> bool {
        let accounts = self.accounts.as_ref();
        accounts.is_some_and(|accounts| accounts.soon.reaches(node, &**grant))
    }
}

fn move_to(account: &mut dyn DeviceAccount, grant: &DeviceGrant, before: bool, after: bool) {
    match (before, after) {
        (false, true) => account.add(&**grant),
        (true, false) => account.remove(&**grant),
        (true, true) | (false, false) => {}
    }
}
