//! Graphs: what their nodes allocate is charged before the first launch, and what the threads of their
//! kernels need before the graph becomes executable.
//!
//! A graph is made in many ways: node by node, by capturing a stream, as a copy, out of others. All end in
//! an instantiation, so there its nodes are counted. A graph without allocations costs one look at a flag
//! when it is launched, and as long as the process has none with, the flag is down.
//!
//! A launch into a stream that is being captured launches nothing: the graph becomes part of another, whose
//! nodes are counted in turn.

use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use apportion_gate::{Card, Growth, Need, graph_pool};

use crate::driver;
use crate::foreign::{AllocationNode, Device, OUT_OF_MEMORY, Opaque, SUCCESS, Status, Stream};
use crate::process::{self, Process};

use super::{pool, room};

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
/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const UPLOAD: u64 = 2;
/// Graphs that lie deeper in others are not looked at.
const DEEPEST: u32 = 16;

/// Whether a graph that allocates was ever instantiated here.
/// Written by: instantiations. Read by: every launch. Relaxed: who launches a graph has seen it made.
static ANY: AtomicBool = AtomicBool::new(false);

/// Counts the allocations of a graph for `exec`, those of the graphs in it included.
fn count(process: &Process, exec: u64, graph: Opaque, depth: u32) {
    let Some(nodes) = nodes_of(graph) else { return };
    for node in nodes {
        match driver::node_type(node) {
            Some(ALLOCATION) => count_one(process, exec, node),
            Some(CHILD) if depth < DEEPEST => {
                if let Some(child) = driver::child_of(node) {
                    count(process, exec, child, depth.saturating_add(1));
                }
            }
            Some(_) | None => {}
        }
    }
}

fn count_one(process: &Process, exec: u64, node: Opaque) {
    let mut allocation = AllocationNode::default();
    // SAFETY: the node is one of a graph that the caller holds, the pointer to a local variable.
    let status = unsafe { driver::allocation_node(node, &raw mut allocation) };
    let device = allocation.pool.location.device();
    let card = device.and_then(|device| Some((process.card_of(device)?, device)));
    if status == Some(SUCCESS)
        && let Some(card) = card
    {
        let mut books = process.books.lock();
        books.graphs.add(exec, card, allocation.bytes as u64);
        ANY.store(true, Relaxed);
    }
}

/// Makes room for the threads of a graph's kernels, those of the graphs in it included. What it grew by
/// stays, as the graph may be launched at any time.
pub(super) fn fits(graph: Opaque, depth: u32) -> bool {
    let nodes = process::limited().and_then(|_| nodes_of(graph));
    let mut nodes = nodes.into_iter().flatten();
    nodes.all(|node| match driver::node_type(node) {
        Some(KERNEL) => driver::kernel_of(node).is_none_or(|kernel| room::fits(&kernel)),
        Some(CHILD) if depth < DEEPEST => {
            let child = driver::child_of(node);
            child.is_none_or(|child| fits(child, depth.saturating_add(1)))
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
    // SAFETY: there is room for so many.
    let status = unsafe { driver::graph_nodes(graph, nodes.as_mut_ptr(), &raw mut count) };
    nodes.truncate(count);
    (status == Some(SUCCESS)).then_some(nodes)
}

/// Counts what was instantiated.
fn instantiated(status: Status, exec: *const Opaque, graph: Opaque) -> Status {
    if status == SUCCESS
        && let Some(process) = process::limited()
        // SAFETY: the driver accepted the pointer and wrote the graph.
        && let Some(exec) = unsafe { exec.as_ref() }
    {
        // One of before had the handle, if its end was not seen.
        process.books.lock().graphs.destroyed(*exec as u64);
        count(process, *exec as u64, graph, 0);
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
    instantiated(unsafe { real(exec, graph, node, log, bytes) }, exec, graph)
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
    instantiated(unsafe { real(exec, graph, flags) }, exec, graph)
}

/// May upload the graph at once. Then it is counted, and charged, before it has a handle, under one that no
/// graph has.
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
    let uploads = flags.is_some_and(|flags| flags & UPLOAD != 0);
    let Some(process) = process::limited().filter(|_| uploads && !exec.is_null()) else {
        return instantiated(ask(), exec, graph);
    };
    let coming = graph as u64 ^ 1;
    count(process, coming, graph, 0);
    let status = launch_after(process, coming, None, &ask);
    process.books.lock().graphs.destroyed(coming);
    // SAFETY: the driver accepted the pointer and wrote the graph.
    let made = unsafe { exec.as_ref() }.filter(|_| status == SUCCESS);
    instantiated(status, exec, graph);
    if let Some(made) = made {
        process.books.lock().graphs.launched(*made as u64);
    }
    status
}

/// What was charged for one launch on one card.
struct Begun {
    need: Need,
    growth: Option<Growth>,
}

impl Begun {
    /// Charges for the growth of a pool, if it is to be expected.
    fn charge(process: &Process, need: Need) -> Option<Self> {
        let growth = match need.is_resident {
            true => 0,
            false => need.growth,
        };
        if growth > 0 && !process.charge(need.card, growth) {
            return None;
        }
        let pool = graph_pool(need.device);
        let mut books = process.books.lock();
        books.pools.enter(pool, Some(need.card));
        let growth = match growth {
            0 => None,
            bytes => books.pools.begin(pool, bytes),
        };
        Some(Self { need, growth })
    }

    /// Settles with what the pool reserves now.
    fn end(self, process: &Process) {
        pool::settle(process, graph_pool(self.need.device), self.growth);
        if let Some(growth) = self.growth {
            let settled = process.books.lock().pools.made(growth, None);
            process.settle(settled);
        }
    }
}

/// Charges for every card that the graph allocates on, launches, and settles, in this order on the way in
/// and in the other on the way out.
fn launch_after(
    process: &Process,
    exec: u64,
    after: Option<Card>,
    ask: &dyn Fn() -> Status,
) -> Status {
    let need = process.books.lock().graphs.need_after(exec, after);
    let Some(need) = need else { return ask() };
    let Some(begun) = Begun::charge(process, need) else {
        return OUT_OF_MEMORY;
    };
    let status = launch_after(process, exec, Some(need.card), ask);
    begun.end(process);
    status
}

/// Launches, or uploads, which takes the same.
pub(crate) unsafe fn launch(real: Launch, exec: Opaque, stream: Stream) -> Status {
    // SAFETY: the arguments are the caller's own.
    let ask = || unsafe { real(exec, stream) };
    if !ANY.load(Relaxed) {
        return ask();
    }
    match process::limited() {
        Some(process) if !driver::is_capturing(stream) => {
            let status = launch_after(process, exec as u64, None, &ask);
            if status == SUCCESS {
                process.books.lock().graphs.launched(exec as u64);
            }
            status
        }
        Some(_) | None => ask(),
    }
}

/// The memory stays in the driver's pool, and charged, until that is trimmed.
pub(crate) unsafe fn destroy(real: Destroy, exec: Opaque) -> Status {
    // SAFETY: the graph is the caller's own.
    let status = unsafe { real(exec) };
    if status == SUCCESS
        && ANY.load(Relaxed)
        && let Some(process) = process::limited()
    {
        process.books.lock().graphs.destroyed(exec as u64);
    }
    status
}

pub(crate) unsafe fn trim(real: Trim, device: Device) -> Status {
    // SAFETY: the device is the caller's own.
    let status = unsafe { real(device) };
    if let Some(process) = process::limited() {
        process.books.lock().graphs.trimmed(device);
    }
    pool::settle_all();
    status
}
