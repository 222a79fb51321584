//! Finds room for a job by evicting others.
//!
//! A set of victims is tried, not reasoned about: they are evicted, the job is placed, and the victims are placed
//! again as far as there is room. A pod that gets its old place back was no victim after all. Then the action says
//! whether the outcome is fair. A gang is tried with more and more of its pods, and the search for the next part
//! begins with the victims that the last part needed.
//!
//! # Decision: pods that the job must be near are spared if that is the only way
//! Victims are taken in the order of their jobs, so pods that the job has required affinity to may be among the first. Once
//! they leave, the job's first pod may go anywhere, and may choose a place where the rest does not fit. So a search that
//! found nothing is repeated without them. KAI counts pods that leave as present, and needs no second search.

use std::collections::BTreeSet;

use apportion_abi::Share as CardShare;

use crate::affinity_filter::matches_neighbours;
use crate::allocate::allocate_job;
use crate::capacity_bound::{CapacityBound, free_capacity};
use crate::charges::wants_cards;
use crate::cluster::{KaiBehavior, TaskGpuRequest, TaskStatus};
use crate::gang::JobView;
use crate::job_order::{JobOrder, VictimFilter};
use crate::job_state::has_too_few;
use crate::jobs_by_queue::JobsByQueue;
use crate::scenario::{ScenarioContext, VictimBatch, VictimScenarios, VictimSelection};
use crate::session::Session;
use crate::transitions::evict;
use crate::victim_nodes::CardDemand;

/// Whether an outcome is fair, given the job's placed tasks and the victims.
pub(crate) type FairnessCheck<'s> = dyn Fn(&Session<'_>, &[usize], &[VictimBatch]) -> bool + 's;

/// A search for victims.
pub(crate) struct VictimSearch<'s> {
    /// The job that needs room.
    pub(crate) job: JobView,
    /// The running jobs that could be evicted.
    pub(crate) victims: &'s JobsByQueue,
    /// Which of them may be evicted for this job.
    pub(crate) may_leave: &'s VictimFilter<'s>,
    /// Which of those may lose their place for good; the others only move.
    pub(crate) may_lose: &'s VictimFilter<'s>,
    /// Other waiting jobs, which may have a turn before.
    pub(crate) waiting: &'s JobsByQueue,
    /// Whether an outcome is fair.
    pub(crate) is_fair: &'s FairnessCheck<'s>,
    /// The session's effort at which the search stops.
    pub(crate) until: u64,
}

/// Finds victims for a job and places it; on failure nothing has changed.
pub(crate) fn solve(session: &mut Session<'_>, search: &VictimSearch<'_>) -> bool {
    let gang = session.gang(&search.job);
    let tasks = gang.next(false);
    if tasks.is_empty() {
        return false;
    }
    // A task that no node could hold even when empty would make every set of victims fail.
    if CapacityBound::of(session, &tasks).is_none() {
        return false;
    }
    let feasible = feasible_nodes(session, &search.job);
    if solve_among(session, search, &tasks, &feasible) {
        return true;
    }
    let near = session.facts().affinity_terms().needed_by(&tasks);
    let must_be_near = |session: &Session<'_>, victim: usize| {
        let (facts, terms) = (session.facts(), session.facts().affinity_terms());
        let mut pods = facts.job(victim).view.all();
        pods.any(|pod| near.iter().any(|&term| terms.matches(term, pod)))
    };
    let mut victims = search.victims.by_queue().flat_map(|(_, jobs)| jobs.iter());
    if near.is_empty() || !victims.any(|&victim| must_be_near(session, victim)) {
        return false;
    }
    let sparing = VictimSearch {
        job: search.job.clone(),
        may_leave: &|session, victim| {
            !must_be_near(session, victim) && (search.may_leave)(session, victim)
        },
        ..*search
    };
    solve_among(session, &sparing, &tasks, &feasible)
}

fn solve_among(
    session: &mut Session<'_>,
    search: &VictimSearch<'_>,
    tasks: &[usize],
    feasible: &BTreeSet<usize>,
) -> bool {
    // Victims on one node disturb the fewest jobs. Victims on several nodes are tried only if none of those works.
    let mut selections = VictimSelection::ALL.into_iter();
    selections.any(|selection| solve_in(session, selection, search, tasks, feasible))
}

