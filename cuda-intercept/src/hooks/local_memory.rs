//! Room for threads: a context is charged for what those of a kernel need before the first launch that needs
//! more.
//!
//! Variables of a thread that have no register lie in the card's memory. A context has one place for the
//! threads that its card can run at once; the driver makes it larger at a launch that needs more, however few
//! threads that has, and never smaller again (`CU_CTX_LMEM_RESIZE_TO_MAX` is the rule in today's drivers). The
//! stacks, which a program sets, lie there too, so both are one setting of the context.
//!
//! What a function needs the driver is asked when it is first launched: then it is loaded, and whoever handed
//! it out, it comes by here. Afterwards a launch is one look. A launch into a stream that is being captured
//! takes nothing; the graph is looked at when it is instantiated.

use apportion_gate::{Card, ContextId, LocalMemoryFit, LocalMemoryGrowth, thread_bytes};

use crate::foreign::{Context, Device, KernelNode, OUT_OF_MEMORY, Opaque, SUCCESS, Status, Stream};
use crate::process::{self, ChargeScope, ProcessState};
use crate::{driver, launch_cache, spin_lock};

use super::context_limit::{self, STACK};

/// What a launch finds.
enum LocalMemoryCheck {
    /// Room for its threads; if that grew, by this. It may be there whenever the function is launched again.
    Room(Option<LocalMemoryCharge>, bool),
    /// No room.
    Full,
}

/// What was charged for one launch.
struct LocalMemoryCharge {
    process: &'static ProcessState,
    card: Card,
    grown: LocalMemoryGrowth,
}

/// A context in which a function is launched.
#[derive(Clone, Copy)]
struct LaunchContext {
    process: &'static ProcessState,
    key: (ContextId, u32),
    card: Card,
    device: Device,
}

impl LaunchContext {
    /// The named context, if it is known, else the current one; `None` where nothing is charged. Whose context it
    /// is may have to be asked of a handle that is none, so it is not asked where the driver refuses a launch
    /// without looking at the handle: where there is no context.
    fn of(context: impl FnOnce() -> Option<Context>) -> Option<Self> {
        let ChargeScope::Charged(here) = process::ground() else {
            return None;
        };
        let process = here.process;
        let named = context().and_then(|context| {
            let books = process.books.lock();
            let device = books.device_of(context as u64)?;
            Some((books.context(context as u64)?, device))
        });
        let current = || Some(((here.context, here.card), driver::current_device()?));
        let ((context, card), device) = named.or_else(current)?;
        Some(Self {
            process,
            key: (context, STACK),
            card,
            device,
        })
    }

    /// What each thread needs.
    fn need(self, function: Opaque, is_kernel: bool) -> Option<u64> {
        let device = is_kernel.then_some(self.device);
        driver::local_bytes(function, device).map(thread_bytes)
    }

    /// Makes room for threads that need more than a context includes. Others that do the same are waited for:
    /// what they pay for may be enough.
    fn grow(self, now: u64, need: u64, unit: u64) -> Result<Option<LocalMemoryCharge>, ()> {
        const TURNS: u32 = 8;
        let Self {
            process, key, card, ..
        } = self;
        for _ in 0..TURNS {
            let room = process.books.lock().settings.launch(key, now, need, unit);
            let LocalMemoryFit::Short(more) = room else {
                return Ok(None);
            };
            if more == 0 || process.charge(card, more) {
                let (grown, spare) = process.books.lock().settings.grown(key, need, unit, more);
                process.uncharge(card, spare);
                return Ok(Some(LocalMemoryCharge {
                    process,
                    card,
                    grown,
                }));
            }
            process.books.lock().settings.refused(key);
            if !process.books.lock().settings.is_pending(key) {
                return Err(());
            }
            spin_lock::wait_for(|| (!process.books.lock().settings.is_pending(key)).then_some(()));
        }
        Err(())
    }
}

/// Finds room for the threads of a function. What cannot be found out is the driver's to say.
fn find(
    function: Opaque,
    context: impl FnOnce() -> Option<Context>,
    is_captured: impl Fn() -> bool,
) -> LocalMemoryCheck {
    let nothing = |lasts| LocalMemoryCheck::Room(None, lasts);
    let Some(site) = LaunchContext::of(context) else {
        return nothing(false);
    };
    let (is_kernel, included) = {
        let books = site.process.books.lock();
        let is_kernel = books.loads.is_kernel(function as u64);
        (is_kernel, books.settings.included(site.key))
    };
    let stands = included.or_else(|| driver::limit(STACK));
    let Some((now, need)) = stands.zip(site.need(function, is_kernel)) else {
        return nothing(false);
    };
    // Every context includes the same.
    if need <= now {
        return nothing(true);
    }
    if is_captured() {
        return nothing(false);
    }
    let Some(unit) = context_limit::unit(STACK, site.device) else {
        return nothing(false);
    };
    match site.grow(now, need, unit) {
        Ok(growth) => LocalMemoryCheck::Room(growth, !is_kernel),
        Err(()) => LocalMemoryCheck::Full,
    }
}

/// Launches a function, with room for its threads.
#[inline]
pub(super) fn after(function: Opaque, stream: Stream, ask: impl Fn() -> Status) -> Status {
    match launch_cache::has(function as usize) {
        true => ask(),
        false => after_room(function, stream, &ask),
    }
}

#[cold]
#[inline(never)]
fn after_room(function: Opaque, stream: Stream, ask: &dyn Fn() -> Status) -> Status {
    let context = || driver::context_of(stream);
    let LocalMemoryCheck::Room(growth, lasts) =
        find(function, context, || driver::is_capturing(stream))
    else {
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
            let freed = process.books.lock().settings.failed(grown);
            process.uncharge(card, freed);
        }
        Some(_) | None if lasts => launch_cache::note(function as usize),
        Some(_) | None => {}
    }
    status
}

/// Makes room for the threads of a graph's node, which may run whenever the graph is launched from now on.
pub(super) fn fits(node: &KernelNode) -> bool {
    let (function, context) = match node.function.is_null() {
        true => (node.kernel, Some(node.context)),
        false => (node.function, None),
    };
    fits_function(function, context)
}

/// The same of a function, or of a kernel in a context.
pub(super) fn fits_function(function: Opaque, context: Option<Context>) -> bool {
    if function.is_null() || launch_cache::has(function as usize) {
        return true;
    }
    match find(function, || context, || false) {
        LocalMemoryCheck::Room(_, lasts) => {
            if lasts {
                launch_cache::note(function as usize);
            }
            true
        }
        LocalMemoryCheck::Full => false,
    }
}
