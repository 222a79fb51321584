//! What the API server costs while nothing happens: with no scheduler, with Apportion's, and with
//! KAI's programs.
//!
//! The API server works by itself, too: its garbage collection alone makes one minute twice as expensive as the next.
//! So each contender has several windows, in turns, and the medians are compared.

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
#[derive(Clone, Copy, Debug)]
enum IdleContender {
    Nobody,
    Apportion,
    /// KAI as it is installed by default: nobody replaces a program that died but the kubelet.
    Kai,
    KaiWithLeaderElection,
}

impl IdleContender {
    fn name(self) -> &'static str {
        match self {
            Self::Nobody => "no scheduler",
            Self::Apportion => "Apportion's scheduler",
            Self::Kai => "KAI's programs",
            Self::KaiWithLeaderElection => "KAI's programs with leader election",
        }
    }
}

/// The part of a processor that each process took in each window.
#[derive(Clone, Copy, Debug, Default)]
struct IdleWindows {
    apiserver: [f64; WINDOWS],
    etcd: [f64; WINDOWS],
    /// The contender's own programs together.
    own: [f64; WINDOWS],
}

impl IdleComparison<'_> {
    /// Measures all contenders in turns, and prints what they cost.
    pub(crate) fn run(&self, window: Duration) -> Result<()> {
        let mut contenders = vec![IdleContender::Nobody, IdleContender::Apportion];
        if self.kai.is_some() {
            contenders.extend([IdleContender::Kai, IdleContender::KaiWithLeaderElection]);
        }
        let mut costs = vec![IdleWindows::default(); contenders.len()];
        let mut requests = Vec::new();
        for at in 0..WINDOWS {
            for (contender, costs) in contenders.iter().zip(&mut costs) {
                let mut programs = self.start(*contender)?;
                sleep(SETTLE);
                let (asked, begun) = (RequestCounts::of(self.plane), Instant::now());
                self.measure(window, &programs, costs, at);
                let minutes = begun.elapsed().as_secs_f64() / 60.0;
                for program in &mut programs {
                    program.ensure_running()?;
                }
                if at + 1 == WINDOWS {
                    requests.push(RequestCounts::of(self.plane).since(&asked));
                    let last = requests.last_mut().into_iter().flatten();
                    last.for_each(|(_, count)| *count /= minutes);
                }
            }
        }
        println!("nothing to do, parts of a processor (0.015 for the API server):");
        for (contender, of) in contenders.iter().zip(&costs) {
            let more = median(&of.apiserver) - median(&costs[0].apiserver);
            println!("  {}:", contender.name());
            println!(
                "    kube-apiserver: {}; {more:+.4} beside no scheduler",
                range(&of.apiserver)
            );
            println!("    etcd: {}", range(&of.etcd));
            println!("    its own programs: {}", range(&of.own));
        }
        println!("what the API server was asked, each minute:");
        for (contender, requests) in contenders.iter().zip(requests) {
            println!("  {}:", contender.name());
            for (name, count) in requests.into_iter().take(REQUESTS) {
                println!("    {name}: {count:.1}");
            }
        }
        Ok(())
    }

    fn start(&self, contender: IdleContender) -> Result<Vec<BackgroundProgram>> {
        let kai = |leader_election| match self.kai {
            Some(kai) => kai.start(self.plane, leader_election),
            None => Ok(Vec::new()),
        };
        match contender {
            IdleContender::Nobody => Ok(Vec::new()),
            IdleContender::Apportion => {
                let scheduler =
                    SchedulerProcess::start(self.plane, self.kubeconfig, self.log, LEADS)?;
                Ok(vec![scheduler.into_program()])
            }
            IdleContender::Kai => kai(false),
            IdleContender::KaiWithLeaderElection => kai(true),
        }
    }

    /// Measures one window.
    fn measure(
        &self,
        window: Duration,
        programs: &[BackgroundProgram],
        costs: &mut IdleWindows,
        at: usize,
    ) {
        let [etcd, apiserver] = self.plane.processes();
        let own = programs.iter().map(BackgroundProgram::process);
        let processes: Vec<u32> = [apiserver, etcd].into_iter().chain(own).collect();
        let parts = parts_of(&processes, window);
        costs.apiserver[at] = parts[0];
        costs.etcd[at] = parts[1];
        costs.own[at] = parts[2..].iter().fold(0.0, |sum, part| sum + part);
    }
}

/// The median and the range of a process's windows.
fn range(parts: &[f64; WINDOWS]) -> String {
    let middle = median(parts);
    let least = parts.iter().copied().fold(f64::INFINITY, f64::min);
    let most = parts.iter().copied().fold(0.0, f64::max);
    format!("median {middle:.4}, {least:.4} to {most:.4}")
}
