//! Places one job: all the tasks that go next, or none of them.

use crate::gang::{GroupMember, JobView};
use crate::session::Session;
use crate::topology::TopologyScores;

/// A job that is being placed.
struct AllocationContext<'v> {
    view: &'v JobView,
    /// Whether it only gets reservations, because others are evicted for it.
    only_wait: bool,
    closeness: TopologyScores,
}

impl Session<'_> {
    /// Places the next tasks of a job. On failure nothing has changed.
    pub(crate) fn allocate_job(
        &mut self,
        view: &JobView,
        nodes: &[usize],
        only_wait: bool,
    ) -> bool {
        let tasks = self.gang(view).next(!only_wait);
        if tasks.is_empty() {
            return false;
        }
        let least = self.least_charge(&tasks);
        if !self.is_within_bounds(view.job, least) {
            return false;
        }
        let mut placing = AllocationContext {
            view,
            only_wait,
            closeness: TopologyScores::default(),
        };
        self.place_member(&mut placing, GroupMember::Group(0), &tasks, nodes)
    }

    fn place_member(
        &mut self,
        placing: &mut AllocationContext<'_>,
        member: GroupMember,
        tasks: &[usize],
        nodes: &[usize],
    ) -> bool {
        if tasks.is_empty() {
            return true;
        }
        let view = placing.view;
        let node_sets = self.node_sets(view, member, tasks, nodes, &mut placing.closeness);
        node_sets.into_iter().any(|nodes| {
            let mark = self.mark();
            let is_placed = match member {
                GroupMember::Group(group) => self.place_members(placing, group, tasks, &nodes),
                GroupMember::Set(_) => self.place_tasks(placing, tasks, &nodes),
            };
            if !is_placed {
                self.roll_back(mark);
            }
            is_placed
        })
    }

    fn place_members(
        &mut self,
        placing: &mut AllocationContext<'_>,
        group: usize,
        tasks: &[usize],
        nodes: &[usize],
    ) -> bool {
        let members = self.gang(placing.view).ordered(group);
        members.into_iter().all(|member| {
            let tree = &self.jobs[placing.view.job].tree;
            let sets = match member {
                GroupMember::Group(group) => tree.sets_below(group),
                GroupMember::Set(set) => vec![set],
            };
            let own = tasks.iter().copied();
            let own: Vec<usize> = own
                .filter(|&task| sets.contains(&self.tasks[task].set))
                .collect();
            self.place_member(placing, member, &own, nodes)
        })
    }

    fn place_tasks(
        &mut self,
        placing: &AllocationContext<'_>,
        tasks: &[usize],
        nodes: &[usize],
    ) -> bool {
        tasks
            .iter()
            .all(|&task| self.place_task(placing, task, nodes))
    }

    fn place_task(
        &mut self,
        placing: &AllocationContext<'_>,
        task: usize,
        nodes: &[usize],
    ) -> bool {
        match self.best_for(placing, task, nodes) {
            Some(None) => return false,
            Some(Some(best)) if self.place_on(task, best, placing.only_wait) => return true,
            Some(Some(_)) | None => {}
        }
        let ranked = self.ranked_for(placing, task, nodes);
        ranked
            .into_iter()
            .any(|node| self.place_on(task, node, placing.only_wait))
    }

    /// The best node for a task, if any, from the kept rankings. The outer `None` means that they can't tell.
    fn best_for(
        &self,
        placing: &AllocationContext<'_>,
        task: usize,
        nodes: &[usize],
    ) -> Option<Option<usize>> {
        let facts = &self.tasks[task];
        let scores = placing.closeness.of(&self.jobs[facts.job].tree, facts.set);
        let are_all = scores.is_none() && nodes.len() == self.nodes.len();
        are_all.then(|| self.best_of_all(task)).flatten()
    }

    fn ranked_for(
        &self,
        placing: &AllocationContext<'_>,
        task: usize,
        nodes: &[usize],
    ) -> Vec<usize> {
        let facts = &self.tasks[task];
        let scores = placing.closeness.of(&self.jobs[facts.job].tree, facts.set);
        self.ranked(task, nodes, |node| match scores {
            None => Some(0.0),
            Some(scores) => scores.get(&node).copied(),
        })
    }

    fn place_on(&mut self, task: usize, node: usize, only_wait: bool) -> bool {
        let need = self.need_to_place(task, node);
        let Some(chosen) = self.cards_for(task, node, &need, only_wait) else {
            return false;
        };
        if chosen.must_wait {
            self.reserve(task, node, chosen.cards);
        } else {
            self.bind(task, node, chosen.cards);
        }
        true
    }
}
