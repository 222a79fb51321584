//! MPIJobs, whose launcher may be created only after its workers are ready.
//!
//! Such a launcher cannot be part of the gang before it exists: the workers would wait for it, and it for them. A
//! launcher that is being deleted does not count, since its successor waits for the workers again.

use crate::error::{GroupingError, counted};
use crate::group::DerivedPodGroup;
use crate::kinds::kubeflow::some_replicas;
use crate::object::ObjectView;
use crate::objects::ObjectStore;
use crate::workload::GroupingInput;

const FIELD: &str = "mpiReplicaSpecs";
const JOB_NAME: &str = "training.kubeflow.org/job-name";
const JOB_ROLE: &str = "training.kubeflow.org/job-role";

pub(crate) fn refine(
    workload: &GroupingInput<'_>,
    group: &mut DerivedPodGroup,
) -> Result<(), GroupingError> {
    let owner = workload.owner;
    group.min_member = without_delayed_launcher(owner, workload.objects, group.min_member)?;
    Ok(())
}

/// How many of `members`, launcher included, must start together: without the launcher while it waits for the
/// workers.
pub fn without_delayed_launcher(
    job: ObjectView<'_>,
    objects: &ObjectStore,
    members: u32,
) -> Result<u32, GroupingError> {
    let waits = job.string(&["spec", "launcherCreationPolicy"])? == Some("WaitForWorkersReady");
    if !waits || launcher_exists(job, objects) {
        return Ok(members);
    }
    let launchers = some_replicas(job, FIELD, "Launcher")?;
    counted(job, "minAvailable", i64::from(members) - launchers)
}

/// Whether the job has a launcher pod that is not being deleted.
pub fn launcher_exists(job: ObjectView<'_>, objects: &ObjectStore) -> bool {
    objects.pods(job.namespace()).any(|pod: ObjectView<'_>| {
        pod.given_label(JOB_NAME) == Some(job.name())
            && pod.label(JOB_ROLE) == Some("launcher")
            && pod.at(&["metadata", "deletionTimestamp"]).is_none()
    })
}
