//! Groups of pods that start now. A few are created at once, and their bindings wait for them: who sees a bound pod
//! finds its group.
//!
//! In a burst that would be as many requests as bindings, at the worst time. So only the first few of a round are
//! created at once, the others after the bindings.

use std::time::Duration;

use apportion_groups::GroupingSettings;

use super::{GroupWrite, PodGroupMode, WriteSubject};
use crate::live::event::{PodRef, SchedulerEffect};
use crate::live::model::ClusterModel;

/// How many groups of a round are created at once.
const AT_ONCE: usize = 16;

impl ClusterModel {
    /// Creates the groups of the first of these pods, if they are missing.
    pub(crate) fn found_groups<'s>(
        &mut self,
        now: Duration,
        starting: impl Iterator<Item = &'s PodRef>,
    ) -> Vec<SchedulerEffect> {
        let mut grouper = std::mem::take(&mut self.grouper);
        let mut effects = Vec::new();
        let settings = GroupingSettings::default();
        grouper.is_beside_kais = self.has_kais_grouper();
        let keeps_off = grouper.keeps_off();
        let starting = starting.take_while(|_| grouper.whose != PodGroupMode::Off);
        let members: Vec<_> = starting
            .filter_map(|pod| self.member(pod, keeps_off, &settings))
            .take(AT_ONCE)
            .collect();
        for member in members {
            let space = member.object.namespace().to_owned();
            let group: WriteSubject = (space, member.derived.name.to_string());
            let write = self.write_group(&mut grouper, now, &member, &group);
            effects.extend(write.map(|write| match write {
                GroupWrite::Create(object) => GroupWrite::Found(object),
                other => other,
            }));
        }
        self.grouper = grouper;
        effects.into_iter().map(SchedulerEffect::Group).collect()
    }
}
