//! What the API server costs while nothing happens: with no scheduler, with Apportion's, and with KAI's programs.
//!
//! The API server works by itself, too: its garbage collection alone makes one minute twice as expensive as the next.
//! So each contender has several windows, in turns, and the medians are compared. What a contender adds is
//! the median of its windows less the one without a scheduler in the same round.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use apportion_tests::control_plane::ControlPlane;
use apportion_tests::cpu_time::{WINDOWS, median, parts_of};

use crate::background::BackgroundProgram;
use crate::kai::KaiPrograms;
use crate::requests::RequestCounts;
use crate::scheduler::{LEADS, SchedulerProcess};

/// Time for the work that the steps before left behind.
const SETTLE: Duration = Duration::from_secs(20);
/// How many of the most frequent requests are printed.
const REQUESTS: usize = 8;

/// The control plane and those who take turns on it.
pub(crate) struct IdleComparison<'b> {
    pub(crate) plane: &'b ControlPlane,
    pub(crate) kubeconfig: &'b Path,
    /// Log filter of Apportion's scheduler.
    pub(crate) log: &'b str,
    pub(crate) kai: Option<&'b KaiPrograms>,
}

/// Who watches the idle cluster.
#[derive(Clone, Copy)]
enum IdleContender<'b> {
    Nobody,
    Apportion {
        leader_election: bool,
    },
    /// Without leader election only the kubelet replaces a program that died. That is KAI's default.
    Kai {
        programs: &'b KaiPrograms,
        leader_election: bool,
    },
}

/// What a contender cost.
struct IdleCosts<'b> {
    contender: IdleContender<'b>,
    /// The part of a processor in each window.
    apiserver: Vec<f64>,
    etcd: Vec<f64>,
    /// The contender's own programs together.
    own: Vec<f64>,
    /// The requests of the last window, each minute.
    requests: Vec<(String, f64)>,
}

impl<'b> IdleComparison<'b> {
    /// Measures all contenders in turns, and prints what they cost.
    pub(crate) fn run(&self, window: Duration) -> Result<()> {
        let mut contenders = vec![IdleContender::Nobody];
        for leader_election in [false, true] {
            contenders.push(IdleContender::Apportion { leader_election });
            contenders.extend(self.kai.map(|programs| IdleContender::Kai {
                programs,
                leader_election,
            }));
        }
        let mut costs: Vec<_> = contenders.into_iter().map(IdleCosts::new).collect();
        let last = costs.len() - 1;
        for round in 0..WINDOWS {
            for turn in 0..=last {
                // The API server collects the garbage of one contender in the window of the next, so the order changes.
                let of = &mut costs[if round % 2 == 0 { turn } else { last - turn }];
                let mut programs = self.start(of.contender)?;
                sleep(SETTLE);
                self.measure(window, &programs, of);
                for program in &mut programs {
                    program.ensure_running()?;
                }
            }
        }
        println!(
            "nothing to do, parts of a processor (API server: at most what KAI's programs take):"
        );
        for of in &costs {
            of.print_parts(&costs[0].apiserver);
        }
        println!("what the API server was asked, each minute:");
        for of in &costs {
            of.print_requests();
        }
        Ok(())
    }

    fn start(&self, contender: IdleContender<'b>) -> Result<Vec<BackgroundProgram>> {
        match contender {
            IdleContender::Nobody => Ok(Vec::new()),
            IdleContender::Apportion { leader_election } => {
                let election = format!("--leader-elect={leader_election}");
                let scheduler = SchedulerProcess::start_with(
                    &[&election],
                    self.plane,
                    self.kubeconfig,
                    self.log,
                    LEADS,
                )?;
                Ok(vec![scheduler.into_program()])
            }
            IdleContender::Kai {
                programs,
                leader_election,
            } => programs.start(self.plane, leader_election),
        }
    }

    /// Measures one window of a contender.
    fn measure(&self, window: Duration, programs: &[BackgroundProgram], costs: &mut IdleCosts<'_>) {
        let [etcd, apiserver] = self.plane.processes();
        let own = programs.iter().map(BackgroundProgram::process);
        let processes: Vec<u32> = [apiserver, etcd].into_iter().chain(own).collect();
        let (asked, begun) = (RequestCounts::of(self.plane), Instant::now());
        let parts = parts_of(&processes, window);
        costs.apiserver.push(parts[0]);
        costs.etcd.push(parts[1]);
        costs
            .own
            .push(parts[2..].iter().fold(0.0, |sum, part| sum + part));
        costs.requests = RequestCounts::of(self.plane).each_minute_since(&asked, begun.elapsed());
    }
}

impl<'b> IdleCosts<'b> {
    fn new(contender: IdleContender<'b>) -> Self {
        Self {
            contender,
            apiserver: Vec::new(),
            etcd: Vec::new(),
            own: Vec::new(),
            requests: Vec::new(),
        }
    }

    fn name(&self) -> String {
        let (program, leader_election) = match self.contender {
            IdleContender::Nobody => return "no scheduler".to_owned(),
            IdleContender::Apportion { leader_election } => {
                ("Apportion's scheduler", leader_election)
            }
            IdleContender::Kai {
                leader_election, ..
            } => ("KAI's programs", leader_election),
        };
        let with = if leader_election { "with" } else { "without" };
        format!("{program} {with} leader election")
    }

    /// `alone` is what the API server took without a scheduler, in the window of each round.
    fn print_parts(&self, alone: &[f64]) {
        let more = match self.contender {
            IdleContender::Nobody => String::new(),
            IdleContender::Apportion { .. } | IdleContender::Kai { .. } => {
                let pairs = self.apiserver.iter().zip(alone);
                let more: Vec<f64> = pairs.map(|(part, alone)| part - alone).collect();
                format!(", {:+.4} on top of no scheduler", median(&more))
            }
        };
        println!("  {}:", self.name());
        println!("    kube-apiserver: {}{more}", range(&self.apiserver));
        println!("    etcd: {}", range(&self.etcd));
        println!("    its own programs: {}", range(&self.own));
    }

    fn print_requests(&self) {
        println!("  {}:", self.name());
        for (name, count) in self.requests.iter().take(REQUESTS) {
            println!("    {name}: {count:.1}");
        }
    }
}

/// The median and the range of a process's windows.
fn range(parts: &[f64]) -> String {
    let middle = median(parts);
    let least = parts.iter().copied().fold(f64::INFINITY, f64::min);
    let most = parts.iter().copied().fold(0.0, f64::max);
    format!("median {middle:.4}, {least:.4} to {most:.4}")
}
