//! The tree of a job's pod sets, and which of its pods go next.
//!
//! A [`JobView`] is a job reduced to some of its pods: a victim of which some pods are already chosen, or a waiting
//! job that is tried with a part of its pods first. The real job is a view of all.

use std::cmp::Ordering;
use std::rc::Rc;

use crate::cluster::{Job, SubGroupSet, TaskStatus, TopologyConstraint};

/// A member of a group: an inner group or a pod set, by its index in the job's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupMember {
    Group(usize),
    Set(usize),
}

/// The fixed part of a group or a pod set.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupFacts {
    pub(crate) name: String,
    pub(crate) parent: Option<usize>,
    pub(crate) topology: Option<TopologyConstraint>,
    /// Of a group; empty for a pod set.
    pub(crate) members: Vec<GroupMember>,
}

/// A job's tree. The root is group 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodSetTree {
    pub(crate) groups: Vec<GroupFacts>,
    pub(crate) sets: Vec<GroupFacts>,
    minimums: Rc<GangMinimums>,
}

/// How many members each group needs, all if `None`, and how many pods each pod set needs.
#[derive(Clone, Debug, Default)]
struct GangMinimums {
    groups: Vec<Option<usize>>,
    sets: Vec<usize>,
}

impl PodSetTree {
    /// Flattens the tree of a job.
    pub(crate) fn of(job: &Job) -> Self {
        let mut tree = Self::default();
        let mut minimums = GangMinimums::default();
        tree.flatten(&job.root, None, &mut minimums);
        tree.minimums = Rc::new(minimums);
        tree
    }

    fn flatten(
        &mut self,
        group: &SubGroupSet,
        parent: Option<usize>,
        minimums: &mut GangMinimums,
    ) -> usize {
        let index = self.groups.len();
        self.groups.push(GroupFacts {
            name: group.name.clone(),
            parent,
            topology: group.topology.clone(),
            members: Vec::new(),
        });
        minimums.groups.push(group.min_members);
        let mut members = Vec::with_capacity(group.groups.len() + group.sets.len());
        for inner in &group.groups {
            members.push(GroupMember::Group(self.flatten(
                inner,
                Some(index),
                minimums,
            )));
        }
        for set in &group.sets {
            members.push(GroupMember::Set(self.sets.len()));
            self.sets.push(GroupFacts {
                name: set.name.clone(),
                parent: Some(index),
                topology: set.topology.clone(),
                members: Vec::new(),
            });
            minimums.sets.push(set.min_available);
        }
        self.groups[index].members = members;
        index
    }

    /// The pod set of that name.
    pub(crate) fn set(&self, name: &str) -> Option<usize> {
        self.sets.iter().position(|set| set.name == name)
    }

    /// The view with these tasks by pod set, in order.
    pub(crate) fn view(&self, job: usize, tasks: Vec<Vec<usize>>) -> JobView {
        JobView {
            job,
            tasks,
            minimums: Rc::clone(&self.minimums),
            keeps_core: false,
        }
    }

    /// The pod sets below a group.
    pub(crate) fn sets_below(&self, group: usize) -> Vec<usize> {
        self.groups[group]
            .members
            .iter()
            .flat_map(|member| match *member {
                GroupMember::Group(group) => self.sets_below(group),
                GroupMember::Set(set) => vec![set],
            })
            .collect()
    }

    fn name(&self, member: GroupMember) -> &str {
        match member {
            GroupMember::Group(group) => &self.groups[group].name,
            GroupMember::Set(set) => &self.sets[set].name,
        }
    }
}

/// A job with some of its tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobView {
    pub(crate) job: usize,
    /// Tasks by pod set, first to be placed first.
    pub(crate) tasks: Vec<Vec<usize>>,
    minimums: Rc<GangMinimums>,
    /// Whether it may lose only what is above its minimums.
    pub(crate) keeps_core: bool,
}

/// What the tree needs to know of a task.
pub(crate) trait TaskStatusLookup {
    fn status(&self, task: usize) -> TaskStatus;
    /// Whether it was evicted only tentatively.
    fn is_tentative(&self, task: usize) -> bool;
}

/// A tree, a view of it and the state of its tasks.
#[derive(Clone, Copy)]
pub(crate) struct Gang<'a, S> {
    pub(crate) tree: &'a PodSetTree,
    pub(crate) view: &'a JobView,
    pub(crate) task_states: &'a S,
}

impl JobView {
    pub(crate) fn all(&self) -> impl Iterator<Item = usize> {
        self.tasks.iter().flatten().copied()
    }

