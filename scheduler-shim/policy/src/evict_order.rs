//! Which pods of a victim are evicted first.
//!
//! Pods above a minimum go one at a time. Then members of a group above its minimum go, each as a whole. When
//! nothing is above a minimum, everything goes at once, because the rest would be of no use.

use crate::gang::{Gang, GroupMember, TaskStatusLookup};

impl<S: TaskStatusLookup> Gang<'_, S> {
    /// The tasks to evict next, and whether any would be left.
    pub(crate) fn next_victims(&self) -> (Vec<usize>, bool) {
        let mut victims = self.surplus_of_group(0);
        if victims.is_empty() && !self.view.keeps_core {
            victims = self.all_of(GroupMember::Group(0));
        }
        let allocated: usize = (0..self.tree.sets.len())
            .map(|set| self.allocated(set))
            .sum();
        let has_more = victims.len() < allocated;
        (victims, has_more)
    }

    fn surplus_of_group(&self, group: usize) -> Vec<usize> {
        let (has, needs) = self.progress_of_group(group);
        if has == 0 {
            return Vec::new();
        }
        let mut members = self.ordered(group);
        members.reverse();
        let deeper = members.iter().map(|&member| self.surplus_of(member));
        if self.has_surplus(group)
            && let Some(tasks) = deeper.into_iter().find(|tasks| !tasks.is_empty())
        {
            return tasks;
        }
        if needs >= has {
            return Vec::new();
        }
        let mut whole = members.into_iter().map(|member| self.all_of(member));
        whole.find(|tasks| !tasks.is_empty()).unwrap_or_default()
    }

    fn surplus_of(&self, member: GroupMember) -> Vec<usize> {
        match member {
            GroupMember::Group(group) => self.surplus_of_group(group),
            GroupMember::Set(set) if self.allocated(set) > self.view.minimum(set) => {
                let mut tasks = self.all_of(member);
                tasks.truncate(1);
                tasks
            }
            GroupMember::Set(_) => Vec::new(),
        }
    }

    fn has_surplus(&self, group: usize) -> bool {
        let (has, needs) = self.progress_of_group(group);
        has > needs
            || self.tree.groups[group]
                .members
                .iter()
                .any(|member| match *member {
                    GroupMember::Group(inner) => self.has_surplus(inner),
                    GroupMember::Set(set) => self.allocated(set) > self.view.minimum(set),
                })
    }

    /// The tasks of a member that have a place, last placed first.
    fn all_of(&self, member: GroupMember) -> Vec<usize> {
        match member {
            GroupMember::Group(group) => {
                let sets = self.tree.sets_below(group).into_iter();
                sets.flat_map(|set| self.all_of(GroupMember::Set(set)))
                    .collect()
            }
            GroupMember::Set(set) => {
                let tasks = self.view.tasks[set].iter().rev().copied();
                tasks
                    .filter(|&task| self.task_states.status(task).is_active_allocated())
                    .collect()
            }
        }
    }
}
