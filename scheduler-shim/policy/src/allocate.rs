//! Places one job: all the tasks that go next, or none of them.

use crate::charges::least_charge;
use crate::choose::{cards_for, ranked};
use crate::claims::devices_for;
use crate::fit::{cheapest_request, is_within_bounds, is_within_burst_limits};
use crate::gang::{GroupMember, JobView};
use crate::ranking::best_of_all;

use crate::session::Session;
use crate::topology::{TopologyScores, node_sets};
use crate::transitions::{bind, reserve};

/// A job that is being placed.
struct AllocationContext<'v> {
    view: &'v JobView,
    /// Whether it only gets reservations, because others are evicted for it.
    only_wait: bool,
    closeness: TopologyScores,
}

/// Places the next tasks of a job. On failure nothing has changed.
pub(crate) fn allocate_job(
    session: &mut Session<'_>,
    view: &JobView,
    nodes: &[usize],
    only_wait: bool,
) -> bool {
    let tasks = session.gang(view).next(!only_wait);
    if tasks.is_empty() {
        return false;
    }
    let least = least_charge(session.facts(), &tasks);
    let largest = session.facts().card_sizes().largest();
    if !is_within_bounds(session, view.job, least)
        || !is_within_burst_limits(session, view.job, &tasks, largest)
    {
        return false;
    }
    let mut placing = AllocationContext {
        view,
        only_wait,
        closeness: TopologyScores::default(),
    };
    allocate_member(session, &mut placing, GroupMember::Group(0), &tasks, nodes)
}

fn allocate_member(
    session: &mut Session<'_>,
    placing: &mut AllocationContext<'_>,
    member: GroupMember,
    tasks: &[usize],
    nodes: &[usize],
) -> bool {
    if tasks.is_empty() {
        return true;
    }
    let view = placing.view;
    let node_sets = node_sets(session, view, member, tasks, nodes, &mut placing.closeness);
    node_sets.into_iter().any(|nodes| {
        let mark = session.state().mark();
        let is_placed = match member {
            GroupMember::Group(group) => allocate_members(session, placing, group, tasks, &nodes),
            GroupMember::Set(_) => allocate_tasks(session, placing, tasks, &nodes),
        };
        if !is_placed {
            session.roll_back(mark);
        }
        is_placed
    })
}

fn allocate_members(
    session: &mut Session<'_>,
    placing: &mut AllocationContext<'_>,
    group: usize,
    tasks: &[usize],
    nodes: &[usize],
) -> bool {
    let members = session.gang(placing.view).ordered(group);
    members.into_iter().all(|member| {
        let tree = &session.facts().job(placing.view.job).tree;
        let sets = match member {
            GroupMember::Group(group) => tree.sets_below(group),
            GroupMember::Set(set) => vec![set],
        };
        let own = tasks.iter().copied();
        let own: Vec<usize> = own
            .filter(|&task| sets.contains(&session.facts().task(task).set))
            .collect();
        allocate_member(session, placing, member, &own, nodes)
    })
}

fn allocate_tasks(
    session: &mut Session<'_>,
    placing: &AllocationContext<'_>,
    tasks: &[usize],
    nodes: &[usize],
) -> bool {
    tasks
        .iter()
        .all(|&task| allocate_task(session, placing, task, nodes))
}

fn allocate_task(
    session: &mut Session<'_>,
    placing: &AllocationContext<'_>,
    task: usize,
    nodes: &[usize],
) -> bool {
    match best_for(session, placing, task, nodes) {
        Some(None) => return false,
        Some(Some(best)) if allocate_on(session, task, best, placing.only_wait) => return true,
        Some(Some(_)) | None => {}
    }
    let ranked = ranked_for(session, placing, task, nodes);
    ranked
        .into_iter()
        .any(|node| allocate_on(session, task, node, placing.only_wait))
}

/// The best node for a task, if any, from the kept rankings. The outer `None` means that they can't tell.
fn best_for(
    session: &Session<'_>,
    placing: &AllocationContext<'_>,
    task: usize,
    nodes: &[usize],
) -> Option<Option<usize>> {
    let facts = session.facts().task(task);
    let scores = placing
        .closeness
        .of(&session.facts().job(facts.job).tree, facts.set);
    let are_all = scores.is_none() && nodes.len() == session.facts().nodes().len();
    are_all.then(|| best_of_all(session, task)).flatten()
}

fn ranked_for(
    session: &Session<'_>,
    placing: &AllocationContext<'_>,
    task: usize,
    nodes: &[usize],
) -> Vec<usize> {
    let facts = session.facts().task(task);
    let scores = placing
        .closeness
        .of(&session.facts().job(facts.job).tree, facts.set);
    ranked(session, task, nodes, |node| match scores {
        None => Some(0.0),
        Some(scores) => scores.get(&node).copied(),
    })
}

fn allocate_on(session: &mut Session<'_>, task: usize, node: usize, only_wait: bool) -> bool {
    let request = cheapest_request(session, task, node);
    let Some(chosen) = cards_for(session, task, node, &request, only_wait) else {
        return false;
    };
    let Some(claimed) = devices_for(session, task, node) else {
        return false;
    };
    if chosen.must_wait || claimed.must_wait {
        reserve(session, task, node, chosen.cards, claimed.devices);
    } else {
        bind(session, task, node, chosen.cards, claimed.devices);
    }
    true
}
