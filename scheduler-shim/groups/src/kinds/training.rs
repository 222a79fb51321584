//! Training jobs of single vendors.

use serde_json::Value;

use crate::group::PodGroup;
use crate::kinds::batch::keep_old_name;
use crate::malformed::Malformed;
use crate::names::LABEL_TRIAL;
use crate::table::Row;
use crate::workload::Workload;

const NODE_COUNT: [&str; 5] = ["spec", "job", "options", "envs", "AZUREML_NODE_COUNT"];

/// An Azure ML job says in an environment variable how many nodes it runs on.
pub(crate) fn aml_job(row: &Row<'_>, workload: &Workload<'_>) -> Result<PodGroup, Malformed> {
    let mut group = workload.plain(row.priority);
    if let Some(nodes) = workload.owner.at(&NODE_COUNT) {
        group.min_member = whole(nodes).filter(|nodes| *nodes > 0).ok_or_else(|| {
            let why = format!("{nodes} is not a number of nodes");
            Malformed::field(workload.owner, &NODE_COUNT.join("."), why)
        })?;
    }
    Ok(group)
}

/// Environment variables are text in some versions and numbers in others.
fn whole(value: &Value) -> Option<u32> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.or_else(|| value.as_str()?.parse().ok())
}

/// The pods of a run.ai job are trials of a search, each a group of its own: `<trial>-<pod>` is their index.
pub(crate) fn runai_job(row: &Row<'_>, workload: &Workload<'_>) -> Result<PodGroup, Malformed> {
    let mut group = workload.plain(row.priority);
    let index = workload.pod.label(LABEL_TRIAL);
    if let Some((trial, _)) = index.and_then(|index| index.split_once('-')) {
        let owner = workload.owner;
        group.name = format!("pg-{}-{trial}-{}", owner.name(), owner.uid());
    }
    keep_old_name(workload, &mut group);
    Ok(group)
}