fn solve_in(
    session: &mut Session<'_>,
    selection: VictimSelection,
    search: &VictimSearch<'_>,
    tasks: &[usize],
    feasible: &BTreeSet<usize>,
) -> bool {
    let mut recorded = Vec::new();
    if !grow(session, selection, search, tasks, feasible, &mut recorded) {
        return false;
    }
    // `grow` undid its trials; this one stays applied.
    let mark = session.state().mark();
    let solved = probe(session, selection, search, tasks, feasible, &recorded).is_some()
        && session.gang(&search.job).has_enough();
    if !solved {
        session.roll_back(mark);
    }
    solved
}

/// Finds the largest part of the job that can be placed, doubling and then halving the step; returns whether
/// any part can. `recorded` gets the victims of that part.
fn grow(
    session: &mut Session<'_>,
    selection: VictimSelection,
    search: &VictimSearch<'_>,
    tasks: &[usize],
    feasible: &BTreeSet<usize>,
    recorded: &mut Vec<VictimBatch>,
) -> bool {
    let (mut solved, mut failed) = (0, tasks.len() + 1);
    let mut part = 1;
    // A large gang needs many victims. The victims of a smaller part are a good start for the next larger one, so the
    // search for each part is short.
    while failed - solved > 1 {
        let mark = session.state().mark();
        let found = probe(
            session,
            selection,
            search,
            &tasks[..part],
            feasible,
            recorded,
        );
        session.roll_back(mark);
        match found {
            Some(victims) => {
                *recorded = victims;
                solved = part;
            }
            None => failed = part,
        }
        part = if failed > tasks.len() {
            (part * 2).min(tasks.len())
        } else {
            usize::midpoint(solved, failed)
        };
    }
    solved > 0
}

/// Tries sets of victims for a part of the job; the first that works stays applied.
fn probe(
    session: &mut Session<'_>,
    selection: VictimSelection,
    search: &VictimSearch<'_>,
    tasks: &[usize],
    feasible: &BTreeSet<usize>,
    recorded: &[VictimBatch],
) -> Option<Vec<VictimBatch>> {
    let view = part_of(session, &search.job, tasks);
    let job_order = JobOrder::of_victims(session, search.victims, search.may_leave);
    // The recorded victims free room on nodes that have none yet.
    let mut nodes = feasible.clone();
    nodes.extend(nodes_of(session, recorded));
    let bound = CapacityBound::of(session, tasks)?;
    let wanted = ScenarioContext {
        recorded,
        demand: card_demand(session, tasks),
        near: session.facts().affinity_terms().needed_by(tasks),
        bound: &bound,
        may_lose: search.may_lose,
    };
    let mut scenarios = VictimScenarios::new(session, selection, job_order, wanted, &nodes);
    while session.effort() < search.until {
        let potential = scenarios.next(session)?;
        let batches = [recorded, &potential].concat();
        let mark = session.state().mark();
        if let Some(victims) = attempt(session, search, &view, tasks, &nodes, batches) {
            return Some(victims);
        }
        session.roll_back(mark);
    }
    None
}

/// The job with its placed tasks and only these of its waiting tasks.
fn part_of(session: &Session<'_>, job: &JobView, tasks: &[usize]) -> JobView {
    let part = job.only(|task| session.state().has_node(task) || tasks.contains(&task));
    part.with_reachable_minimums(&session.facts().job(job.job).tree)
}

/// The cards that tasks ask for. A request in bytes says nothing before a node is chosen.
fn card_demand(session: &Session<'_>, tasks: &[usize]) -> CardDemand {
    let smallest = session.facts().card_sizes().smallest();
    let mut demand = CardDemand {
        sum: 0.0,
        least: f64::MAX,
    };
    for &task in tasks {
        let task = session.facts().task(task);
        let shared_or_whole = match &task.task.cards {
            TaskGpuRequest::Shared {
                share: CardShare::Memory(_),
                ..
            } => 0.0,
            cards => cards.count(smallest),
        };
        let cards = shared_or_whole + task.claimed_cards;
        demand.sum += cards;
        demand.least = demand.least.min(cards);
    }
    demand
}

/// Nodes where the job could get something if nobody leaves.
fn feasible_nodes(session: &Session<'_>, job: &JobView) -> BTreeSet<usize> {
    if job.all().all(|task| wants_cards(session.facts(), task)) {
        free_capacity(session).with_cards().clone()
    } else {
        (0..session.facts().nodes().len()).collect()
    }
}

