//! The calls of the cases, by the names of the KAI functions that they stand for.

use anyhow::{Context, Result, bail};
use apportion_groups::{
    GroupingError, GroupingInput, GroupingRule, GroupingSettings, KindDefaults, OTHER, ObjectStore,
    ObjectView, OwnerKindEntry, ReplicaRoles, TABLE, kai_cases,
};
use serde_json::{Value, json};

use super::{case_json, checks};

/// The outcome of a call.
#[derive(Debug)]
pub(crate) struct CallOutcome {
    pub(crate) error: Option<String>,
    result: Value,
    /// The arguments after the call, which may have changed them.
    args: Vec<Value>,
}

impl CallOutcome {
    /// An outcome of a call that changes no arguments.
    pub(crate) fn new(error: Option<String>, result: Value) -> Self {
        Self {
            error,
            result,
            args: Vec::new(),
        }
    }

    pub(crate) fn result(&self) -> &Value {
        &self.result
    }

    pub(super) fn at<'a>(&'a self, path: &str) -> Result<Vec<Option<&'a Value>>, String> {
        if let Some(rest) = path.strip_prefix("arg") {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            if let Ok(number) = rest[..end].parse::<usize>() {
                let arg = self.args.get(number).unwrap_or(&Value::Null);
                return checks::follow(arg, &rest[end..]);
            }
        }
        checks::follow(&self.result, path)
    }
}

pub(super) fn perform(step: &Value) -> Result<CallOutcome> {
    let listed = |field: &str| step[field].as_array().cloned().unwrap_or_default();
    let cluster = listed("cluster_objects");
    let settings = settings(&step["settings"], &cluster);
    let objects: ObjectStore = cluster.into_iter().collect();
    let mut args = listed("args");
    let asked = CallContext {
        step,
        objects: &objects,
        settings: &settings,
    };
    let (error, result) = match asked.answer(&mut args)? {
        Ok(result) => (None, result),
        Err(error) => (Some(error.to_string()), Value::Null),
    };
    Ok(CallOutcome {
        error,
        result,
        args,
    })
}

fn settings(given: &Value, cluster: &[Value]) -> GroupingSettings {
    let text = |field: &str, default: &str| given[field].as_str().unwrap_or(default).to_owned();
    let usual = GroupingSettings::default();
    let config_map = &given["defaults_configmap"];
    let defaults = cluster.iter().map(ObjectView::new).find(|object| {
        object.kind() == "ConfigMap"
            && config_map["name"].as_str() == Some(object.name())
            && config_map["namespace"].as_str() == Some(object.namespace())
    });
    GroupingSettings {
        queue_label: text("queue_label_key", &usual.queue_label),
        node_pool_label: text("node_pool_label_key", &usual.node_pool_label),
        gang_knative: given["gang_schedule"].as_bool().unwrap_or(true),
        keeps_old_names: given["search_for_legacy_pod_groups"] == true,
        defaults: defaults
            .and_then(|found| KindDefaults::parse(found).ok())
            .unwrap_or_default(),
        kartas: given.get("karta").cloned().into_iter().collect(),
    }
}

/// The inputs of a call.
struct CallContext<'a> {
    step: &'a Value,
    objects: &'a ObjectStore,
    settings: &'a GroupingSettings,
}

type CallResult = std::result::Result<Value, GroupingError>;

