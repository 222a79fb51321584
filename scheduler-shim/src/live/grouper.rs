//! Pod groups as objects: what KAI's pod grouper does, for pods whose group follows from their owners.
//!
//! The policy needs none of these objects: a group counts as soon as its pods exist. They are for people, for tools
//! that know KAI, and for KAI's own programs. Each is written once, and again when its content should change. A pod
//! that starts gets its group with its binding, without an extra request. A waiting pod gets it by a request of its
//! own. The groups of a few pods are created before their bindings ([`founding`]), all others after
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apportion_groups::{GroupingSettings, ObjectView};
use clap::ValueEnum;
use serde_json::Value;

use super::back_off::BackOff;
use super::event::{PodRef, SchedulerEffect};
use super::model::ClusterModel;
use apportion_explain::waiting::{WaitReason, WaitingPod};
use apportion_model::cached_group::DerivedGroup;
use apportion_model::group_objects;
use apportion_model::groups;
use apportion_model::parsed_objects::ParsedPod;

mod founding;

/// The scheduler name of KAI's pods.
pub(crate) const KAI: &str = "kai-scheduler";
/// How many writes may be in flight.
const AT_ONCE: usize = 500;
/// How long a successful write may take to show in the watch.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);

/// Whose pods get PodGroup objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PodGroupMode {
    /// All pods of this scheduler, but none while KAI's pod grouper runs
    #[default]
    Auto,
    /// All pods of this scheduler
    On,
    /// No pods
    Off,
}

/// A pod's group, as written on the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupMembership {
    pub(crate) group: String,
    pub(crate) part: Option<String>,
}

/// A write about a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupWrite {
    Create(Value),
    /// Create the object at once, without waiting for bindings.
    Found(Value),
    /// Merge this patch into the object of this namespace and name.
    Change(String, String, Value),
    /// Write on a pod which group it is in.
    Mark(PodRef, GroupMembership),
    /// Publish that pods of a group are missing.
    NotReady(Value, String),
}

/// What a write is about: a group by namespace and name, or a pod by its UID.
pub(crate) type WriteSubject = (String, String);

impl GroupWrite {
    /// What it is about; `None` for an event, whose outcome nobody awaits.
    pub(crate) fn subject(&self) -> Option<WriteSubject> {
        match self {
            Self::Create(object) | Self::Found(object) => {
                let object = ObjectView::new(object);
                Some((object.namespace().to_owned(), object.name().to_owned()))
            }
            Self::Change(namespace, name, _) => Some((namespace.clone(), name.clone())),
            Self::Mark(pod, _) => Some((String::new(), pod.uid.clone())),
            Self::NotReady(..) => None,
        }
    }
}

/// The state of all writes.
#[derive(Debug, Default)]
pub(crate) struct PodGrouper {
    pub(crate) whose: PodGroupMode,
    /// Groups whose object is up to date: the stamp of the wanted content, and the object's age.
    settled: BTreeMap<WriteSubject, (u64, u64)>,
    /// Writes in flight, and until when they are awaited.
    asked: BTreeMap<WriteSubject, Duration>,
    /// Back-off of failed writes.
    failed: BackOff,
    /// The last message about each group that lacks pods.
    last_messages: BTreeMap<String, String>,
    /// Whether KAI's pod grouper ran when all groups were last checked.
    is_beside_kais: bool,
}

impl PodGrouper {
    /// For pods of this mode.
    pub(crate) fn new(whose: PodGroupMode) -> Self {
        Self {
            whose,
            ..Self::default()
        }
    }

    /// Records how a write ended.
    pub(crate) fn answered(&mut self, now: Duration, subject: &WriteSubject, is_done: bool) {
        let key = key(subject);
        if is_done {
            return self.failed.forget(&key);
        }
        self.asked.remove(subject);
        self.settled.remove(subject);
        self.failed.failed(&key, now);
    }

    /// Whether no groups are written, because KAI runs. KAI's scheduler places all pods that are in a group, whatever
    /// their scheduler's name is. So it would place ours, too.
    fn keeps_off(&self) -> bool {
        self.whose == PodGroupMode::Auto && self.is_beside_kais
    }

