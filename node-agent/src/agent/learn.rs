//! Learning what a context costs: at the first request for a card of an unknown model a probe runs, and
//! the request waits for it, at most as long as a probe may take.

use std::ops::RangeInclusive;

use super::*;
use crate::probe;
use crate::reserve;

/// What a context may cost, where it was not measured of the probe alone.
const PLAUSIBLE: RangeInclusive<Bytes> = Bytes::from_mib(32)..=Bytes::from_mib(2048);

/// A probe that runs.
pub(super) struct Running {
    probe: Probe,
    started: Instant,
    /// The sample that will show it, once it holds its context.
    shown_by: Option<u64>,
    is_ready: bool,
    /// What was used on the card before.
    used_before: Bytes,
}

/// Waits until the probe holds its context; for ever, where none runs or it has said so.
pub(super) async fn ready(running: &mut Option<Running>) -> bool {
    match running {
        Some(running) if !running.is_ready => running.probe.ready().await,
        _ => std::future::pending().await,
    }
}

impl Agent {
    /// What a context on the card is charged.
    pub(super) fn context_reserve(&self, card: CardUuid) -> Bytes {
        let learned = || self.reserves.of(self.model(card)?);
        self.options
            .context_reserve
            .or_else(learned)
            .unwrap_or(reserve::ASSUMED)
    }

    pub(super) fn must_probe(&self, card: CardUuid) -> bool {
        let is_unknown = |model| self.reserves.of(model).is_none();
        self.options.context_reserve.is_none() && self.model(card).is_some_and(is_unknown)
    }

    pub(super) fn start_probe(&mut self, card: CardUuid) {
        if self.probe.is_some() {
            return;
        }
        match Probe::start(card, self.options.nvml.as_ref()) {
            Ok(probe) => {
                let started = Instant::now();
                self.probe = Some(Running {
                    probe,
                    started,
                    shown_by: None,
                    is_ready: false,
                    used_before: self
                        .readings
                        .get(&card)
                        .map_or(Bytes::ZERO, |reading| reading.used),
                });
            }
            Err(problem) => {
                warn!(%card, %problem, "Failed to start a probe");
                self.learned(card, None);
            }
        }
    }

    pub(super) fn probe_ready(&mut self, is_ready: bool) {
        let Some(running) = self.probe.as_mut() else {
            return;
        };
        let card = running.probe.card;
        running.is_ready = is_ready;
        match is_ready {
            true => self.sample(),
            false => self.learned(card, None),
        }
    }

    /// Takes the measurement from the first sample that was asked for after the probe was ready.
    pub(super) fn measure_probe(&mut self, readings: &Readings) {
        let Some(running) = self.probe.as_mut().filter(|running| running.is_ready) else {
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
        let grown = |reading: &Reading| {
            let grown = reading.used.minus(before);
            (PLAUSIBLE.contains(&grown)).then_some(grown)
        };
        let listed = |reading: &Reading| reading.processes.get(&pid).copied().flatten();
        let cost = reading.and_then(|reading| listed(reading).or_else(|| grown(reading)));
        self.learned(card, cost);
    }

    pub(super) fn give_up_probe(&mut self) {
        let is_overdue = |running: &&Running| running.started.elapsed() > probe::TIMEOUT;
        if let Some(card) = self
            .probe
            .as_ref()
            .filter(is_overdue)
            .map(|running| running.probe.card)
        {
            self.learned(card, None);
        }
        self.ended_probes.retain_mut(Probe::is_running);
    }

    /// Whether a process is a probe of ours, also one that is about to end: its memory is nobody's.
    pub(super) fn is_probe(&self, pid: u32) -> bool {
        let running = self.probe.iter().map(|running| &running.probe);
        running
            .chain(&self.ended_probes)
            .any(|probe| probe.pid == pid)
    }

    fn learned(&mut self, card: CardUuid, cost: Option<Bytes>) {
        let model = self.model(card).unwrap_or_default().to_owned();
        match cost {
            Some(cost) => info!(model, %cost, "Learned what a context costs"),
            None => {
                warn!(model, assumed = %reserve::ASSUMED, "Failed to measure what a context costs")
            }
        }
        if let Err(problem) = self.reserves.learn(&model, cost) {
            warn!(%problem, "Failed to keep what was learned");
        }
        if let Some(mut running) = self.probe.take() {
            running.probe.end();
            self.ended_probes.push(running.probe);
        }
        for account in self.accounts.values() {
            account.set_context_reserve(card, self.context_reserve(card));
        }
        for request in std::mem::take(&mut self.waiting) {
            self.respond(request);
        }
    }

    fn model(&self, card: CardUuid) -> Option<&str> {
        let found = self.driver.cards.iter().find(|found| found.uuid == card);
        found.map(|found| found.model.as_str())
    }
}