/// The nodes of the tasks of some batches.
fn nodes_of(session: &Session<'_>, batches: &[VictimBatch]) -> BTreeSet<usize> {
    let tasks = batches.iter().flat_map(|batch| &batch.tasks);
    tasks
        .filter_map(|&task| session.state().task(task).node)
        .collect()
}

/// Evicts, places and checks; returns the batches of which a pod really has to leave.
fn attempt(
    session: &mut Session<'_>,
    search: &VictimSearch<'_>,
    view: &JobView,
    tasks: &[usize],
    nodes: &BTreeSet<usize>,
    batches: Vec<VictimBatch>,
) -> Option<Vec<VictimBatch>> {
    let mut nodes = nodes.clone();
    nodes.extend(nodes_of(session, &batches));
    let nodes: Vec<usize> = nodes.into_iter().collect();
    // Gangs that were short before do not count against this set of victims.
    let broken = broken_gangs(session, &batches);
    let mut has_evicted = false;
    for &task in batches.iter().flat_map(|batch| &batch.tasks) {
        if session.state().has_node(task) {
            has_evicted = true;
            evict(session, task);
        }
    }
    if !has_evicted || !allocate_again(session, search.waiting, view, &batches, &nodes) {
        return None;
    }
    // A pod of the gang that stayed would only leave later, when the grace period is over.
    if !broken_gangs(session, &batches).is_subset(&broken) {
        return None;
    }
    // A pod that got its old place back may be one too many for the job's affinity or spread rules.
    for &task in tasks {
        let node = session.state().task(task).node;
        if node.is_some_and(|node| !matches_neighbours(session, task, node)) {
            return None;
        }
    }
    if !(search.is_fair)(session, tasks, &batches) {
        return None;
    }
    // A batch whose pods all got their old places back was no victim.
    let batches = batches.into_iter();
    Some(batches.filter(|batch| is_victim(session, batch)).collect())
}

/// Whether a pod of the batch leaves, moves or waits.
fn is_victim(session: &Session<'_>, batch: &VictimBatch) -> bool {
    batch.tasks.iter().any(|&task| {
        let status = session.state().task(task).status;
        matches!(
            status,
            TaskStatus::Releasing | TaskStatus::Pipelined | TaskStatus::Pending
        )
    })
}

/// The victims' jobs that have some pods, but too few.
fn broken_gangs(session: &Session<'_>, batches: &[VictimBatch]) -> BTreeSet<usize> {
    let jobs = batches.iter().map(|batch| batch.job);
    jobs.filter(|&job| has_too_few(session, job)).collect()
}

/// Places the job and as many of the victims as there is room for, in the order of their queues.
fn allocate_again(
    session: &mut Session<'_>,
    waiting: &JobsByQueue,
    view: &JobView,
    batches: &[VictimBatch],
    nodes: &[usize],
) -> bool {
    let jobs: BTreeSet<usize> = batches.iter().map(|batch| batch.job).collect();
    let victims = jobs.into_iter().filter(|&job| job != view.job);
    let victims: Vec<JobView> = victims
        .map(|job| session.facts().job(job).view.clone())
        .collect();
    // The job takes its turn among its victims. A victim whose queue deserves more goes first and keeps its place.
    let jobs = victims.into_iter().chain([view.clone()]);
    let mut job_order = JobOrder::among(session, jobs, waiting);
    let returns_once = session.facts().settings().goes(KaiBehavior::ReturnsOnce);
    let mut is_placed = false;
    while let Some(next) = job_order.pop(session) {
        let placed = allocate_job(session, &next, nodes, true);
        if next.job == view.job {
            if !placed {
                return false;
            }
            is_placed = true;
        } else if placed && !returns_once && has_lost(session, &next, batches) {
            // As in `allocate`: a job above its minimum gets pods one at a time.
            job_order.push(session, next);
        }
    }
    is_placed
}

/// Whether a job still lacks one of the pods that were evicted.
fn has_lost(session: &Session<'_>, view: &JobView, batches: &[VictimBatch]) -> bool {
    let mut tasks = batches
        .iter()
        .filter(|batch| batch.job == view.job)
        .flat_map(|batch| &batch.tasks);
    tasks.any(|&task| !session.state().has_node(task))
}