    fn may_ask(&self, now: Duration, subject: &WriteSubject) -> bool {
        let is_asked = self.asked.get(subject).is_some_and(|until| now < *until);
        !is_asked && !self.failed.is_delayed(&key(subject), now) && self.asked.len() < AT_ONCE
    }

    fn ask(&mut self, now: Duration, subject: WriteSubject) {
        self.asked.insert(subject, now + SHOWN_WITHIN);
    }
}

fn key((space, name): &WriteSubject) -> String {
    format!("{space}/{name}")
}

/// One of our pods, with the group derived from its owners.
struct GroupedPod<'m> {
    object: ObjectView<'m>,
    read: &'m ParsedPod,
    derived: DerivedGroup,
}

impl GroupedPod<'_> {
    fn is_marked(&self) -> bool {
        let (group, part) = &self.read.membership;
        group.as_deref() == Some(&*self.derived.name)
            && (self.derived.part.is_none() || *part.as_deref().unwrap_or("") == *self.part())
    }

    fn part(&self) -> &str {
        self.derived.part.as_deref().unwrap_or("")
    }
}

impl ClusterModel {
    /// Updates the objects of groups, and the groups written on pods.
    pub(crate) fn write_groups(&mut self, now: Duration) -> Vec<SchedulerEffect> {
        let mut grouper = std::mem::take(&mut self.grouper);
        let mut effects = Vec::new();
        if grouper.whose != PodGroupMode::Off {
            grouper.asked.retain(|_, until| now < *until);
            let mut seen = BTreeSet::new();
            let settings = GroupingSettings::default();
            grouper.is_beside_kais = self.has_kais_grouper();
            for member in self.members(grouper.keeps_off(), &settings) {
                let space = member.object.namespace().to_owned();
                let group: WriteSubject = (space, member.derived.name.to_string());
                if seen.insert(group.clone()) {
                    effects.extend(self.write_group(&mut grouper, now, &member, &group));
                }
                effects.extend(self.mark_member(&mut grouper, now, &member));
            }
            grouper.settled.retain(|group, _| seen.contains(group));
        }
        self.grouper = grouper;
        self.inventory.drop_cache();
        effects.into_iter().map(SchedulerEffect::Group).collect()
    }

