//! Turns Queue objects into the policy's queues, and says what is wrong with them.
//!
//! An unusable queue is left out with a warning, and so is everything below it. The rest of the tree goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apportion_abi::names::{ANNOTATION_QUEUE_BURST_LIMIT, ANNOTATION_QUEUE_SUSPENDS};
use apportion_admission::queue::{burst_limit, not_a_burst_limit, not_a_switch, suspends};
use apportion_groups::ObjectView;
use apportion_kubernetes::{not_a_duration, parse_duration};
use apportion_policy::amounts::UNLIMITED;
use apportion_policy::cluster::{Queue, Quota};
use serde_json::Value;

use super::clock;
use super::inventory::ObjectInventory;
use super::object_warnings::{ObjectWarnings, called};

/// The priority of a queue that names none.
const PRIORITY: i32 = 100;
/// Queues count memory in millions of bytes.
const MEGABYTE: f64 = 1e6;

/// The usable queues, and why the others are not.
#[derive(Debug, Default)]
pub(crate) struct ParsedQueues {
    pub(crate) usable: BTreeMap<String, Queue>,
    pub(crate) unusable: BTreeMap<String, String>,
    /// What is ignored of usable queues, and why.
    pub(crate) ignored: BTreeMap<String, IgnoredFields>,
    /// Usable ones whose pods are suspended before they are evicted.
    pub(crate) suspending: BTreeSet<String>,
}

/// Fields of a queue that are ignored because they cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredFields {
    /// What is wrong with the first of them, in one word.
    pub reason: &'static str,
    /// What is wrong with all of them.
    pub message: String,
}

/// A minimum run time is not a duration.
const INVALID_DURATION: &str = "InvalidDuration";
/// Whether pods are suspended is neither true nor false.
const INVALID_SUSPENSION: &str = "InvalidSuspension";
/// A burst limit is not a number of GPUs.
const INVALID_BURST_LIMIT: &str = "InvalidBurstLimit";

pub(crate) fn queues(
    inventory: &ObjectInventory,
    now: Duration,
    warnings: &mut ObjectWarnings,
) -> ParsedQueues {
    let mut queues = ParsedQueues::default();
    for object in inventory.all("Queue") {
        match queue(object, now) {
            Ok((queue, ignored)) => {
                let name = queue.name.clone();
                if suspends(object.annotation(ANNOTATION_QUEUE_SUSPENDS)) == Some(true) {
                    queues.suspending.insert(name.clone());
                }
                queues.ignored.extend(ignored.map(|fields| (name, fields)));
                queues.usable.insert(queue.name.clone(), queue);
            }
            Err(why) => {
                queues.unusable.insert(object.name().to_owned(), why);
            }
        }
    }
    let circles: Vec<(String, String)> = queues
        .usable
        .keys()
        .filter_map(|name| Some((name.clone(), queues.circle(name)?)))
        .collect();
    for (name, why) in circles {
        queues.leave_out(&name, why);
    }
    while let Some((name, why)) = queues.orphan() {
        queues.leave_out(&name, why);
    }
    for (name, why) in &queues.unusable {
        warnings.add(called("Queue", "", name), format!("{why}; it is ignored"));
    }
    for (name, fields) in &queues.ignored {
        warnings.add(called("Queue", "", name), fields.message.clone());
    }
    queues
}

