//! Resource claims: which devices a pod may use, and on which node.
//!
//! A claim gets its devices, all on one node, with the first pod that names it. It loses them when the last such
//! pod is gone. Until then, every pod that names it must run on that node.

use crate::session::Session;

/// How many pods may share a claim.
const CONSUMERS: usize = 256;

/// Why a pod can't use its claims on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimRefusal {
    /// Claims are not allowed.
    Disallowed,
    /// One of its claims does not exist.
    Missing,
    /// The claim with this name belongs to another queue.
    OtherQueue(String),
    /// The claim with this name has as many users as it may have.
    TooManyUsers(String),
    /// The claim has its devices on another node: the names of the claim and of the node.
    Elsewhere(String, String),
    /// Too few devices of a class are free: the class, how many are wanted, how many are free.
    TooFewDevices(String, i64, i64),
}

/// Whether the task can use its claims on this node.
pub(crate) fn grants_claims(session: &Session<'_>, task: usize, node: usize) -> bool {
    session.facts().task(task).task.claims.is_empty()
        || claim_refusal(session, task, node).is_none()
}

/// Why the task can't use its claims on this node, if so.
pub(crate) fn claim_refusal(
    session: &Session<'_>,
    task: usize,
    node: usize,
) -> Option<ClaimRefusal> {
    let facts = session.facts().task(task);
    if facts.task.claims.is_empty() {
        return None;
    }
    if !session.facts().settings().allows_claims {
        return Some(ClaimRefusal::Disallowed);
    }
    let Some(claims) = &facts.claims else {
        return Some(ClaimRefusal::Missing);
    };
    let queue = &session.facts().job(facts.job).job.queue;
    let unusable = claims.iter().find_map(|&claim| {
        let claim = session.facts().claim(claim).claim;
        let is_open = !claim.is_of_cards || claim.is_for_one_pod;
        if claim.consumers >= CONSUMERS {
            Some(ClaimRefusal::TooManyUsers(claim.name.clone()))
        } else if !is_open && claim.queue.as_ref() != Some(queue) {
            Some(ClaimRefusal::OtherQueue(claim.name.clone()))
        } else {
            None
        }
    });
    unusable.or_else(|| lacking_devices(session, task, claims, node))
}

/// The first claim that is on another node, or that finds too few devices here.
fn lacking_devices(
    session: &Session<'_>,
    task: usize,
    claims: &[usize],
    node: usize,
) -> Option<ClaimRefusal> {
    let mut wanted = claims.iter().enumerate();
    wanted.find_map(|(index, &claim)| {
        let own = session.facts().claim(claim).claim;
        if let Some(home) = home_of(session, claim, task) {
            let (name, home_name) = (own.name.clone(), session.facts().node(home).name.clone());
            return (home != node).then_some(ClaimRefusal::Elsewhere(name, home_name));
        }
        // Earlier claims of the same pod are served first.
        let before = claims[..index].iter().filter(|&&other| {
            session.facts().claim(other).claim.class == own.class
                && home_of(session, other, task).is_none()
        });
        let allocated = before.fold(0, |sum: i64, &other| {
            sum.saturating_add(session.facts().claim(other).claim.devices)
        });
        let asked = allocated.saturating_add(own.devices);
        let free = free_devices(session, &own.class, node, task);
        (asked > free).then(|| ClaimRefusal::TooFewDevices(own.class.clone(), asked, free))
    })
}

/// The node that has the devices of a claim, as long as another pod than `task` uses them.
fn home_of(session: &Session<'_>, claim: usize, task: usize) -> Option<usize> {
    let facts = session.facts().claim(claim);
    let mut others = facts.users.iter().filter(|&&user| user != task);
    let used_on = others.find_map(|&user| {
        let state = session.state().task(user);
        state.node.filter(|_| state.status.is_active_allocated())
    });
    let strangers = facts.claim.consumers > facts.users.len();
    let given = facts.given.as_ref().map(|given| given.node);
    used_on.or(given.filter(|_| strangers))
}

/// Devices of a class on a node that no claim has.
fn free_devices(session: &Session<'_>, class: &str, node: usize, task: usize) -> i64 {
    let has = session
        .facts()
        .node(node)
        .devices
        .get(class)
        .copied()
        .unwrap_or(0);
    let allocated = session
        .facts()
        .claims()
        .iter()
        .enumerate()
        .filter(|(claim, facts)| {
            facts.claim.class == class && home_of(session, *claim, task) == Some(node)
        });
    allocated.fold(has, |free, (_, facts)| {
        free.saturating_sub(facts.claim.devices)
    })
}
