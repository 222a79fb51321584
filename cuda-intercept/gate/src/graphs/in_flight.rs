//! Launches of graphs that allocate and may still run, with the event behind each.
//!
//! A launch is recorded before the driver call, without an event, and then counts as running: of two launches that
//! begin at once, each sees the other. Several threads may query one event; the last of them destroys it. Launches of
//! one graph run one after the other, so only the last of each graph is kept.

use crate::Card;
use crate::fallible_map::FallibleMap;

/// A launch on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphLaunch {
    /// The executable graph.
    pub exec: u64,
    /// The stream of the launch.
    pub stream: u64,
    /// The card.
    pub card: Card,
    /// The memory that it takes there.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct LaunchEntry {
    flight: GraphLaunch,
    event: Option<u64>,
    askers: u32,
    is_over: bool,
}

/// The launches of a process.
#[derive(Debug, Default)]
pub struct InFlightLaunches {
    all: FallibleMap<u64, LaunchEntry>,
    last: u64,
}

impl InFlightLaunches {
    /// A launch begins. Returns its number.
    pub fn begin(&mut self, flight: GraphLaunch) -> u64 {
        self.last = self.last.wrapping_add(1);
        let entry = LaunchEntry {
            flight,
            event: None,
            askers: 0,
            is_over: false,
        };
        self.all.enter(self.last, entry);
        self.last
    }

    /// The driver was called: `event` completes when the launch is done. Without an event the launch counts as done,
    /// because its end would be unknown. Returns an earlier event that is no longer needed; call it until there is
    /// none.
    pub fn launched(&mut self, number: u64, event: Option<u64>) -> Option<u64> {
        let flight = match self.all.get_mut(number) {
            Some(entry) if event.is_some() => {
                entry.event = event;
                entry.flight
            }
            Some(_) | None => {
                self.all.remove(number);
                return None;
            }
        };
        let idle = self.all.remove_where(|at, entry| {
            let (of, on) = (entry.flight.exec, entry.flight.card);
            let is_same = of == flight.exec && on == flight.card;
            at < number && is_same && entry.event.is_some() && entry.askers == 0
        });
        idle.and_then(|(_, entry)| entry.event)
    }

    /// The next launch after a number, and its event if that should be queried; ends with
    /// [`InFlightLaunches::asked`].
    pub fn ask_after(&mut self, after: u64) -> Option<(u64, GraphLaunch, Option<u64>)> {
        let later = self.all.iter().map(|(at, _)| at).filter(|at| *at > after);
        let number = later.min()?;
        let entry = self.all.get_mut(number)?;
        entry.askers = entry.askers.saturating_add(1);
        Some((number, entry.flight, entry.event))
    }

    /// The driver was queried about a launch. Returns the event that is no longer needed.
    pub fn asked(&mut self, number: u64, is_over: bool) -> Option<u64> {
        let entry = self.all.get_mut(number)?;
        entry.askers = entry.askers.saturating_sub(1);
        entry.is_over |= is_over;
        if !entry.is_over || entry.askers > 0 {
            return None;
        }
        self.all.remove(number).and_then(|entry| entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLIGHT: GraphLaunch = GraphLaunch {
        exec: 7,
        stream: 1,
        card: 0,
        bytes: 100,
    };

    #[test]
    fn a_launch_counts_until_nobody_asks_about_it_any_more() {
        let mut flights = InFlightLaunches::default();
        let number = flights.begin(FLIGHT);
        assert_eq!(flights.ask_after(0), Some((number, FLIGHT, None)));
        assert_eq!(flights.asked(number, false), None);
        assert_eq!(flights.launched(number, Some(5)), None);
        for _ in 0..2 {
            assert_eq!(flights.ask_after(0), Some((number, FLIGHT, Some(5))));
        }
        assert_eq!(flights.asked(number, true), None, "another still asks");
        assert_eq!(flights.asked(number, false), Some(5));
        assert_eq!(flights.ask_after(0), None);
    }

    #[test]
    fn of_launches_of_one_graph_the_last_is_kept() {
        let mut flights = InFlightLaunches::default();
        let first = flights.begin(FLIGHT);
        flights.launched(first, Some(5));
        let second = flights.begin(FLIGHT);
        assert_eq!(flights.launched(second, Some(6)), Some(5));
        assert_eq!(flights.launched(second, Some(6)), None);
        assert_eq!(flights.ask_after(0).map(|next| next.0), Some(second));
        assert_eq!(flights.ask_after(second), None);
    }

    #[test]
    fn a_launch_that_failed_is_forgotten() {
        let mut flights = InFlightLaunches::default();
        let number = flights.begin(FLIGHT);
        assert_eq!(flights.launched(number, None), None);
        assert_eq!(flights.ask_after(0), None);
    }
}