impl CallContext<'_> {
    fn answer(&self, args: &mut [Value]) -> Result<CallResult> {
        let taken = args.to_vec();
        let arg = |number: usize| taken.get(number).unwrap_or(&Value::Null);
        let object = |number: usize| ObjectView::new(arg(number));
        let call = self.step["call"]
            .as_str()
            .context("a step without a call")?;
        Ok(match call {
            "pod_group" => return self.pod_group(),
            "buildSubGroups" => {
                let parts = kai_cases::leader_worker_sub_groups;
                parts(object(0), object(1), count(arg(2)))
                    .map(|parts| case_json::sub_groups(&parts))
            }
            "parseGroveSubGroup" => {
                let gang = json!({"metadata": {"namespace": arg(2), "name": arg(3)}});
                let topology = arg(4).as_str().unwrap_or_default();
                let index = arg(1)
                    .as_u64()
                    .and_then(|index| usize::try_from(index).ok())
                    .unwrap_or_default();
                kai_cases::parse_sub_group(arg(0), index, ObjectView::new(&gang), topology)
                    .map(|part| case_json::sub_group(&part))
            }
            "parsePodReference" => kai_cases::parse_pod_reference(arg(0))
                .map(|pod| json!({"namespace": pod.namespace, "name": pod.name})),
            "calcPodGroupPreemptibilityWithDefaults" => {
                let owners = arg(0).as_array().map_or(&[][..], Vec::as_slice);
                let found = self.workload(owners, object(1)).preemptibility();
                let given = arg(2).as_str().or(arg(2)["preemptibility"].as_str());
                Ok(found
                    .map_or(given.unwrap_or_default(), |word| word.text())
                    .into())
            }
            "calcPodGroupPreemptionDelay" => {
                let owners = arg(0).as_array().map_or(&[][..], Vec::as_slice);
                let delay = self.workload(owners, object(1)).preemption_delay();
                Ok(delay.map(apportion_kubernetes::show_duration).into())
            }
            "CalcPodGroupPriorityClass" => {
                let owner = [arg(0).clone()];
                let workload = self.workload(&owner, object(1));
                let default = arg(2).as_str().unwrap_or_default();
                Ok(workload.priority_class(default).into())
            }
            "getDefaultPriorityClassNameForKind" => Ok(self.default_class(arg(0)).into()),
            "parseConfigMapDataToDefaultConfigs" => KindDefaults::parse(object(0)).map(|read| {
                read.entries()
                    .iter()
                    .map(|entry| {
                        json!({"typeName": entry.kind, "group": entry.api_group,
                        "priorityName": entry.priority_class,
                        "preemptibility": entry.preemptibility.map(|word| word.text())})
                    })
                    .collect()
            }),
            "shouldUseSubGroups" => {
                let text = |number| arg(number).as_str().unwrap_or_default();
                Ok((!self.objects.is_flat(text(0), text(1))).into())
            }
            "launcherPodExists" => Ok(kai_cases::launcher_exists(object(0), self.objects).into()),
            "handleDelayedLauncherPolicy" => {
                let members = count(&arg(1)["minAvailable"]);
                let without = kai_cases::without_delayed_launcher;
                without(object(0), self.objects, members).map(|members| {
                    args[1]["minAvailable"] = members.into();
                    Value::Null
                })
            }
            "IsSparkPod" => Ok(kai_cases::is_spark(object(0)).into()),
            "propagateMetadataDownChain" => {
                propagate(args);
                Ok(Value::Null)
            }
            other => bail!("the call '{other}' is not known"),
        })
    }

    fn workload<'b>(&'b self, owners: &'b [Value], pod: ObjectView<'b>) -> GroupingInput<'b> {
        let chain = owners.iter().map(ObjectView::new).collect();
        GroupingInput::new(pod, chain, self.objects, self.settings)
    }

    fn default_class(&self, kind: &Value) -> String {
        let text = |names: [&str; 2]| names.iter().find_map(|name| kind[name].as_str());
        let (name, group) = match kind.as_str() {
            Some(text) => text.split_once('.').unwrap_or((text, "")),
            None => (
                text(["kind", "Kind"]).unwrap_or_default(),
                text(["group", "Group"]).unwrap_or_default(),
            ),
        };
        let found = self.settings.defaults.of(group, name);
        found
            .map(|found| found.priority_class.clone())
            .unwrap_or_default()
    }

    fn pod_group(&self) -> Result<CallResult> {
        let step = self.step;
        let pod = ObjectView::new(&step["pod"]);
        let owner = match &step["owner"] {
            Value::Null => pod,
            owner => ObjectView::new(owner),
        };
        let others = step["other_owners"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let workload = GroupingInput {
            owner,
            ..self.workload(others, pod)
        };
        let roles: Vec<&str> = step["settings"]["mandatory_replicas"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let row = self.row(&roles)?;
        let group = apportion_groups::group_by(&row, &workload);
        Ok(group.map(|group| case_json::group(&group)))
    }

    /// The table row that a grouper of KAI corresponds to.
    fn row<'b>(&'b self, roles: &'b [&'b str]) -> Result<OwnerKindEntry<'b>> {
        let kind = match self.step["grouper"].as_str().unwrap_or_default() {
            "default" => "StatefulSet",
            "job" => "Job",
            "cronjob" => "CronJob",
            "jobset" => "JobSet",
            "lws" => "LeaderWorkerSet",
            "pytorch" => "PyTorchJob",
            "tensorflow" => "TFJob",
            "xgboost" => "XGBoostJob",
            "jax" => "JAXJob",
            "mpi" => "MPIJob",
            "notebook" => "Notebook",
            "ray_cluster" => "RayCluster",
            "ray_job" => "RayJob",
            "ray_service" => "RayService",
            "knative" => "Service",
            "deployment" => "Deployment",
            "podjob" | "spark" => "Pod",
            "spotrequest" => "SPOTRequest",
            "aml" => "AmlJob",
            "runaijob" => "RunaiJob",
            "grove" => "PodCliqueSet",
            "skip_top_owner" => "Workflow",
            "karta" => return Ok(OTHER),
            "hub" => {
                return Ok(*apportion_groups::row_of(ObjectView::new(
                    &self.step["owner"],
                )));
            }
            "kubeflow_distributed" => {
                let field = self.step["settings"]["replica_specs_field"].as_str();
                let field = field.context("no field for the replica specs")?;
                return distributed(field, roles);
            }
            other => bail!("the grouper '{other}' is not known"),
        };
        row_of_kind(kind)
    }
}

fn row_of_kind(kind: &str) -> Result<OwnerKindEntry<'static>> {
    let found = TABLE.iter().find(|row| row.kind == kind);
    found.copied().with_context(|| format!("no row for {kind}"))
}

/// The row of TFJob, with its roles in another field.
fn distributed<'a>(field: &'a str, mandatory: &'a [&'a str]) -> Result<OwnerKindEntry<'a>> {
    let row = row_of_kind("TFJob")?;
    let GroupingRule::Replicas(replicas) = row.rule else {
        bail!("the row of TFJob counts no replicas");
    };
    Ok(OwnerKindEntry {
        rule: GroupingRule::Replicas(ReplicaRoles {
            field,
            mandatory,
            ..replicas
        }),
        ..row
    })
}

fn count(value: &Value) -> u32 {
    let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
    count.unwrap_or_default()
}

/// The first argument is a list of owners, nearest first, or one owner that inherits from the others.
fn propagate(args: &mut [Value]) {
    let inherit = kai_cases::inherit_from_skipped;
    if let Some(Value::Array(chain)) = args.first_mut() {
        for above in (1..chain.len()).rev() {
            let skipped = chain[above].clone();
            inherit(&mut chain[above - 1], ObjectView::new(&skipped));
        }
        return;
    }
    let Some((next, others)) = args.split_first_mut() else {
        return;
    };
    for other in others {
        match other {
            Value::Array(all) => all
                .iter()
                .for_each(|one| inherit(next, ObjectView::new(one))),
            one => inherit(next, ObjectView::new(one)),
        }
    }
}
