//! Resource claims: which devices a pod may use, and on which node.
//!
//! A claim gets its devices with the first pod that names it. It loses them when the last such pod is gone. Until
//! then, every pod that names it must run on a node that reaches them.
//!
//! Devices are chosen together with the node, and counted in the [state](crate::state) from then on. So two pods of
//! one session never get the same device. Where the cluster has no [allocator](crate::cluster::DeviceAllocator),
//! devices are only counted by class, and those of a claim are all on one node.

use std::borrow::Cow;
use std::sync::Arc;

use crate::claim_devices::ClaimDevices;
use crate::cluster::DeviceGrant;
use crate::session::Session;

/// How many pods may share a claim: `ResourceClaimReservedForMaxSize` of Kubernetes.
pub const MOST_CLAIM_CONSUMERS: usize = 256;

/// Why a pod can't use its claims on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimRefusal {
    /// Claims are not allowed.
    Disallowed,
    /// The claim with this name does not exist.
    Missing(String),
    /// No pod can use the claim with this name: the name and the reason.
    Unusable(String, String),
    /// The claim with this name belongs to another queue.
    OtherQueue(String),
    /// The claim with this name has as many users as it may have.
    TooManyUsers(String),
    /// The claim has its devices on another node: the names of the claim and of the node.
    Elsewhere(String, String),
    /// Too few devices of a class are free: the class, how many are wanted, how many are free.
    TooFewDevices(String, i64, i64),
    /// The node does not reach the devices that the claim with this name has.
    OutOfReach(String),
    /// The allocator found no devices, and says why.
    NotAllocated(String),
}

/// The devices for a task on a node, and whether others must give them up first.
#[derive(Debug, Default)]
pub(crate) struct ChosenDevices {
    pub(crate) devices: ClaimDevices,
    pub(crate) must_wait: bool,
}

/// Whether the task can use its claims on this node.
pub(crate) fn grants_claims(session: &Session<'_>, task: usize, node: usize) -> bool {
    if session
        .facts()
        .task(task)
        .task
        .all_claims()
        .next()
        .is_none()
    {
        return true;
    }
    let claims = match usable_claims(session, task, node) {
        Ok(claims) => claims,
        Err(_) => return false,
    };
    if session.facts().allocator().is_none() {
        return lacking_devices(session, task, &claims, node).is_none();
    }
    let Ok(known) = known_devices(session, task, &claims, node) else {
        return false;
    };
    let holdings = session.state().claim_holdings();
    let name = &session.facts().node(node).name;
    holdings.can_allocate_soon(name, &known.names(session))
}

/// Why the task can't use its claims on this node, if so.
pub(crate) fn claim_refusal(
    session: &Session<'_>,
    task: usize,
    node: usize,
) -> Option<ClaimRefusal> {
    let asked = session.facts().task(task).task;
    asked.all_claims().next()?;
    let claims = match usable_claims(session, task, node) {
        Ok(claims) => claims,
        Err(refusal) => return Some(refusal),
    };
    match session.facts().allocator() {
        None => lacking_devices(session, task, &claims, node),
        Some(_) => free_soon(session, task, &claims, node).err(),
    }
}

/// The claims that a task needs on a node, if it may use them all.
fn usable_claims<'s>(
    session: &'s Session<'_>,
    task: usize,
    node: usize,
) -> Result<Cow<'s, [usize]>, ClaimRefusal> {
    let facts = session.facts().task(task);
    let Some(claims) = session.facts().claims_on(task, node) else {
        let mut names = facts.task.all_claims();
        let missing = names.find(|name| session.facts().find_claim(name).is_none());
        return Err(ClaimRefusal::Missing(missing.cloned().unwrap_or_default()));
    };
    if !claims.is_empty() && !session.facts().settings().allows_claims {
        return Err(ClaimRefusal::Disallowed);
    }
    let queue = &session.facts().job(facts.job).job.queue;
    let unusable = claims.iter().find_map(|&claim| {
        let claim = session.facts().claim(claim).claim;
        let is_open = !claim.is_of_cards || claim.is_for_one_pod;
        if let Some(defect) = &claim.defect {
            Some(ClaimRefusal::Unusable(claim.name.clone(), defect.clone()))
        } else if claim.consumers >= MOST_CLAIM_CONSUMERS {
            Some(ClaimRefusal::TooManyUsers(claim.name.clone()))
        } else if !is_open && claim.queue.as_ref() != Some(queue) {
            Some(ClaimRefusal::OtherQueue(claim.name.clone()))
        } else {
            None
        }
    });
    unusable.map_or(Ok(claims), Err)
}

/// The devices that the task has on this node, with those for claims that have none yet. Nothing if there are too few.
pub(crate) fn devices_for(
    session: &Session<'_>,
    task: usize,
    node: usize,
) -> Option<ChosenDevices> {
    let facts = session.facts();
    let claims = facts.claims_on(task, node).unwrap_or_default();
    if facts.allocator().is_none() || claims.is_empty() {
        return Some(ChosenDevices::default());
    }
    let known = known_devices(session, task, &claims, node).ok()?;
    let holdings = session.state().claim_holdings();
    let name = &facts.node(node).name;
    let names = known.names(session);
    if !known.must_wait
        && let Ok(grants) = holdings.allocate_now(name, &names)
    {
        return Some(known.with(grants, false));
    }
    let grants = holdings.allocate_soon(name, &names).ok()?;
    Some(known.with(grants, true))
}

/// Whether the task finds devices on this node, counting those that are about to be given up.
fn free_soon(
    session: &Session<'_>,
    task: usize,
    claims: &[usize],
    node: usize,
) -> Result<(), ClaimRefusal> {
    let known = known_devices(session, task, claims, node)?;
    let holdings = session.state().claim_holdings();
    let name = &session.facts().node(node).name;
    let found = holdings.allocate_soon(name, &known.names(session));
    found.map(|_| ()).map_err(ClaimRefusal::NotAllocated)
}

/// What is known of a task's claims before devices are chosen.
struct KnownDevices {
    held: ClaimDevices,
    /// The claims that are yet to get devices.
    open: Vec<usize>,
    /// Whether such a claim has to give up other devices first.
    must_wait: bool,
}

impl KnownDevices {
    fn names<'s>(&self, session: &'s Session<'_>) -> Vec<&'s str> {
        let open = self.open.iter();
        open.map(|&claim| session.facts().claim(claim).claim.name.as_str())
            .collect()
    }

    fn with(mut self, grants: Vec<DeviceGrant>, waits: bool) -> ChosenDevices {
        let new = self.open.into_iter().zip(grants);
        self.held.0.extend(new);
        ChosenDevices {
            devices: self.held,
            must_wait: self.must_wait || waits,
        }
    }
}

fn known_devices(
    session: &Session<'_>,
    task: usize,
    claims: &[usize],
    node: usize,
) -> Result<KnownDevices, ClaimRefusal> {
    let mut known = KnownDevices {
        held: ClaimDevices::default(),
        open: Vec::new(),
        must_wait: false,
    };
    let holdings = session.state().claim_holdings();
    let name = &session.facts().node(node).name;
    let own = session.state().task(task);
    for &claim in claims {
        match holdings.staying(claim, own) {
            Some(grant) if holdings.reaches(name, grant) => {
                known.held.0.push((claim, Arc::clone(grant)));
            }
            Some(_) => {
                let name = session.facts().claim(claim).claim.name.clone();
                return Err(ClaimRefusal::OutOfReach(name));
            }
            None => {
                known.must_wait |= holdings.is_leaving(claim);
                known.open.push(claim);
            }
        }
    }
    Ok(known)
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