    /// The view without some of its tasks.
    pub(crate) fn without(&self, gone: &[usize]) -> Self {
        self.only(|task| !gone.contains(&task))
    }

    /// The view with only some of its tasks.
    pub(crate) fn only(&self, keeps: impl Fn(usize) -> bool) -> Self {
        Self {
            tasks: self
                .tasks
                .iter()
                .map(|tasks| tasks.iter().copied().filter(|&task| keeps(task)).collect())
                .collect(),
            ..self.clone()
        }
    }

    /// The view whose sets and groups demand no more tasks than it has.
    pub(crate) fn with_reachable_minimums(mut self, tree: &PodSetTree) -> Self {
        let minimums = Rc::make_mut(&mut self.minimums);
        for (minimum, tasks) in minimums.sets.iter_mut().zip(&self.tasks) {
            if !tasks.is_empty() {
                *minimum = (*minimum).min(tasks.len());
            }
        }
        minimums.lower_group(tree, &self.tasks, 0);
        self
    }

    /// The minimum of a pod set.
    pub(crate) fn minimum(&self, set: usize) -> usize {
        self.minimums.sets[set]
    }
}

impl GangMinimums {
    /// Lowers the minimum of a group to its members that have tasks; whether there are any.
    fn lower_group(&mut self, tree: &PodSetTree, tasks: &[Vec<usize>], group: usize) -> bool {
        let mut filled = 0;
        for member in &tree.groups[group].members {
            let has_tasks = match *member {
                GroupMember::Group(inner) => self.lower_group(tree, tasks, inner),
                GroupMember::Set(set) => !tasks[set].is_empty(),
            };
            filled += usize::from(has_tasks);
        }
        self.groups[group] = self.groups[group].map(|minimum| minimum.min(filled));
        filled > 0
    }
}