fn ignored_fields(ignored: &[(&'static str, String)]) -> Option<IgnoredFields> {
    let messages: Vec<&str> = ignored.iter().map(|(_, why)| why.as_str()).collect();
    Some(IgnoredFields {
        reason: ignored.first()?.0,
        message: messages.join("; "),
    })
}

impl ParsedQueues {
    fn leave_out(&mut self, name: &str, why: String) {
        self.usable.remove(name);
        self.unusable.insert(name.to_owned(), why);
    }

    /// The cycle of parents that a queue is part of.
    fn circle(&self, name: &str) -> Option<String> {
        let mut path = vec![name.to_owned()];
        loop {
            let parent = self.usable.get(path.last()?)?.parent.clone()?;
            if parent == name {
                return Some(format!(
                    "its parents form a cycle: {} -> {name}",
                    path.join(" -> ")
                ));
            }
            if path.contains(&parent) {
                return None;
            }
            path.push(parent);
        }
    }

    fn orphan(&self) -> Option<(String, String)> {
        self.usable.values().find_map(|queue| {
            let parent = queue
                .parent
                .as_ref()
                .filter(|name| !self.usable.contains_key(*name))?;
            let why = if self.unusable.contains_key(parent) {
                format!("its parent {parent} is not valid")
            } else {
                format!("its parent {parent} does not exist")
            };
            Some((queue.name.clone(), why))
        })
    }
}

/// A queue, and why some of its fields are ignored.
fn queue(object: ObjectView<'_>, now: Duration) -> Result<(Queue, Option<IgnoredFields>), String> {
    let spec = &object.json()["spec"];
    let resources = &spec["resources"];
    if !resources.is_object() {
        return Err("resources must be specified".to_owned());
    }
    let quota = |resource: &str, unit| quota(resources, resource, unit);
    let text = |field: &str| spec[field].as_str().filter(|text| !text.is_empty());
    let priority = &spec["priority"];
    let mut ignored = Vec::new();
    let mut runtime = |field: &str| match &spec[field] {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        given => {
            let text = given
                .as_str()
                .map_or_else(|| given.to_string(), str::to_owned);
            let duration = parse_duration(&text);
            if duration.is_none() {
                let why = not_a_duration(&text);
                ignored.push((
                    INVALID_DURATION,
                    format!("its {field} {why}; it is ignored, and the queue above decides"),
                ));
            }
            duration
        }
    };
    let preempt_min_runtime = runtime("preemptMinRuntime");
    let reclaim_min_runtime = runtime("reclaimMinRuntime");
    let given = object.annotation(ANNOTATION_QUEUE_BURST_LIMIT);
    let burst_limit = given.and_then(|text| {
        let limit = burst_limit(text);
        if limit.is_none() {
            let why = not_a_burst_limit(text);
            ignored.push((
                INVALID_BURST_LIMIT,
                format!("its {ANNOTATION_QUEUE_BURST_LIMIT} {why}; it is ignored, and only queues above bound the limits of its pods"),
            ));
        }
        limit.flatten()
    });
    let given = object.annotation(ANNOTATION_QUEUE_SUSPENDS);
    if suspends(given).is_none() {
        let why = not_a_switch(given.unwrap_or_default());
        ignored.push((
            INVALID_SUSPENSION,
            format!(
                "its {ANNOTATION_QUEUE_SUSPENDS} {why}; it is ignored, and its pods are evicted"
            ),
        ));
    }
    let queue = Queue {
        name: object.name().to_owned(),
        parent: text("parentQueue").map(str::to_owned),
        created: clock::created(object, now),
        priority: match priority.as_i64() {
            None if priority.is_null() => PRIORITY,
            given => given
                .and_then(|given| i32::try_from(given).ok())
                .ok_or_else(|| format!("its priority {priority} is not a whole number"))?,
        },
        cpu: quota("cpu", 1.0)?,
        memory: quota("memory", MEGABYTE)?,
        gpu: quota("gpu", 1.0)?,
        usage: [0.0; 3],
        preempt_min_runtime,
        reclaim_min_runtime,
        burst_limit,
    };
    Ok((queue, ignored_fields(&ignored)))
}

fn quota(resources: &Value, resource: &str, unit: f64) -> Result<Quota, String> {
    let read = |field: &str| {
        let given = &resources[resource][field];
        let amount = match given {
            Value::Null => Some(0.0),
            given => given.as_f64(),
        };
        amount.ok_or_else(|| format!("its {resource} {field} {given} is not a number"))
    };
    let bound = |field: &str| match read(field)? {
        UNLIMITED => Ok(UNLIMITED),
        amount if amount < 0.0 => Err(format!(
            "its {resource} {field} is {amount}; the only negative value is -1, for unlimited"
        )),
        amount => Ok(amount * unit),
    };
    let weight = read("overQuotaWeight")?;
    if weight < 0.0 {
        return Err(format!(
            "its {resource} overQuotaWeight is {weight}, which is below zero"
        ));
    }
    Ok(Quota {
        deserved: bound("quota")?,
        limit: bound("limit")?,
        weight,
    })
}
