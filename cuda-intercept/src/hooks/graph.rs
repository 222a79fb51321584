//! Graphs: the memory of their allocation nodes is charged before the first launch, the local memory of their kernels
//! before the graph becomes executable.
//!
//! A graph is built in many ways: node by node, by stream capture, as a copy, or from other graphs. All end in an
//! instantiation, so nodes are counted there. A launch of a graph without allocations costs one flag check, if no
//! graph with allocations was ever instantiated.
//!
//! A launch into a stream that is being captured runs nothing: the graph becomes part of another one, whose nodes are
//! counted in turn.

use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use apportion_gate::{Card, GraphFootprint, GraphLaunch, PoolGrowth, graph_pool, worst_growth};

use crate::driver;
use crate::foreign::{
    AllocationNode, Device, DevicePointer, OUT_OF_MEMORY, Opaque, SUCCESS, Status, Stream,
};
use crate::process::{self, ProcessState};

use super::conditional::{CONDITIONAL, bodies_of};
use super::{local_memory, pool_settlement};

type Instantiate = unsafe extern "C" fn(*mut Opaque, Opaque, Opaque, Opaque, usize) -> Status;
type InstantiateFlags = unsafe extern "C" fn(*mut Opaque, Opaque, u64) -> Status;
type InstantiateParameters = unsafe extern "C" fn(*mut Opaque, Opaque, Opaque) -> Status;
type Launch = unsafe extern "C" fn(Opaque, Stream) -> Status;
type Destroy = unsafe extern "C" fn(Opaque) -> Status;
type Trim = unsafe extern "C" fn(Device) -> Status;

