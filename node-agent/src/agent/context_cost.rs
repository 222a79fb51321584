//! Measures what CUDA contexts cost. At the first request for a card of an unknown model the agent runs a probe. The
//! request waits until the probe has ended, at most for the probe's timeout. It waits for the end, not only for the
//! measurement: the probe's memory would be missing on a card that is given whole.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Instant;

use apportion_abi::{Bytes, CardUuid};
use tracing::{info, warn};

use super::cards::CardInventory;
use crate::api::request::AgentRequest;
use crate::driver::probe::{self, ContextProbe};
use crate::driver::reserve::{self, ContextCost, ContextReserves};
use crate::driver::{CardReading, DriverReadings};
use crate::options::CardOptions;

/// The range of plausible costs, for a measurement that may include other processes.
const PLAUSIBLE: RangeInclusive<Bytes> = Bytes::from_mib(32)..=Bytes::from_mib(2048);

/// The least leeway of a process, for cards whose contexts cost little or are not charged. It covers some dozens of
/// modules that the driver loads lazily.
pub(super) const LEEWAY: Bytes = Bytes::from_mib(64);

/// What contexts cost, and the probe that measures it.
pub(super) struct ContextCosts {
    /// The charge for a first context, if the options say it.
    fixed: Option<Bytes>,
    nvml: PathBuf,
    reserves: ContextReserves,
    running: Option<RunningProbe>,
    /// Probes that were told to end and may still run.
    ended: Vec<ContextProbe>,
    /// Requests that wait for the probe.
    waiting: Vec<AgentRequest>,
}

struct RunningProbe {
    probe: ContextProbe,
    model: String,
    started: Instant,
    /// The sequence number of the first sample that shows it, once it holds its context.
    first_sequence: Option<u64>,
    is_ready: bool,
    /// The card's used memory before the probe.
    used_before: Bytes,
    /// The cost of its first context, once measured. The probe then opens a second one.
    first: Option<Bytes>,
    /// Whether it was told to end.
    is_over: bool,
}

/// What the agent does after a step of the probe.
#[derive(Default)]
#[must_use]
pub(super) struct ProbeStep {
    /// The card whose accounts get the cost as it is known now.
    pub(super) learned: Option<CardUuid>,
    /// Requests that need not wait any longer.
    pub(super) ready: Vec<AgentRequest>,
    /// Whether another sample has to show the probe.
    pub(super) needs_sample: bool,
}

