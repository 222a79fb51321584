//! Jobs that are a map of roles (Kubeflow's training operator): all replicas of all roles start together.
//!
//! Who states a minimum knows better than the sum: the run policy first, then the elastic policy.

use crate::group::PodGroup;
use crate::malformed::Malformed;
use crate::object::Object;
use crate::table::{Replicas, Row};
use crate::workload::Workload;

const RUN_POLICY: [&str; 4] = ["spec", "runPolicy", "schedulingPolicy", "minAvailable"];
const ELASTIC_POLICY: [&str; 3] = ["spec", "elasticPolicy", "minReplicas"];

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
        let mut group = workload.plain(row.priority);
        group.min_member = match stated_minimum(workload.owner)? {
            Some(stated) => stated,
            None => self.sum(workload.owner)?,
        };
        (self.refine)(workload, &mut group)?;
        Ok(group)
    }

    fn sum(&self, owner: Object<'_>) -> Result<u32, Malformed> {
        let path = format!("spec.{}", self.field);
        let roles = owner
            .map(&["spec", self.field])
            .filter(|roles| !roles.is_empty())
            .ok_or_else(|| Malformed::unset(owner, &path))?;
        if let Some(missing) = self
            .mandatory
            .iter()
            .find(|role| !roles.contains_key(**role))
        {
            return Err(Malformed::unset(owner, &format!("{path}.{missing}")));
        }
        let mut sum = 0_u32;
        for role in roles.keys() {
            let of_role = ["spec", self.field, role, "replicas"];
            let wrong = |why| Malformed::field(owner, &of_role.join("."), why);
            let replicas = replicas(owner, self.field, role)?;
            if replicas == 0 {
                return Err(wrong("a role has at least one replica"));
            }
            sum = sum
                .checked_add(replicas)
                .ok_or_else(|| wrong("that is too many"))?;
        }
        Ok(sum)
    }
}

/// How many replicas a role has; the operator makes one where nothing is said.
pub(crate) fn replicas(owner: Object<'_>, field: &str, role: &str) -> Result<u32, Malformed> {
    let stated = owner.count(&["spec", field, role, "replicas"])?;
    Ok(stated.unwrap_or(1))
}

fn stated_minimum(owner: Object<'_>) -> Result<Option<u32>, Malformed> {
    Ok(owner.count(&RUN_POLICY)?.or(owner.count(&ELASTIC_POLICY)?))
}