impl<S: TaskStatusLookup> Gang<'_, S> {
    fn count(&self, set: usize, counts: impl Fn(TaskStatus) -> bool) -> usize {
        let tasks = self.view.tasks[set].iter();
        tasks
            .filter(|&&task| counts(self.task_states.status(task)))
            .count()
    }

    /// How many tasks of a set have a place.
    pub(crate) fn allocated(&self, set: usize) -> usize {
        self.count(set, TaskStatus::is_active_allocated)
    }

    /// How many parts of a member are satisfied, and how many must be.
    fn progress(&self, member: GroupMember) -> (usize, usize) {
        match member {
            GroupMember::Set(set) => (self.allocated(set), self.view.minimum(set)),
            GroupMember::Group(group) => {
                let members = &self.tree.groups[group].members;
                let satisfied = members.iter().filter(|member| self.is_satisfied(**member));
                let minimum = self.view.minimums.groups[group].unwrap_or(members.len());
                (satisfied.count(), minimum)
            }
        }
    }

    /// How many of a group's members are satisfied, and how many must be.
    pub(crate) fn progress_of_group(&self, group: usize) -> (usize, usize) {
        self.progress(GroupMember::Group(group))
    }

    fn is_satisfied(&self, member: GroupMember) -> bool {
        let (has, needs) = self.progress(member);
        has >= needs
    }

    /// Whether enough of its pods exist and are not gated.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_member_ready(GroupMember::Group(0))
    }

    fn is_member_ready(&self, member: GroupMember) -> bool {
        match member {
            GroupMember::Set(set) => {
                self.count(set, |status: TaskStatus| {
                    status.is_alive() && status != TaskStatus::Gated
                }) >= self.view.minimum(set)
            }
            GroupMember::Group(group) => {
                let members = &self.tree.groups[group].members;
                let ready = members
                    .iter()
                    .filter(|member| self.is_member_ready(**member));
                ready.count() >= self.view.minimums.groups[group].unwrap_or(members.len())
            }
        }
    }

    /// Whether enough of its members have their places.
    pub(crate) fn has_enough(&self) -> bool {
        self.is_satisfied(GroupMember::Group(0))
    }

    /// Whether every pod set has its minimum of active pods.
    fn has_all_sets(&self) -> bool {
        let mut sets = 0..self.tree.sets.len();
        sets.all(|set| self.count(set, TaskStatus::is_active) >= self.view.minimum(set))
    }

    /// Whether a member has its minimum of active pods.
    fn is_whole(&self, member: GroupMember) -> bool {
        match member {
            GroupMember::Set(set) => {
                self.count(set, TaskStatus::is_active) >= self.view.minimum(set)
            }
            GroupMember::Group(group) => {
                let members = &self.tree.groups[group].members;
                let whole = members.iter().filter(|member| self.is_whole(**member));
                whole.count() >= self.view.minimums.groups[group].unwrap_or(members.len())
            }
        }
    }

    /// Whether it goes on with too few pods. With `needs_all_sets`, it lacks pods if any of its sets does.
    pub(crate) fn is_stale(&self, needs_all_sets: bool) -> bool {
        let any = |is: fn(TaskStatus) -> bool| {
            self.view
                .all()
                .any(|task| is(self.task_states.status(task)))
        };
        let is_whole = if needs_all_sets {
            self.has_all_sets()
        } else {
            self.is_whole(GroupMember::Group(0))
        };
        !any(|status| status == TaskStatus::Succeeded) && any(TaskStatus::is_active) && !is_whole
    }

    /// Whether some pod set has more pods than its minimum.
    pub(crate) fn is_elastic(&self) -> bool {
        let minimums = self.view.minimums.sets.iter();
        (minimums.zip(&self.view.tasks)).any(|(minimum, tasks)| *minimum < tasks.len())
    }

    /// Whether some pod set waits for others to leave before it has its minimum.
    pub(crate) fn must_wait(&self) -> bool {
        (0..self.tree.sets.len()).any(|set| {
            self.count(set, |status| status == TaskStatus::Pipelined) > 0
                && self.count(set, TaskStatus::is_allocated) < self.view.minimum(set)
        })
    }

    /// Whether it is below its minimum, at it, or above it: the order in which jobs are served.
    pub(crate) fn fill(&self) -> MinimumProgress {
        let mut fill = MinimumProgress::Exact;
        for set in 0..self.tree.sets.len() {
            match self.allocated(set).cmp(&self.view.minimum(set)) {
                Ordering::Less => return MinimumProgress::Below,
                Ordering::Equal => {}
                Ordering::Greater => fill = MinimumProgress::Above,
            }
        }
        fill
    }

    /// The members of a group, in the order in which they are served.
    pub(crate) fn ordered(&self, group: usize) -> Vec<GroupMember> {
        let mut members = self.tree.groups[group].members.clone();
        members.sort_by(|&left, &right| {
            order_by_progress(self.progress(left), self.progress(right))
                .then_with(|| self.tree.name(left).cmp(self.tree.name(right)))
        });
        members
    }

    fn can_allocate(&self, task: usize, for_real: bool) -> bool {
        match self.task_states.status(task) {
            TaskStatus::Pending => true,
            TaskStatus::Releasing => !for_real && self.task_states.is_tentative(task),
            _ => false,
        }
    }

    /// The tasks to place next: those that the minimums lack, or one more.
    pub(crate) fn next(&self, for_real: bool) -> Vec<usize> {
        self.next_of_group(0, for_real)
    }

    fn next_of_group(&self, group: usize, for_real: bool) -> Vec<usize> {
        let members = self.ordered(group);
        let (has, needs) = self.progress(GroupMember::Group(group));
        if has < needs {
            let first = members.into_iter().take(needs);
            let lacking = first.filter(|member| !self.is_satisfied(*member));
            return lacking
                .flat_map(|member| self.next_of(member, for_real))
                .collect();
        }
        let mut next = members
            .into_iter()
            .map(|member| self.next_of(member, for_real));
        next.find(|tasks| !tasks.is_empty()).unwrap_or_default()
    }

    fn next_of(&self, member: GroupMember, for_real: bool) -> Vec<usize> {
        match member {
            GroupMember::Group(group) => self.next_of_group(group, for_real),
            GroupMember::Set(set) => {
                let lacks = self.view.minimum(set).saturating_sub(self.allocated(set));
                let tasks = self.view.tasks[set].iter().copied();
                tasks
                    .filter(|&task| self.can_allocate(task, for_real))
                    .take(lacks.max(1))
                    .collect()
            }
        }
    }
}

/// How far a job is from its minimums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MinimumProgress {
    Below,
    Exact,
    Above,
}

/// Members below their minimum first, then by how far above it they are; members that need nothing last.
fn order_by_progress(left: (usize, usize), right: (usize, usize)) -> Ordering {
    let ((l_has, l_needs), (r_has, r_needs)) = (left, right);
    let (l_done, r_done) = (l_has >= l_needs, r_has >= r_needs);
    if !l_done || !r_done {
        return l_done.cmp(&r_done);
    }
    match (l_needs, r_needs) {
        (0, 0) => l_has.cmp(&r_has),
        (0, _) => Ordering::Greater,
        (_, 0) => Ordering::Less,
        _ => (l_has * r_needs).cmp(&(r_has * l_needs)),
    }
}
