//! Jobs that are a map of roles (Kubeflow's training operator): all replicas of all roles start together.
//!
//! A run policy that states a minimum knows better than the sum.

use crate::group::PodGroup;
use crate::malformed::{Malformed, counted};
use crate::object::Object;
use crate::table::{Replicas, Row};
use crate::workload::Workload;

const RUN_POLICY: [&str; 4] = ["spec", "runPolicy", "schedulingPolicy", "minAvailable"];

/// For kinds whose groups have no parts.
pub(crate) fn no_parts(_: &Workload<'_>, _: &mut PodGroup) -> Result<(), Malformed> {
    Ok(())
}

impl Replicas<'_> {
    pub(crate) fn group(
        &self,
        row: &Row<'_>,
        workload: &Workload<'_>,
    ) -> Result<PodGroup, Malformed> {
        let owner = workload.owner;
        let mut group = workload.plain(row.priority);
        let members = match owner.whole(&RUN_POLICY)? {
            Some(stated) => stated,
            None => self.sum(owner)?,
        };
        group.min_member = counted(owner, "minAvailable", members)?;
        (self.refine)(workload, &mut group)?;
        Ok(group)
    }

    /// A role that says no number, or none, is a mistake; one below zero may be made up for by another.
    fn sum(&self, owner: Object<'_>) -> Result<i64, Malformed> {
        let path = ["spec", self.field];
        let missing = || Malformed::unset(owner, &path.join("."));
        let roles = owner.field(&path)?.ok_or_else(missing)?;
        let roles = roles.as_object().ok_or_else(missing)?;
        if let Some(role) = self
            .mandatory
            .iter()
            .find(|role| !roles.contains_key(**role))
        {
            return Err(Malformed::unset(
                owner,
                &format!("{}.{role}", path.join(".")),
            ));
        }
        let mut sum = 0_i64;
        for role in roles.keys() {
            sum = sum.saturating_add(some_replicas(owner, self.field, role)?);
        }
        if sum <= 0 {
            let why = format!("its roles have {sum} replicas in all. Must be greater than 0");
            return Err(Malformed::field(owner, &path.join("."), why));
        }
        Ok(sum)
    }
}

/// How many replicas a role has, where it must have some.
pub(crate) fn some_replicas(owner: Object<'_>, field: &str, role: &str) -> Result<i64, Malformed> {
    let path = ["spec", field, role, "replicas"];
    match owner.whole(&path)? {
        None | Some(0) => Err(Malformed::field(
            owner,
            &path.join("."),
            "a role has at least one replica",
        )),
        Some(replicas) => Ok(replicas),
    }
}
