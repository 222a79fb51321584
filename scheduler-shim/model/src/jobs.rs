//! Builds the policy's jobs: pods by group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apportion_groups::{GroupPreemptibility, ObjectView};
use apportion_policy::cluster::{Job, Task};

use super::gang;
use super::inventory::ObjectInventory;
use super::object_warnings::{ObjectWarnings, called};
use super::parsed_objects::ParsedPod;
use super::pod_group_terms::{PodGroupTerms, grace};

/// The priority of a group whose class does not exist.
pub(crate) const PRIORITY: i32 = 50;
/// From this priority on, a group is preemptible only if it says so.
const FIRST_NON_PREEMPTIBLE: i32 = 100;

/// The jobs while they are built.
#[derive(Debug, Default)]
pub(crate) struct JobBuilder {
    jobs: BTreeMap<String, Job>,
    broken: BTreeMap<String, String>,
}

impl JobBuilder {
    /// Adds a pod to its group.
    pub(crate) fn add(
        &mut self,
        (pod, read): (ObjectView<'_>, &ParsedPod),
        mut task: Task,
        group: &PodGroupTerms,
        at: &JobReadContext<'_>,
        warnings: &mut ObjectWarnings,
    ) -> Result<(), String> {
        let name = format!("{}/{}", group.namespace, group.name);
        if let Some(why) = self.broken.get(&name) {
            return Err(why.clone());
        }
        if !self.jobs.contains_key(&name) {
            let job = at.job(&name, group, warnings).map_err(|why| {
                let object = called("PodGroup", &group.namespace, &group.name);
                warnings.add(object, format!("{why}; its pods wait"));
                let why = format!("its pod group {} cannot be used: {why}", group.name);
                self.broken.insert(name.clone(), why.clone());
                why
            })?;
            self.jobs.insert(name.clone(), job);
        }
        let Some(job) = self.jobs.get_mut(&name) else {
            return Err("its pod group is unknown".to_owned());
        };
        // A derived group is as old as its pods, whenever its object was written.
        if group.has_top_owner || !at.has_object(group) {
            job.created = job.created.min(read.created.unwrap_or(at.now));
        }
        if task.status.is_allocated() && !group.has_last_start {
            // Until the kubelet says when a bound pod started, it starts now. Its minimum run time protects it.
            job.last_start = job.last_start.max(Some(read.started.unwrap_or(at.now)));
        }
        task.set = gang::set_of(pod.name(), &task.labels, group);
        job.tasks.push(task);
        Ok(())
    }

    pub(crate) fn finish(self) -> Vec<Arc<Job>> {
        self.jobs.into_values().map(Arc::new).collect()
    }
}

/// The objects and the time for reading a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobReadContext<'a> {
    pub(crate) inventory: &'a ObjectInventory,
    pub(crate) now: Duration,
}

impl JobReadContext<'_> {
    fn job(
        &self,
        name: &str,
        group: &PodGroupTerms,
        warnings: &mut ObjectWarnings,
    ) -> Result<Job, String> {
        let priority = self.priority(group, warnings);
        let read = self.inventory.pod_group(&group.namespace, &group.name);
        for message in read.into_iter().flat_map(|read| &read.ignored) {
            warnings.add(
                called("PodGroup", &group.namespace, &group.name),
                format!("its {message}"),
            );
        }
        Ok(Job {
            name: name.to_owned(),
            queue: group.queue.to_string(),
            priority,
            is_preemptible: match group.preemptibility {
                Some(GroupPreemptibility::Preemptible) => true,
                Some(GroupPreemptibility::NonPreemptible) => false,
                None => priority < FIRST_NON_PREEMPTIBLE,
            },
            created: read.and_then(|read| read.created).unwrap_or(self.now),
            last_start: group.last_start,
            last_eviction: group.last_eviction,
            preemption_delay: group.preemption_delay,
            stale_since: group.stale_since,
            grace: match read.and_then(|read| read.grace.as_deref()) {
                Some(written) => grace(written),
                None => group.grace,
            },
            root: gang::tree(group, self.inventory)?,
            // Most jobs have one task, and there are thousands of them.
            tasks: Vec::with_capacity(1),
        })
    }

    fn has_object(&self, group: &PodGroupTerms) -> bool {
        let read = self.inventory.pod_group(&group.namespace, &group.name);
        read.is_some()
    }

    fn priority(&self, group: &PodGroupTerms, warnings: &mut ObjectWarnings) -> i32 {
        let class = &group.priority_class;
        match priority_of(class, self.inventory) {
            Some(value) => value,
            None => {
                warnings.add(
                    called("PodGroup", &group.namespace, &group.name),
                    format!(
                        "its priority class {class} does not exist; priority {PRIORITY} is used"
                    ),
                );
                PRIORITY
            }
        }
    }
}

/// The priority of a class, if it exists.
pub(crate) fn priority_of(class: &str, inventory: &ObjectInventory) -> Option<i32> {
    let found = inventory.find("PriorityClass", "", class)?;
    let value = found.json()["value"].as_i64()?;
    i32::try_from(value).ok()
}
