//! The cards of this node: what NVML found, the latest readings, and when the driver is asked again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use apportion_abi::{Bytes, CardUuid};
use apportion_ledger::{EpochMillis, GpuTopology};
use apportion_runtime_class::GrantedCard;

use crate::driver::faults::{CardEvent, FaultMonitor};
use crate::driver::{CardReading, DriverReadings, FoundCard, NvmlDriver, topology};
use crate::kubelet::foreign_holders::{ForeignCardId, ForeignHolder};

/// How long the driver may be silent before its cards are no longer allocated.
pub(super) const SILENCE: Duration = Duration::from_secs(5);

/// The cards, and the driver that reports them.
pub(super) struct CardInventory {
    driver: NvmlDriver,
    faults: FaultMonitor,
    readings: BTreeMap<CardUuid, CardReading>,
    sampled: Option<SampleTime>,
    /// The ledger's generation when the pending sample was requested.
    asked_at: u64,
    /// Something changed that the pending sample may not show.
    is_stale: bool,
}

/// When the latest sample was taken.
#[derive(Clone, Copy)]
pub(super) struct SampleTime {
    pub(super) at: Instant,
    pub(super) clock: EpochMillis,
}

/// What the driver reports by itself or as an answer.
pub(super) enum DriverReport {
    Readings(DriverReadings),
    Event(CardEvent),
}

impl CardInventory {
    pub(super) fn new(driver: NvmlDriver, faults: FaultMonitor) -> Self {
        Self {
            driver,
            faults,
            readings: BTreeMap::new(),
            sampled: None,
            asked_at: 0,
            is_stale: false,
        }
    }

    pub(super) fn all(&self) -> &[FoundCard] {
        &self.driver.cards
    }

    pub(super) fn find(&self, card: CardUuid) -> Option<&FoundCard> {
        self.driver.cards.iter().find(|found| found.uuid == card)
    }

    /// The cards on which the driver may keep limits: those with memory of their own.
    pub(super) fn limitable(&self) -> Vec<CardUuid> {
        let measured = self.all().iter().filter(|found| found.is_measured);
        measured.map(|found| found.uuid).collect()
    }

    pub(super) fn model(&self, card: CardUuid) -> Option<&str> {
        self.find(card).map(|found| found.model.as_str())
    }

    /// The driver's version, and the newest CUDA version that it supports.
    pub(super) fn versions(&self) -> (&str, Option<i32>) {
        (&self.driver.version, self.driver.cuda_version)
    }

    pub(super) fn topology(&self) -> GpuTopology {
        topology(&self.driver.cards)
    }

    /// The card as its container needs it.
    pub(super) fn granted(&self, card: CardUuid, limit: Bytes) -> GrantedCard {
        let found = self.find(card);
        GrantedCard {
            uuid: card.to_string(),
            minor: found.and_then(|found| found.minor),
            cuda_ordinal: found.and_then(|found| found.cuda_ordinal),
            limit,
            allocatable: found.map_or(limit, |found| found.capacity.allocatable()),
        }
    }

    /// The cards of this node with another plugin's ids.
    pub(super) fn held_by(&self, holder: &ForeignHolder) -> Vec<CardUuid> {
        let named = self.driver.cards.iter().filter(|card| {
            holder.cards.iter().any(|name| match name {
                ForeignCardId::Uuid(uuid) => card.uuid == *uuid,
                ForeignCardId::Minor(minor) => card.minor == Some(*minor),
            })
        });
        named.map(|card| card.uuid).collect()
    }

    /// The latest readings, by card.
    pub(super) fn readings(&self) -> impl Iterator<Item = &CardReading> {
        self.readings.values()
    }

    pub(super) fn reading(&self, card: CardUuid) -> Option<&CardReading> {
        self.readings.get(&card)
    }

    pub(super) fn sampled(&self) -> Option<SampleTime> {
        self.sampled
    }

    /// The ledger's generation when the latest sample was requested.
    pub(super) fn asked_at(&self) -> u64 {
        self.asked_at
    }

    /// Whether there is a sample and the driver still answers.
    pub(super) fn is_ready(&self) -> bool {
        self.sampled.is_some() && self.driver.silence() <= SILENCE
    }

    /// Whether the driver has owed an answer for too long.
    pub(super) fn is_silent(&self) -> bool {
        self.driver.silence() > SILENCE
    }

    /// Whether the driver can be asked now. If it still owes an answer, it is asked again right after that.
    pub(super) fn can_ask(&mut self) -> bool {
        let can_ask = self.driver.silence() == Duration::ZERO;
        self.is_stale |= !can_ask;
        can_ask
    }

    /// Asks the driver for readings. `generation` is the ledger's.
    pub(super) fn ask(&mut self, generation: u64) {
        self.asked_at = generation;
        let _ = self.driver.ask();
    }

    /// Asks for another sample after the pending one.
    pub(super) fn want_another(&mut self) {
        self.is_stale = true;
    }

    /// Whether another sample is wanted. Asking clears it.
    pub(super) fn takes_another(&mut self) -> bool {
        std::mem::take(&mut self.is_stale)
    }

    /// The next report. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> DriverReport {
        tokio::select! {
            biased;
            readings = self.driver.next() => DriverReport::Readings(readings),
            event = self.faults.next() => DriverReport::Event(event),
        }
    }

    /// The driver's next answer. Dropping the future loses nothing.
    pub(super) async fn next_readings(&mut self) -> DriverReadings {
        self.driver.next().await
    }

    /// Adds a card that the driver found late. It may change the ordinals of the others.
    pub(super) fn add(&mut self, card: &FoundCard) {
        self.driver.cards.push(card.clone());
        for card in &mut self.driver.cards {
            card.cuda_ordinal = None;
        }
    }

    /// Keeps readings as the latest.
    pub(super) fn keep(&mut self, readings: Vec<CardReading>, clock: EpochMillis) {
        self.readings = readings
            .into_iter()
            .map(|reading| (reading.uuid, reading))
            .collect();
        self.sampled = Some(SampleTime {
            at: Instant::now(),
            clock,
        });
    }
}