/// `CU_GRAPH_NODE_TYPE_KERNEL`, `CU_GRAPH_NODE_TYPE_GRAPH`, `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
pub(super) const KERNEL: u32 = 0;
pub(super) const CHILD: u32 = 4;
const ALLOCATION: u32 = 10;
/// `CU_GRAPH_NODE_TYPE_MEM_FREE`.
const FREE: u32 = 11;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH` and `_UPLOAD`.
const AUTO_FREE: u64 = 1;
const UPLOAD: u64 = 2;
/// Graphs nested more deeply are not examined.
const DEEPEST: u32 = 16;

/// Whether a graph that allocates was ever instantiated here.
/// Written by: instantiations. Read by: every launch. Relaxed: a thread that launches a graph has seen its
/// instantiation.
static ANY: AtomicBool = AtomicBool::new(false);

/// Counts the allocations of a graph for `exec`, including those of graphs inside it.
fn count(process: &ProcessState, exec: u64, graph: Opaque, depth: u32) {
    let Some(nodes) = nodes_of(graph) else { return };
    for node in nodes {
        match driver::node_type(node) {
            Some(ALLOCATION) => count_one(process, exec, node),
            // A graph that frees its own memory in each launch holds nothing between launches.
            Some(FREE) => {
                if let Some(address) = driver::freed_by(node) {
                    process.allocations.lock().graphs.add_free(exec, address);
                }
            }
            Some(CHILD) if depth < DEEPEST => {
                if let Some(child) = driver::child_of(node) {
                    count(process, exec, child, depth.saturating_add(1));
                }
            }
            Some(_) | None => {}
        }
    }
}

fn count_one(process: &ProcessState, exec: u64, node: Opaque) {
    let mut allocation = AllocationNode::default();
    // SAFETY: the node is one of a graph that the caller holds, the pointer to a local variable.
    let status = unsafe { driver::allocation_node(node, &raw mut allocation) };
    let device = allocation.pool.location.device();
    let card = device.and_then(|device| Some((process.card_of(device)?, device)));
    if status == Some(SUCCESS)
        && let Some((card, device)) = card
    {
        let mut allocations = process.allocations.lock();
        let (address, bytes) = (allocation.address, allocation.bytes as u64);
        // The graph reserves the memory at its first launch. It is charged then, and not here.
        allocations.graphs.add(exec, card, device, address, bytes);
        ANY.store(true, Relaxed);
    }
}

/// Charges the local memory of a graph's kernels, including those of graphs and bodies inside it. An increase stays
/// charged, because the graph may be launched at any time.
pub(super) fn fits(graph: Opaque, depth: u32) -> bool {
    let Some((process, nodes)) = process::limited().and_then(|of| Some((of, nodes_of(graph)?)))
    else {
        return true;
    };
    let mut nodes = nodes.into_iter();
    nodes.all(|node| match driver::node_type(node) {
        Some(KERNEL) => driver::kernel_of(node).is_none_or(|kernel| local_memory::fits(&kernel)),
        Some(CHILD) if depth < DEEPEST => {
            let child = driver::child_of(node);
            child.is_none_or(|child| fits(child, depth.saturating_add(1)))
        }
        Some(CONDITIONAL) if depth < DEEPEST => {
            let bodies = bodies_of(process, node);
            bodies
                .into_iter()
                .all(|body| fits(body, depth.saturating_add(1)))
        }
        Some(_) | None => true,
    })
}

fn nodes_of(graph: Opaque) -> Option<Vec<Opaque>> {
    let mut count = 0;
    // SAFETY: the graph is the caller's; with null the driver only says how many nodes there are.
    let status = unsafe { driver::graph_nodes(graph, core::ptr::null_mut(), &raw mut count) };
    let mut nodes = Vec::new();
    if status != Some(SUCCESS) || nodes.try_reserve_exact(count).is_err() {
        return None;
    }
    nodes.resize(count, core::ptr::null_mut());
    // SAFETY: there is room for this many.
    let status = unsafe { driver::graph_nodes(graph, nodes.as_mut_ptr(), &raw mut count) };
    nodes.truncate(count);
    (status == Some(SUCCESS)).then_some(nodes)
}

/// Counts the allocations of a graph that was instantiated with these flags.
fn instantiated(status: Status, exec: *const Opaque, graph: Opaque, flags: u64) -> Status {
    if status == SUCCESS
        && let Some(process) = process::limited()
        // SAFETY: the driver accepted the pointer and wrote the graph.
        && let Some(exec) = unsafe { exec.as_ref() }
    {
        // An earlier graph may have had this handle, if its end was not seen.
        process.allocations.lock().graphs.destroyed(*exec as u64);
        count(process, *exec as u64, graph, 0);
        if flags & AUTO_FREE != 0 && ANY.load(Relaxed) {
            process
                .allocations
                .lock()
                .graphs
                .frees_at_launch(*exec as u64);
        }
    }
    status
}

pub(crate) unsafe fn instantiate(
    real: Instantiate,
    exec: *mut Opaque,
    graph: Opaque,
    node: Opaque,
    log: Opaque,
    bytes: usize,
) -> Status {
    if !fits(graph, 0) {
        return OUT_OF_MEMORY;
    }
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(exec, graph, node, log, bytes) };
    instantiated(status, exec, graph, 0)
}

pub(crate) unsafe fn instantiate_with_flags(
    real: InstantiateFlags,
    exec: *mut Opaque,
    graph: Opaque,
    flags: u64,
) -> Status {
    if !fits(graph, 0) {
        return OUT_OF_MEMORY;
    }
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(exec, graph, flags) };
    instantiated(status, exec, graph, flags)
}

/// This call may upload the graph at once. Then the graph is counted and charged before it has a handle, under a
/// number that no graph's handle can have.
pub(crate) unsafe fn instantiate_with_parameters(
    real: InstantiateParameters,
    exec: *mut Opaque,
    graph: Opaque,
    parameters: Opaque,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let ask = || unsafe { real(exec, graph, parameters) };
    if !fits(graph, 0) {
        return OUT_OF_MEMORY;
    }
    // SAFETY: the flags are the first of the parameters, which the caller passes as to the driver.
    let flags = unsafe { parameters.cast::<u64>().as_ref() };
    let flags = flags.copied().unwrap_or(0);
    let uploads = flags & UPLOAD != 0;
    let Some(process) = process::limited().filter(|_| uploads && !exec.is_null()) else {
        return instantiated(ask(), exec, graph, flags);
    };
    // Handles are aligned pointers, so none of them is odd.
    let coming = graph as u64 ^ 1;
    count(process, coming, graph, 0);
    let stream = core::ptr::null_mut();
    let status = launch_after(process, coming, stream, None, &ask);
    process.allocations.lock().graphs.destroyed(coming);
    // SAFETY: the driver accepted the pointer and wrote the graph.
    let made = unsafe { exec.as_ref() }.filter(|_| status == SUCCESS);
    instantiated(status, exec, graph, flags);
    if let Some(made) = made {
        process.allocations.lock().graphs.launched(*made as u64);
    }
    status
}

/// The charge for one launch on one card.
struct GraphLaunchCharge {
    footprint: GraphFootprint,
    growth: Option<PoolGrowth>,
    flight: Option<u64>,
}

/// The card memory of graphs in other streams that were launched and may still run.
fn in_flight(process: &ProcessState, own: GraphLaunch) -> u64 {
    let (mut last, mut sum) = (0, 0_u64);
    // The driver is asked without the lock, which other launches need. So the list is walked by number.
    loop {
        let next = process.allocations.lock().graphs.flights.ask_after(last);
        let Some((number, flight, event)) = next else {
            return sum;
        };
        last = number;
        let is_over = event.is_some_and(|event| !driver::is_pending(event));
        let useless = process
            .allocations
            .lock()
            .graphs
            .flights
            .asked(number, is_over);
        useless.into_iter().for_each(driver::forget_event);
        let is_other = flight.exec != own.exec && flight.stream != own.stream;
        if is_other && !is_over && flight.card == own.card {
            sum = sum.saturating_add(flight.bytes);
        }
    }
}

/// How much the pool may grow for a launch whose memory was there before, and the launch's number. Without other
/// graphs on the card the pool does not grow.
fn again(
    process: &ProcessState,
    footprint: GraphFootprint,
    exec: u64,
    stream: Stream,
) -> (u64, Option<u64>) {
    let flight = GraphLaunch {
        exec,
        stream: stream as u64,
        card: footprint.card,
        bytes: footprint.bytes,
    };
    let number = {
        let mut allocations = process.allocations.lock();
        if !allocations.graphs.has_others(exec, footprint.card) {
            return (0, None);
        }
        allocations.graphs.flights.begin(flight)
    };
    let beside = in_flight(process, flight);
    let allocations = process.allocations.lock();
    let live = allocations.graphs.live_beside(exec, footprint.card);
    // The driver reuses pool memory only if the launch that had it is over. So what others may still use is added.
    let all = footprint.bytes.saturating_add(beside).saturating_add(live);
    let beyond = all.saturating_sub(allocations.pools.reserved(graph_pool(footprint.device)));
    (worst_growth(beyond).min(footprint.growth), Some(number))
}

impl GraphLaunchCharge {
    /// Charges for the growth of the pool, if growth is expected.
    fn charge(
        process: &ProcessState,
        footprint: GraphFootprint,
        exec: u64,
        stream: Stream,
    ) -> Option<Self> {
        let (more, flight) = again(process, footprint, exec, stream);
        let has_all = process
            .allocations
            .lock()
            .graphs
            .has_all(exec, footprint.card);
        let growth = if footprint.is_resident || has_all {
            more
        } else {
            footprint.growth
        };
        if growth > 0 && !process.charge(footprint.card, growth) {
            if let Some(number) = flight {
                process
                    .allocations
                    .lock()
                    .graphs
                    .flights
                    .launched(number, None);
            }
            return None;
        }
        let pool = graph_pool(footprint.device);
        let mut allocations = process.allocations.lock();
        allocations.pools.enter(pool, Some(footprint.card));
        let growth = match growth {
            0 => None,
            bytes => allocations.pools.begin(pool, bytes),
        };
        Some(Self {
            footprint,
            growth,
            flight,
        })
    }

    /// Settles the charge with what the pool reserves now.
    fn end(self, process: &ProcessState, stream: Stream) {
        if let Some(number) = self.flight {
            let event = driver::event_behind(stream).map(|event| event as u64);
            let next = || {
                process
                    .allocations
                    .lock()
                    .graphs
                    .flights
                    .launched(number, event)
            };
            while let Some(useless) = next() {
                driver::forget_event(useless);
            }
        }
        pool_settlement::settle(process, graph_pool(self.footprint.device), self.growth);
        if let Some(growth) = self.growth {
            let settled = process.allocations.lock().pools.made(growth, None);
            process.settle(settled);
        }
    }
}

/// Charges every card on which the graph allocates, launches the graph, and settles the cards in reverse order. Each card
/// is a frame of the recursion, so that a launch allocates nothing.
fn launch_after(
    process: &ProcessState,
    exec: u64,
    stream: Stream,
    after: Option<Card>,
    ask: &dyn Fn() -> Status,
) -> Status {
    let footprint = process
        .allocations
        .lock()
        .graphs
        .next_footprint(exec, after);
    let Some(footprint) = footprint else {
        return ask();
    };
    let Some(begun) = GraphLaunchCharge::charge(process, footprint, exec, stream) else {
        return OUT_OF_MEMORY;
    };
    let status = launch_after(process, exec, stream, Some(footprint.card), ask);
    begun.end(process, stream);
    status
}

/// Launches or uploads a graph. Both take the same memory.
pub(crate) unsafe fn launch(real: Launch, exec: Opaque, stream: Stream) -> Status {
    // SAFETY: the arguments are the caller's own.
    let ask = || unsafe { real(exec, stream) };
    if !ANY.load(Relaxed) {
        return ask();
    }
    match process::limited() {
        Some(process) if !driver::is_capturing(stream) => {
            let status = launch_after(process, exec as u64, stream, None, &ask);
            if status == SUCCESS {
                process.allocations.lock().graphs.launched(exec as u64);
            }
            status
        }
        Some(_) | None => ask(),
    }
}

/// The program freed an address that is not recorded. A graph may have allocated it.
pub(super) fn freed(process: &ProcessState, address: DevicePointer) {
    if ANY.load(Relaxed) && process.account().is_some() {
        process.allocations.lock().graphs.freed(address);
    }
}

/// The memory stays in the driver's pool, and stays charged, until the pool is trimmed.
pub(crate) unsafe fn destroy(real: Destroy, exec: Opaque) -> Status {
    // SAFETY: the graph is the caller's own.
    let status = unsafe { real(exec) };
    if status == SUCCESS
        && ANY.load(Relaxed)
        && let Some(process) = process::limited()
    {
        process.allocations.lock().graphs.destroyed(exec as u64);
    }
    status
}

pub(crate) unsafe fn trim(real: Trim, device: Device) -> Status {
    // SAFETY: the device is the caller's own.
    let status = unsafe { real(device) };
    if let Some(process) = process::limited() {
        process.allocations.lock().graphs.trimmed(device);
    }
    pool_settlement::settle_all();
    status
}