    /// The pods whose groups this scheduler writes.
    fn members<'m>(
        &'m self,
        keeps_off: bool,
        settings: &'m GroupingSettings,
    ) -> impl Iterator<Item = GroupedPod<'m>> {
        let live = self.inventory.pods().filter(move |(_, read)| {
            let is_ours = (self.schedulers.iter()).any(|name| **name == *read.scheduler);
            is_ours && !read.is_over() && !keeps_off
        });
        live.filter_map(move |(object, read)| {
            let derived = read.derived(object, &self.inventory, settings)?;
            Some(GroupedPod {
                object,
                read,
                derived,
            })
        })
    }

    fn has_kais_grouper(&self) -> bool {
        let mut pods = self.inventory.pods();
        pods.any(|(_, read)| read.is_grouper && !read.is_over())
    }

    /// The write for the object of a member's group, if the object is out of date and may be written now.
    fn write_group(
        &self,
        grouper: &mut PodGrouper,
        now: Duration,
        member: &GroupedPod<'_>,
        group: &WriteSubject,
    ) -> Option<GroupWrite> {
        let (space, name) = group;
        let age = self.inventory.ages.of_group(space, name);
        let is_there = age != 0;
        let wanted = (member.derived.stamp, age);
        if is_there && grouper.settled.get(group) == Some(&wanted) {
            return None;
        }
        // A pod that is terminating needs no new group.
        let is_needed = is_there || !member.read.is_ending() && grouper.may_ask(now, group);
        let write = is_needed.then(|| self.group_write(member, group)).flatten();
        if is_there && (write.is_none() || grouper.may_ask(now, group)) {
            grouper.settled.insert(group.clone(), wanted);
        }
        if is_there && write.is_none() {
            grouper.asked.remove(group);
        }
        let write = write.filter(|_| grouper.may_ask(now, group))?;
        grouper.ask(now, group.clone());
        Some(write)
    }

    /// The write that a member's group needs, derived again from the objects.
    fn group_write(
        &self,
        member: &GroupedPod<'_>,
        (space, name): &WriteSubject,
    ) -> Option<GroupWrite> {
        let (settings, lookup) = (GroupingSettings::default(), self.inventory.lookup());
        // Parsed apart from the cache: a burst brings thousands, and each is dropped at once.
        let pod = member.object.read_apart();
        let found = groups::group_of(ObjectView::new(&pod), &self.inventory, lookup, &settings);
        // The API server rejects an owner reference without a UID.
        let derived = found
            .derived
            .filter(|derived| !derived.owner.uid.is_empty())?;
        let there = self.inventory.find(group_objects::KIND, space, name);
        let Some(there) = there.map(ObjectView::read_apart) else {
            return Some(GroupWrite::Create(group_objects::object(&derived)));
        };
        let there = ObjectView::new(&there);
        if !group_objects::is_derived(there) {
            return None;
        }
        let change = group_objects::change(there, &derived)?;
        Some(GroupWrite::Change(space.clone(), name.clone(), change))
    }

    /// The group to write on a pod that waits or runs. One that starts gets it with its binding.
    fn mark_member(
        &self,
        grouper: &mut PodGrouper,
        now: Duration,
        member: &GroupedPod<'_>,
    ) -> Option<GroupWrite> {
        let pod = PodRef::of(member.object);
        let subject = (String::new(), pod.uid.clone());
        if member.is_marked() {
            grouper.asked.remove(&subject);
            return None;
        }
        let is_starting = self.pending_binds.get(&pod.uid).is_some();
        if is_starting || member.read.is_ending() || !grouper.may_ask(now, &subject) {
            return None;
        }
        grouper.ask(now, subject);
        Some(GroupWrite::Mark(pod, membership(&member.derived)))
    }

    /// The group that the binding writes on a pod, unless the pod names it already.
    pub(crate) fn joins(&self, pod: &PodRef) -> Option<GroupMembership> {
        if self.grouper.whose == PodGroupMode::Off {
            return None;
        }
        let settings = GroupingSettings::default();
        let member = self.member(pod, self.grouper.keeps_off(), &settings)?;
        (!member.is_marked()).then(|| membership(&member.derived))
    }

    /// A pod, if this scheduler writes its group.
    fn member<'m>(
        &'m self,
        pod: &PodRef,
        keeps_off: bool,
        settings: &'m GroupingSettings,
    ) -> Option<GroupedPod<'m>> {
        let object = self.inventory.find("Pod", &pod.namespace, &pod.name)?;
        let read = self.inventory.pod(&pod.namespace, &pod.name)?;
        if keeps_off {
            return None;
        }
        let derived = read.derived(object, &self.inventory, settings)?;
        Some(GroupedPod {
            object,
            read,
            derived,
        })
    }

    /// Publishes how many pods a group lacks, when that changes: in KAI's words, as an event of the group.
    pub(crate) fn report_unready_groups(&mut self, waiting: &[WaitingPod]) -> Vec<SchedulerEffect> {
        let mut lacking = BTreeMap::new();
        for one in waiting {
            if let (WaitReason::NotReady, Some(group)) = (one.reason, &one.job) {
                lacking.entry(group).or_insert(&one.message);
            }
        }
        let last_messages = &mut self.grouper.last_messages;
        last_messages.retain(|group, _| lacking.contains_key(group));
        let mut effects = Vec::new();
        for (group, message) in lacking {
            let (space, name) = group.split_once('/').unwrap_or_default();
            let Some(object) = self.inventory.find(group_objects::KIND, space, name) else {
                continue;
            };
            if last_messages.get(group) == Some(message) {
                continue;
            }
            last_messages.insert(group.clone(), message.clone());
            let reference =
                serde_json::json!({"namespace": space, "name": name, "uid": object.uid()});
            effects.push(SchedulerEffect::Group(GroupWrite::NotReady(
                reference,
                message.clone(),
            )));
        }
        effects
    }
}

fn membership(derived: &DerivedGroup) -> GroupMembership {
    GroupMembership {
        group: derived.name.to_string(),
        part: derived.part.as_deref().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests;
