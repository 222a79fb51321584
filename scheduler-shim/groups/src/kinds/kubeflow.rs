//! Jobs that are a map of roles (Kubeflow's training operator): all replicas of all roles start together.
//!
//! A minimum in the run policy wins over the sum.

use crate::error::{GroupingError, counted};
use crate::group::DerivedPodGroup;
use crate::object::ObjectView;
use crate::table::{OwnerKindEntry, ReplicaRoles};
use crate::workload::GroupingInput;

const RUN_POLICY: [&str; 4] = ["spec", "runPolicy", "schedulingPolicy", "minAvailable"];

/// For kinds whose groups have no subgroups.
pub(crate) fn no_parts(
    _: &GroupingInput<'_>,
    _: &mut DerivedPodGroup,
) -> Result<(), GroupingError> {
    Ok(())
}

impl ReplicaRoles<'_> {
    pub(crate) fn group(
        &self,
        row: &OwnerKindEntry<'_>,
        workload: &GroupingInput<'_>,
    ) -> Result<DerivedPodGroup, GroupingError> {
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

    /// A missing or zero number of replicas is an error; a negative one may be made up for by another role.
    fn sum(&self, owner: ObjectView<'_>) -> Result<i64, GroupingError> {
        let path = ["spec", self.field];
        let missing = || GroupingError::unset(owner, &path.join("."));
        let roles = owner
            .field(&path)?
            .ok_or_else(missing)?
            .as_object()
            .ok_or_else(missing)?;
        if let Some(role) = self
            .mandatory
            .iter()
            .find(|role| !roles.contains_key(**role))
        {
            return Err(GroupingError::unset(
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
            return Err(GroupingError::field(owner, &path.join("."), why));
        }
        Ok(sum)
    }
}

/// The number of replicas of a role that must have some.
pub(crate) fn some_replicas(
    owner: ObjectView<'_>,
    field: &str,
    role: &str,
) -> Result<i64, GroupingError> {
    let path = ["spec", field, role, "replicas"];
    match owner.whole(&path)? {
        None | Some(0) => Err(GroupingError::field(
            owner,
            &path.join("."),
            "a role has at least one replica",
        )),
        Some(replicas) => Ok(replicas),
    }
}
