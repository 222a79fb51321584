//! Local memory: a context is charged for it before the first launch whose threads need more.
//!
//! Variables of a thread that do not fit into registers lie in the card's memory. Each context has one area for all
//! threads that its card can run at once. At a launch that needs more, the driver enlarges that area, however few
//! threads the launch has, and never shrinks it (today's drivers behave as with `CU_CTX_LMEM_RESIZE_TO_MAX`). The
//! stacks, whose size a program sets, lie there too. So both are one setting of the context.
//!
//! At a function's first launch, the driver is asked how much the function needs. Then it is loaded, and every launch
//! passes here, however the program got the function. After that a launch is one cache lookup. A launch into a stream
//! that is being captured takes nothing; the graph is examined when it is instantiated.

use apportion_gate::{Card, ContextId, LocalMemoryFit, LocalMemoryGrowth, thread_bytes};

use crate::foreign::{Context, Device, KernelNode, OUT_OF_MEMORY, Opaque, SUCCESS, Status, Stream};
use crate::process::{self, ChargeScope, ProcessState};
use crate::{driver, launch_cache, spin_lock};

use super::context_limit::{self, STACK};

/// The outcome of a check before a launch.
enum LocalMemoryCheck {
    /// There is room for the threads, after this charge if one was needed. The flag says whether that also holds for
    /// later launches of the function.
    Reserved(Option<LocalMemoryCharge>, bool),
    /// There is no room.
    Full,
}

/// The charge for one launch.
struct LocalMemoryCharge {
    process: &'static ProcessState,
    card: Card,
    grown: LocalMemoryGrowth,
}

/// The context in which a function is launched.
#[derive(Clone, Copy)]
struct LaunchContext {
    process: &'static ProcessState,
    key: (ContextId, u32),
    card: Card,
    device: Device,
}

impl LaunchContext {
    /// The named context if it is known, else the current one; `None` if nothing is charged. The name comes from the
    /// driver, by a handle that may be invalid. So it is not asked for without a current context: there the driver
    /// refuses the launch without reading the handle.
    fn of(context: impl FnOnce() -> Option<Context>) -> Option<Self> {
        let ChargeScope::Charged(here) = process::charge_scope() else {
            return None;
        };
        let process = here.process;
        let named = context().and_then(|context| {
            let allocations = process.allocations.lock();
            let device = allocations.device_of(context as u64)?;
            Some((allocations.context(context as u64)?, device))
        });
        let ((context, card), device) =
            named.or_else(|| Some(((here.context, here.card), driver::current_device()?)))?;
        Some(Self {
            process,
            key: (context, STACK),
            card,
            device,
        })
    }

    /// The local memory that each thread needs.
    fn needed_bytes(self, function: Opaque, is_kernel: bool) -> Option<u64> {
        let device = is_kernel.then_some(self.device);
        driver::local_bytes(function, device).map(thread_bytes)
    }

    /// Charges for threads that need more than the context's area has. If other threads are doing the same, waits for
    /// them, because their charge may be enough.
    fn grow(self, now: u64, needed_bytes: u64, unit: u64) -> Result<Option<LocalMemoryCharge>, ()> {
        const TURNS: u32 = 8;
        let Self {
            process, key, card, ..
        } = self;
        for _ in 0..TURNS {
            let charge = process
                .allocations
                .lock()
                .settings
                .launch(key, now, needed_bytes, unit);
            let LocalMemoryFit::Short(more) = charge else {
                return Ok(None);
            };
            if more == 0 || process.charge(card, more) {
                let (grown, spare) =
                    process
                        .allocations
                        .lock()
                        .settings
                        .grown(key, needed_bytes, unit, more);
                process.uncharge(card, spare);
                return Ok(Some(LocalMemoryCharge {
                    process,
                    card,
                    grown,
                }));
            }
            process.allocations.lock().settings.refused(key);
            if !process.allocations.lock().settings.is_pending(key) {
                return Err(());
            }
            spin_lock::wait_for(|| {
                (!process.allocations.lock().settings.is_pending(key)).then_some(())
            });
        }
        Err(())
    }
}

/// Finds room for the threads of a function. If something cannot be found out, the driver decides.
fn find(
    function: Opaque,
    context: impl FnOnce() -> Option<Context>,
    is_captured: impl Fn() -> bool,
) -> LocalMemoryCheck {
    let nothing = |lasts| LocalMemoryCheck::Reserved(None, lasts);
    let Some(site) = LaunchContext::of(context) else {
        return nothing(false);
    };
    let (is_kernel, included) = {
        let allocations = site.process.allocations.lock();
        let is_kernel = allocations.loads.is_kernel(function as u64);
        (is_kernel, allocations.settings.included(site.key))
    };
    let stands = included.or_else(|| driver::limit(STACK));
    let Some((now, needed_bytes)) = stands.zip(site.needed_bytes(function, is_kernel)) else {
        return nothing(false);
    };
    // This much is part of every context.
    if needed_bytes <= now {
        return nothing(true);
    }
    if is_captured() {
        return nothing(false);
    }
    let Some(unit) = context_limit::unit(STACK, site.device) else {
        return nothing(false);
    };
    match site.grow(now, needed_bytes, unit) {
        Ok(growth) => LocalMemoryCheck::Reserved(growth, !is_kernel),
        Err(()) => LocalMemoryCheck::Full,
    }
}

/// Launches a function after its local memory was charged.
#[inline]
pub(super) fn after(function: Opaque, stream: Stream, ask: impl Fn() -> Status) -> Status {
    if launch_cache::has(function as usize) {
        ask()
    } else {
        with_local_memory(function, stream, &ask)
    }
}

#[cold]
#[inline(never)]
fn with_local_memory(function: Opaque, stream: Stream, ask: &dyn Fn() -> Status) -> Status {
    let LocalMemoryCheck::Reserved(growth, lasts) = find(
        function,
        || driver::context_of(stream),
        || driver::is_capturing(stream),
    ) else {
        return OUT_OF_MEMORY;
    };
    let status = ask();
    match growth {
        Some(growth) if status != SUCCESS => {
            let LocalMemoryCharge {
                process,
                card,
                grown,
            } = growth;
            let freed = process.allocations.lock().settings.failed(grown);
            process.uncharge(card, freed);
        }
        Some(_) | None if lasts => launch_cache::remember(function as usize),
        Some(_) | None => {}
    }
    status
}

/// Charges local memory for a node of a graph, which may run from now on whenever the graph is launched.
pub(super) fn fits(node: &KernelNode) -> bool {
    let (function, context) = if node.function.is_null() {
        (node.kernel, Some(node.context))
    } else {
        (node.function, None)
    };
    fits_function(function, context)
}

/// Like [`fits`], for a function, or for a kernel in a context.
pub(super) fn fits_function(function: Opaque, context: Option<Context>) -> bool {
    if function.is_null() || launch_cache::has(function as usize) {
        return true;
    }
    match find(function, || context, || false) {
        LocalMemoryCheck::Reserved(_, lasts) => {
            if lasts {
                launch_cache::remember(function as usize);
            }
            true
        }
        LocalMemoryCheck::Full => false,
    }
}
