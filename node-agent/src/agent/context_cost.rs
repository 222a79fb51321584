//! Learning what contexts cost: at the first request for a card of an unknown model a probe runs, and
//! the request waits for its end, at most as long as a probe may take. Its end, and not its answer: what
//! it holds would be missing on a card that is given away whole.

use std::ops::RangeInclusive;

use super::*;
use crate::probe;
use crate::reserve::{self, ContextCost};

/// What a context may cost, where it was not measured of the probe alone.
const PLAUSIBLE: RangeInclusive<Bytes> = Bytes::from_mib(32)..=Bytes::from_mib(2048);

/// A probe that runs.
pub(super) struct RunningProbe {
    probe: ContextProbe,
    started: Instant,
    /// The sample that will show it, once it holds its context.
    shown_by: Option<u64>,
    is_ready: bool,
    /// What was used on the card before.
    used_before: Bytes,
    /// What its first context costs, once that is measured and it opens another.
    first: Option<Bytes>,
    /// It has been told to end.
    is_over: bool,
}

/// Waits until the probe holds a context, or, once it is over, has ended; for ever, where none runs or it
/// has said so.
pub(super) async fn ready(running: &mut Option<RunningProbe>) -> bool {
    match running {
        Some(running) if running.is_over => running.probe.ended().await,
        Some(running) if !running.is_ready => running.probe.ready().await,
        _ => std::future::pending().await,
    }
}

impl NodeAgent {
    /// What a process's first context on the card is charged.
    pub(super) fn context_reserve(&self, card: CardUuid) -> Bytes {
        self.context_cost(card).first
    }

    /// What contexts on the card are charged.
    pub(super) fn context_cost(&self, card: CardUuid) -> ContextCost {
        let learned = || self.reserves.of(self.model(card)?);
        let alone = |first| ContextCost {
            first,
            further: None,
        };
        let told = self.options.context_reserve.map(alone);
        told.or_else(learned).unwrap_or(alone(reserve::ASSUMED))
    }

    /// Whether a request for the card must wait for a probe.
    pub(super) fn must_probe(&self, card: CardUuid) -> bool {
        let is_probed = |running: &RunningProbe| running.probe.card == card;
        let is_unknown = |model| self.reserves.of(model).is_none();
        self.probe.as_ref().is_some_and(is_probed)
            || (self.options.context_reserve.is_none() && self.model(card).is_some_and(is_unknown))
    }

    pub(super) fn start_probe(&mut self, card: CardUuid) {
        if self.probe.is_some() {
            return;
        }
        match ContextProbe::start(card, self.options.nvml.as_ref()) {
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

    /// Keeps what the probe has shown so far.
    fn stop_probe(&mut self) {
        if let Some(running) = &self.probe {
            let cost = running.first.map(|first| ContextCost {
                first,
                further: None,
            });
            self.learned(running.probe.card, cost);
        }
    }

    /// Takes a measurement from the first sample that was asked for after the probe was ready.
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
        // Where the driver does not list the probe, what is used beyond what was used before must do.
        let grown = |reading: &CardReading| {
            let grown = reading.used.minus(before);
            (PLAUSIBLE.contains(&grown)).then_some(grown)
        };
        let listed = reading.and_then(|reading| reading.processes.get(&pid).copied().flatten());
        match (running.first, listed) {
            (None, Some(first)) => {
                running.first = Some(first);
                running.shown_by = None;
                running.is_ready = false;
                if running.probe.go_on().is_err() {
                    self.stop_probe();
                }
            }
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
            match self.probe.as_ref().is_some_and(|running| running.is_over) {
                true => self.probe_ended(),
                false => self.stop_probe(),
            }
        }
        self.ended_probes.retain_mut(ContextProbe::is_running);
    }

    /// Whether a process is a probe of ours, also one that is about to end: its memory is nobody's.
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

    /// Goes on with those who waited. A probe that hangs in its driver ends when it ends.
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
