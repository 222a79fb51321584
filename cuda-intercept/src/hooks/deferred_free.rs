//! Charges that wait for a stream: see the gate's `DeferredFrees`.

use apportion_gate::{Card, DeferredFree, PoolSettlement};

use crate::driver;
use crate::foreign::Stream;
use crate::process::ProcessState;

/// Applies a pool's settlement. What it gives back is uncharged when the stream gets there.
pub(super) fn settle(process: &ProcessState, settled: PoolSettlement, stream: Stream) {
    let PoolSettlement::GiveBack(card, bytes) = settled else {
        return process.settle(settled);
    };
    // Without an event the time is unknown. The memory is uncharged now, and NVML shows what is still in use.
    let behind = Some(stream).filter(|stream| !driver::is_capturing(*stream));
    match behind.and_then(driver::event_behind) {
        Some(event) => {
            let event = event as u64;
            process
                .allocations
                .lock()
                .deferred_frees
                .wait(DeferredFree { event, card, bytes });
        }
        None => process.uncharge(card, bytes),
    }
}

/// Uncharges what every stream that got there has freed. True if any of it was on this card.
pub(super) fn uncharge_freed(process: &ProcessState, card: Option<Card>) -> bool {
    let (mut last, mut any) = (None, false);
    loop {
        let next = process.allocations.lock().deferred_frees.take_after(last);
        let Some(free) = next else { return any };
        last = Some(free.event);
        if driver::is_pending(free.event) {
            process.allocations.lock().deferred_frees.wait(free);
            continue;
        }
        driver::forget_event(free.event);
        process.uncharge(free.card, free.bytes);
        any |= card == Some(free.card);
    }
}
