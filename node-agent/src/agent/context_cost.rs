//! Measures what CUDA contexts cost. At the first request for a card of an unknown model the agent runs a probe. The
//! request waits until the probe has ended, at most for the probe's timeout. It waits for the end, not only for the
//! measurement: the probe's memory would be missing on a card that is given whole.

use std::ops::RangeInclusive;

use super::*;
use crate::driver::probe;
use crate::driver::reserve::{self, ContextCost};

/// The range of plausible costs, for a measurement that may include other processes.
const PLAUSIBLE: RangeInclusive<Bytes> = Bytes::from_mib(32)..=Bytes::from_mib(2048);

/// A running probe.
pub(super) struct RunningProbe {
    probe: ContextProbe,
    started: Instant,
    /// The sequence number of the first sample that shows it, once it holds its context.
    shown_by: Option<u64>,
    is_ready: bool,
    /// The card's used memory before the probe.
    used_before: Bytes,
    /// The cost of its first context, once measured. The probe then opens a second one.
    first: Option<Bytes>,
    /// Whether it was told to end.
    is_over: bool,
}

/// Waits until the probe holds a context, or, once it is over, until it has ended. Waits for ever if there is no
/// probe or its context was already reported.
pub(super) async fn ready(running: &mut Option<RunningProbe>) -> bool {
    match running {
        Some(running) if running.is_over => running.probe.ended().await,
        Some(running) if !running.is_ready => running.probe.ready().await,
        _ => std::future::pending().await,
    }
}

impl NodeAgent {
    /// The charge for a process's first context on the card.
    pub(super) fn context_reserve(&self, card: CardUuid) -> Bytes {
        self.context_cost(card).first
    }

    /// The charges for contexts on the card.
    pub(super) fn context_cost(&self, card: CardUuid) -> ContextCost {
        let learned = || self.reserves.of(self.model(card)?);
        let alone = |first| ContextCost {
            first,
            further: None,
        };
        let told = self.options.cards.context_reserve().map(alone);
        told.or_else(learned).unwrap_or(alone(reserve::ASSUMED))
    }

    /// Whether a request for the card must wait for a probe.
    pub(super) fn must_probe(&self, card: CardUuid) -> bool {
        let is_probed = |running: &RunningProbe| running.probe.card == card;
        let is_unknown = |model| self.reserves.of(model).is_none();
        self.probe.as_ref().is_some_and(is_probed)
            || (self.options.cards.context_reserve().is_none()
                && self.model(card).is_some_and(is_unknown))
    }

    pub(super) fn start_probe(&mut self, card: CardUuid) {
        if self.probe.is_some() {
            return;
        }
        match ContextProbe::start(card, &self.options.cards.nvml_library) {
            Ok(probe) => {
                let started = Instant::now();
                self.probe = Some(RunningProbe {
                    probe,
                    started,
                    shown_by: None,
                    is_ready: false,
                    used_before: self
                        .readings
                        .get(&card)
                        .map_or(Bytes::ZERO, |reading| reading.used),
                    first: None,
                    is_over: false,
                });
            }
            Err(problem) => {
                warn!(%card, %problem, "Failed to start a context cost probe");
                self.learned(card, None);
            }
        }
    }

    pub(super) fn probe_ready(&mut self, is_ready: bool) {
        let Some(running) = self.probe.as_mut() else {
            return;
        };
        running.is_ready = is_ready;
        match (running.is_over, is_ready) {
            (true, _) => self.probe_ended(),
            (false, true) => self.sample(),
            (false, false) => self.stop_probe(),
        }
    }

    /// Ends the probe and keeps what it has measured so far.
    fn stop_probe(&mut self) {
        if let Some(running) = &self.probe {
            let cost = running.first.map(|first| ContextCost {
                first,
                further: None,
            });
            self.learned(running.probe.card, cost);
        }
    }

    /// Takes a measurement from the first sample that was requested after the probe was ready.
    pub(super) fn measure_probe(&mut self, readings: &DriverReadings) {
        let is_waiting = |running: &&mut RunningProbe| running.is_ready && !running.is_over;
        let Some(running) = self.probe.as_mut().filter(is_waiting) else {
            return;
        };
        let shown_by = *running.shown_by.get_or_insert(readings.sequence + 1);
        if readings.sequence < shown_by {
            self.is_stale = true;
            return;
        }
        let (card, pid, before) = (running.probe.card, running.probe.pid, running.used_before);
        let reading = readings.cards.iter().find(|reading| reading.uuid == card);
        // If the driver does not list the probe, the growth of the card's used memory has to do.
        let grown = |reading: &CardReading| {
            let grown = reading.used.minus(before);
            (PLAUSIBLE.contains(&grown)).then_some(grown)
        };
        let listed = reading.and_then(|reading| reading.processes.get(&pid).copied().flatten());
        match (running.first, listed) {
            // The first context was measured: open a second one.
            (None, Some(first)) => {
                running.first = Some(first);
                running.shown_by = None;
                running.is_ready = false;
                if running.probe.go_on().is_err() {
                    self.stop_probe();
                }
            }
            // The driver does not list the probe, so a second context could not be measured.
            (None, None) => {
                running.first = reading.and_then(grown);
                self.stop_probe();
            }
            (Some(first), both) => {
                let further = both.map(|both| both.minus(first));
                let further = further.filter(|further| *further > Bytes::ZERO);
                self.learned(card, Some(ContextCost { first, further }));
            }
        }
    }

    pub(super) fn give_up_probe(&mut self) {
        let is_overdue = |running: &RunningProbe| running.started.elapsed() > probe::TIMEOUT;
        if self.probe.as_ref().is_some_and(is_overdue) {
            if self.probe.as_ref().is_some_and(|running| running.is_over) {
                self.probe_ended()
            } else {
                self.stop_probe()
            }
        }
        self.ended_probes.retain_mut(ContextProbe::is_running);
    }

    /// Whether a process is one of our probes, including one that is about to end. Its memory belongs to no
    /// allocation.
    pub(super) fn is_probe(&self, pid: u32) -> bool {
        let running = self.probe.iter().map(|running| &running.probe);
        running
            .chain(&self.ended_probes)
            .any(|probe| probe.pid == pid)
    }

    fn learned(&mut self, card: CardUuid, cost: Option<ContextCost>) {
        let model = self.model(card).unwrap_or_default().to_owned();
        match cost {
            Some(ContextCost { first, further }) => {
                let further = further.map(|bytes| bytes.to_string());
                info!(model, %first, further, "Context cost measured")
            }
            None => {
                warn!(model, assumed = %reserve::ASSUMED, "Failed to measure context cost")
            }
        }
        if let Err(problem) = self.reserves.learn(&model, cost) {
            warn!(%problem, "Failed to save context cost");
        }
        for account in self.accounts.values() {
            account.set_context_cost(card, self.context_cost(card));
        }
        match &mut self.probe {
            Some(running) => {
                running.is_over = true;
                running.probe.end();
            }
            None => self.probe_ended(),
        }
    }

    /// Answers the waiting requests. A probe that hangs in the driver stays in `ended_probes` until it ends.
    fn probe_ended(&mut self) {
        let ended = self.probe.take().map(|running| running.probe);
        self.ended_probes.extend(ended);
        for request in std::mem::take(&mut self.waiting) {
            self.respond(request);
        }
    }

    fn model(&self, card: CardUuid) -> Option<&str> {
        let found = self.driver.cards.iter().find(|found| found.uuid == card);
        found.map(|found| found.model.as_str())
    }
}
