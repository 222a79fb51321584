//! MPIJobs, whose launcher may be made only once its workers are ready.
//!
//! Such a launcher cannot be part of the gang before it exists: the workers would wait for it, and it for
//! them.

use crate::group::PodGroup;
use crate::kinds::kubeflow::replicas;
use crate::malformed::Malformed;
use crate::object::Object;
use crate::objects::Objects;
use crate::workload::Workload;

const FIELD: &str = "mpiReplicaSpecs";
const JOB_NAME: &str = "training.kubeflow.org/job-name";
const JOB_ROLE: &str = "training.kubeflow.org/job-role";

pub(crate) fn refine(workload: &Workload<'_>, group: &mut PodGroup) -> Result<(), Malformed> {
    let owner = workload.owner;
    if !is_launcher_of(workload.pod, owner) {
        group.min_member = without_delayed_launcher(owner, workload.objects, group.min_member)?;
    }
    Ok(())
}

/// The members that must start together, of `members` with the launcher: without it while it waits for
/// the workers.
pub fn without_delayed_launcher(
    job: Object<'_>,
    objects: &Objects,
    members: u32,
) -> Result<u32, Malformed> {
    let waits = job.text(&["spec", "launcherCreationPolicy"]) == Some("WaitForWorkersReady");
    if !waits || launcher_exists(job, objects) {
        return Ok(members);
    }
    match replicas(job, FIELD, "Launcher")? {
        0 => {
            let field = format!("spec.{FIELD}.Launcher.replicas");
            Err(Malformed::field(
                job,
                &field,
                "a role has at least one replica",
            ))
        }
        launchers => Ok(members.saturating_sub(launchers)),
    }
}

/// Whether a pod is there that launches the job.
pub fn launcher_exists(job: Object<'_>, objects: &Objects) -> bool {
    objects
        .pods(job.namespace())
        .any(|pod| is_launcher_of(pod, job))
}

fn is_launcher_of(pod: Object<'_>, job: Object<'_>) -> bool {
    pod.label(JOB_NAME) == Some(job.name()) && pod.label(JOB_ROLE) == Some("launcher")
}