impl ContextCosts {
    pub(super) fn load(cards: &CardOptions, saved: &Path, driver_version: &str) -> Self {
        Self {
            fixed: cards.context_reserve(),
            nvml: cards.nvml_library.clone(),
            reserves: ContextReserves::load(saved, driver_version),
            running: None,
            ended: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// The charges for contexts on a card of this model.
    pub(super) fn of(&self, model: Option<&str>) -> ContextCost {
        let fixed_cost = |first| ContextCost {
            first,
            further: None,
        };
        let fixed = self.fixed.map(fixed_cost);
        fixed
            .or_else(|| self.reserves.of(model?))
            .unwrap_or(fixed_cost(reserve::ASSUMED))
    }

    /// Whether a request for the card must wait for a probe.
    pub(super) fn must_probe(&self, cards: &CardInventory, card: CardUuid) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| running.probe.card == card)
            || (self.fixed.is_none()
                && cards
                    .model(card)
                    .is_some_and(|model| self.reserves.of(model).is_none()))
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Lets a request wait for a probe of the card.
    pub(super) fn wait(
        &mut self,
        request: AgentRequest,
        cards: &CardInventory,
        card: CardUuid,
    ) -> ProbeStep {
        self.waiting.push(request);
        if self.running.is_some() {
            return ProbeStep::default();
        }
        let model = cards.model(card).unwrap_or_default().to_owned();
        match ContextProbe::start(card, &self.nvml) {
            Ok(probe) => {
                let reading = cards.reading(card);
                self.running = Some(RunningProbe {
                    probe,
                    model,
                    started: Instant::now(),
                    first_sequence: None,
                    is_ready: false,
                    used_before: reading.map_or(Bytes::ZERO, |reading| reading.used),
                    first: None,
                    is_over: false,
                });
                ProbeStep::default()
            }
            Err(problem) => {
                warn!(%card, %problem, "Failed to start a context cost probe");
                self.save(&model, None);
                ProbeStep {
                    learned: Some(card),
                    ready: std::mem::take(&mut self.waiting),
                    needs_sample: false,
                }
            }
        }
    }

    /// Waits until the probe holds a context, or, once it is over, until it has ended. Waits for ever if there is no
    /// probe or its context was already reported.
    pub(super) async fn next(&mut self) -> bool {
        match &mut self.running {
            Some(running) if running.is_over => running.probe.ended().await,
            Some(running) if !running.is_ready => running.probe.ready().await,
            _ => std::future::pending().await,
        }
    }

    /// Processes what [`Self::next`] reported.
    pub(super) fn advance(&mut self, is_ready: bool) -> ProbeStep {
        let Some(running) = self.running.as_mut() else {
            return ProbeStep::default();
        };
        running.is_ready = is_ready;
        match (running.is_over, is_ready) {
            (true, _) => self.answer_waiting(),
            (false, true) => ProbeStep {
                needs_sample: true,
                ..ProbeStep::default()
            },
            (false, false) => self.stop(),
        }
    }

    /// Takes a measurement from the first sample that was requested after the probe was ready.
    pub(super) fn measure(&mut self, readings: &DriverReadings) -> ProbeStep {
        let Some(running) = &mut self.running else {
            return ProbeStep::default();
        };
        if !running.is_ready || running.is_over {
            return ProbeStep::default();
        }
        let first_sequence = *running.first_sequence.get_or_insert(readings.sequence + 1);
        if readings.sequence < first_sequence {
            return ProbeStep {
                needs_sample: true,
                ..ProbeStep::default()
            };
        }
        let (card, pid, before) = (running.probe.card, running.probe.pid, running.used_before);
        let reading = readings.cards.iter().find(|reading| reading.uuid == card);
        let listed = reading.and_then(|reading| reading.processes.get(&pid).copied().flatten());
        match (running.first, listed) {
            // The first context was measured: open a second one.
            (None, Some(first)) => {
                running.first = Some(first);
                running.first_sequence = None;
                running.is_ready = false;
                if running.probe.go_on().is_err() {
                    return self.stop();
                }
                ProbeStep::default()
            }
            // The driver does not list the probe, so the growth of the card's used memory has to do. A second context
            // could not be measured.
            (None, None) => {
                running.first = reading
                    .map(|reading: &CardReading| reading.used.minus(before))
                    .filter(|grown| PLAUSIBLE.contains(grown));
                self.stop()
            }
            (Some(first), both) => {
                let further = both.map(|both| both.minus(first));
                let further = further.filter(|further| *further > Bytes::ZERO);
                self.learn(Some(ContextCost { first, further }))
            }
        }
    }

    /// Ends a probe that takes too long.
    pub(super) fn give_up(&mut self) -> ProbeStep {
        let step = match &self.running {
            Some(running) if running.started.elapsed() > probe::TIMEOUT => {
                if running.is_over {
                    self.answer_waiting()
                } else {
                    self.stop()
                }
            }
            _ => ProbeStep::default(),
        };
        self.ended.retain_mut(ContextProbe::is_running);
        step
    }

    /// Whether a process is one of our probes, including one that is about to end. Its memory belongs to no
    /// allocation.
    pub(super) fn is_probe(&self, pid: u32) -> bool {
        let running = self.running.iter().map(|running| &running.probe);
        running.chain(&self.ended).any(|probe| probe.pid == pid)
    }

    /// Ends the probe and keeps what it has measured so far.
    fn stop(&mut self) -> ProbeStep {
        let Some(running) = &self.running else {
            return ProbeStep::default();
        };
        let cost = running.first.map(|first| ContextCost {
            first,
            further: None,
        });
        self.learn(cost)
    }

    /// Saves a measurement, or that there is none, and tells the probe to end.
    fn learn(&mut self, cost: Option<ContextCost>) -> ProbeStep {
        let Some(running) = &mut self.running else {
            return ProbeStep::default();
        };
        running.is_over = true;
        running.probe.end();
        let (card, model) = (running.probe.card, running.model.clone());
        self.save(&model, cost);
        ProbeStep {
            learned: Some(card),
            ..ProbeStep::default()
        }
    }

    fn save(&mut self, model: &str, cost: Option<ContextCost>) {
        match cost {
            Some(ContextCost { first, further }) => {
                let further = further.map(|bytes| bytes.to_string());
                info!(model, %first, further, "Context cost measured")
            }
            None => {
                warn!(model, assumed = %reserve::ASSUMED, "Failed to measure context cost")
            }
        }
        if let Err(problem) = self.reserves.learn(model, cost) {
            warn!(%problem, "Failed to save context cost");
        }
    }

    /// Gives the waiting requests back. A probe that hangs in the driver stays in `ended` until it ends.
    fn answer_waiting(&mut self) -> ProbeStep {
        let running = self.running.take();
        self.ended.extend(running.map(|running| running.probe));
        ProbeStep {
            ready: std::mem::take(&mut self.waiting),
            ..ProbeStep::default()
        }
    }
}
