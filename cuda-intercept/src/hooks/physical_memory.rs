//! What happens when physical memory loses its last reference: its charge is taken off, unless others still hold it.

use apportion_gate::{BindingHolder, Card, DroppedReference, EndingContext, HeldMemory};

use crate::process::ProcessState;

use super::{exported_descriptors, shared_holds};

/// Releases what a last reference kept: first the shares that others know, then the charge. A reference without a
/// charge may be a multicast object, which drops what it holds.
pub(super) fn give_back(process: &ProcessState, dropped: DroppedReference) {
    give_back_with(process, dropped, |card, bytes| {
        process.uncharge(card, bytes)
    });
}

/// Like [`give_back`]; `uncharge` takes the charge off.
pub(super) fn give_back_with(
    process: &ProcessState,
    dropped: DroppedReference,
    uncharge: impl Fn(Card, u64),
) {
    let Some(id) = dropped.last_of else { return };
    let memory = HeldMemory::Physical(id);
    if let Some(charge) = dropped.charge
        && exported_descriptors::keep(process, memory, charge)
    {
        return;
    }
    shared_holds::leave(process, memory);
    match dropped.charge {
        Some((card, bytes)) => uncharge(card, bytes),
        None if dropped.is_shared => {}
        None => let_go_of(process, BindingHolder::Multicast(id)),
    }
}

/// Drops everything that a holder held, because the holder is gone.
pub(super) fn let_go_of(process: &ProcessState, holder: BindingHolder) {
    loop {
        let dropped = process.allocations.lock().let_go_of(holder);
        let Some(dropped) = dropped else { return };
        give_back(process, dropped);
    }
}

/// Drops everything that the arrays of a context held, because the context is gone.
pub(super) fn let_go_in(process: &ProcessState, ended: EndingContext) {
    loop {
        let dropped = process.allocations.lock().let_go_in(ended);
        let Some(dropped) = dropped else { return };
        give_back(process, dropped);
    }
}
