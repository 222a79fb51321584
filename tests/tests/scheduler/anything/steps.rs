//! Steps drawn from a seed: always the same steps in the same order, whatever their results.
//!
//! This file never looks at the cluster. A step concerns a pod that was created and not yet deleted, and every step
//! does something. Other files check how the cluster follows.

/// The most pods, apart from the rest of a gang.
const PODS: usize = 24;
/// The targets of kills, each with the steps per kill. In a shorter run each happens once.
const KILLS: [(KillTarget, u64); 4] = [
    (KillTarget::Agent, 500),
    (KillTarget::Scheduler, 2000),
    (KillTarget::Leader, 5000),
    (KillTarget::ApiServer, 5000),
];

/// One arrival, deletion, edit or crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChaosStep {
    Change(WorkloadChange),
    /// The number selects one if there are several.
    Kill(KillTarget, usize),
}

/// The target of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KillTarget {
    /// An agent, which is restarted.
    Agent,
    /// The scheduler. Another one is started.
    Scheduler,
    /// No kill: the leading scheduler is stopped until another one leads, and continues.
    Leader,
    /// The API server, which is restarted.
    ApiServer,
}

/// A change by a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkloadChange {
    /// Several pods arrive together.
    Arrive(PodArrival),
    /// A pod is deleted. The last one of a gang deletes the gang too.
    Leave(ArrivalPod, bool),
    /// A pod ends, with success or failure.
    End(ArrivalPod, &'static str),
    /// A pod asks for another share. A placed pod keeps what it has.
    Edit(ArrivalPod, String),
}

/// Pods that arrive together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodArrival {
    pub(crate) number: usize,
    pub(crate) pods: Vec<ArrivalPod>,
    pub(crate) ask: ArrivalRequest,
}

/// What each of them requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ArrivalRequest {
    Whole,
    Memory,
    Fraction(String),
}

/// A pod, by the number of its arrival and its number in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArrivalPod {
    pub(crate) arrival: usize,
    pub(crate) place: usize,
    pub(crate) is_in_gang: bool,
}

impl ArrivalPod {
    pub(crate) fn name(&self) -> String {
        format!("pod-{}-{}", self.arrival, self.place)
    }

    pub(crate) fn gang(&self) -> Option<String> {
        self.is_in_gang.then(|| format!("gang-{}", self.arrival))
    }
}

impl WorkloadChange {
    /// The arrival of the change. Changes of one arrival keep their order.
    pub(crate) const fn arrival(&self) -> usize {
        match self {
            Self::Arrive(arrival) => arrival.number,
            Self::Leave(pod, _) | Self::End(pod, _) | Self::Edit(pod, _) => pod.arrival,
        }
    }
}

/// A small random number generator.
struct StepRng(u64);

impl StepRng {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or_default() % sides.max(1)
    }
}

/// When the next kill is, and where the interval of the kill after it begins.
struct ScheduledKill {
    kill: KillTarget,
    every: u64,
    begin: u64,
    at: u64,
}

/// The generator of steps.
pub(crate) struct ChaosSteps {
    dice: StepRng,
    length: u64,
    taken: u64,
    arrivals: usize,
    alive: Vec<ArrivalPod>,
    due: Vec<ScheduledKill>,
}

impl ChaosSteps {
    pub(crate) fn new(seed: u64, length: u64) -> Self {
        let mut steps = Self {
            dice: StepRng(seed),
            length,
            taken: 0,
            arrivals: 0,
            alive: Vec::new(),
            due: Vec::new(),
        };
        for (kill, every) in KILLS {
            let every = every.min(length).max(1);
            let at = steps.moment(0, every);
            steps.due.push(ScheduledKill {
                kill,
                every,
                begin: every,
                at,
            });
        }
        steps
    }

    /// The pods that must exist once all steps so far are done.
    pub(crate) fn alive(&self) -> &[ArrivalPod] {
        &self.alive
    }

    /// The total number of steps.
    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    /// The number of arrivals so far.
    pub(crate) const fn arrivals(&self) -> usize {
        self.arrivals
    }

    /// Deletes one of the remaining pods.
    pub(crate) fn clear(&mut self) -> Option<WorkloadChange> {
        (!self.alive.is_empty()).then(|| self.leave())
    }

    /// A random step of an interval. It is in the first three quarters, so that other kills due at the same step still
    /// fit.
    fn moment(&mut self, begin: u64, every: u64) -> u64 {
        let sides = usize::try_from(every * 3 / 4).unwrap_or(usize::MAX);
        begin + 1 + self.dice.roll(sides) as u64
    }

    fn kill(&mut self) -> Option<ChaosStep> {
        let place = self.due.iter().position(|due| due.at <= self.taken)?;
        let (kill, begin, every) = {
            let due = &self.due[place];
            (due.kill, due.begin, due.every)
        };
        let at = self.moment(begin, every);
        let due = &mut self.due[place];
        (due.begin, due.at) = (begin + every, at);
        let which = self.dice.roll(usize::MAX);
        Some(ChaosStep::Kill(kill, which))
    }

    fn change(&mut self) -> WorkloadChange {
        let roll = self.dice.roll(100);
        match roll {
            _ if self.alive.is_empty() => self.arrive(),
            0..38 if self.alive.len() < PODS => self.arrive(),
            0..70 => self.leave(),
            70..82 => {
                let pod = self.any();
                WorkloadChange::End(pod, ["Succeeded", "Failed"][self.dice.roll(2)])
            }
            _ => WorkloadChange::Edit(self.any(), self.share()),
        }
    }

    fn arrive(&mut self) -> WorkloadChange {
        self.arrivals += 1;
        let is_in_gang = self.dice.roll(6) == 0;
        let ask = match self.dice.roll(8) {
            0 => ArrivalRequest::Whole,
            1 => ArrivalRequest::Memory,
            _ => ArrivalRequest::Fraction(self.share()),
        };
        let arrival = self.arrivals;
        let pods: Vec<ArrivalPod> = (0..if is_in_gang { 2 } else { 1 })
            .map(|place| ArrivalPod {
                arrival,
                place,
                is_in_gang,
            })
            .collect();
        self.alive.extend(pods.iter().cloned());
        let number = arrival;
        WorkloadChange::Arrive(PodArrival { number, pods, ask })
    }

    fn leave(&mut self) -> WorkloadChange {
        let which = self.dice.roll(self.alive.len());
        let pod = self.alive.swap_remove(which);
        let is_last = !self.alive.iter().any(|other| other.arrival == pod.arrival);
        WorkloadChange::Leave(pod, is_last)
    }

    fn any(&mut self) -> ArrivalPod {
        let which = self.dice.roll(self.alive.len());
        self.alive[which].clone()
    }

    fn share(&mut self) -> String {
        format!("0.{:02}", 1 + self.dice.roll(99))
    }
}

impl Iterator for ChaosSteps {
    type Item = ChaosStep;

    fn next(&mut self) -> Option<ChaosStep> {
        if self.taken == self.length {
            return None;
        }
        self.taken += 1;
        let kill = self.kill();
        Some(kill.unwrap_or_else(|| ChaosStep::Change(self.change())))
    }
}

#[test]
fn a_seed_has_the_same_steps_each_time_and_others_than_another_seed() {
    let steps = |seed| ChaosSteps::new(seed, 5000).collect::<Vec<_>>();
    assert_eq!(steps(7), steps(7));
    assert_ne!(steps(7), steps(8));
}

#[test]
fn everybody_is_killed_as_often_as_it_says_and_once_in_a_short_run() {
    let count = |length, kill| {
        let steps = ChaosSteps::new(3, length);
        steps
            .filter(|step| matches!(step, ChaosStep::Kill(this, _) if *this == kill))
            .count()
    };
    for (kill, every) in KILLS {
        assert_eq!(count(200, kill), 1, "{kill:?}");
        assert_eq!(count(20_000, kill) as u64, 20_000 / every, "{kill:?}");
    }
}
