//! Random traces on eight elastic shares of one card, whose limits add up to three cards. The programs allocate, write,
//! free and compare at the same time, newcomers call their guarantees in, and the programs, the agent and its child that
//! moves memory are killed at any point.
//!
//! Whatever happens: the driver never holds more than the card, a guarantee is served in time, every byte is as it was
//! written, everybody who is asleep wakes, and nobody ends who was not killed.
//!
//! `APPORTION_ELASTIC_TRACES` is the number of traces (default 6), `APPORTION_SEED` the random seed.

use std::thread;
use std::time::{Duration, Instant};

use apportion_tests::{
    AgentProcess, MIB, MachineConfig, PATIENCE, RandomNumbers, TestHost, VictimProcess, cards,
    eventually, number_from_env,
};
use nix::sys::signal::Signal;

/// All sizes are in MiB. A program at its limit fits beside the guarantees of all others, so everybody who sleeps gets its
/// turn.
const CARD: u64 = 2000;
const CONTEXT: u64 = 20;
const GUARANTEE: u64 = 170;
const LIMIT: u64 = 750;
const PROGRAMS: usize = 8;
/// The rounds of a trace. In each, every program does something.
const ROUNDS: u64 = 6;
/// How long any answer may take: all others are asleep in turns of a second, and the machine may be busy.
const SOON: Duration = Duration::from_secs(60);

/// One share, and what its program holds: the numbers and sizes of its allocations.
struct ElasticProgram {
    victim: VictimProcess,
    held: Vec<(u64, u64)>,
    /// How many allocations succeeded so far. The next one gets this number.
    next: u64,
}

/// What a program was told to do in a round.
#[derive(Clone, Copy, Debug)]
enum ProgramStep {
    Rest,
    /// It allocates and writes this much.
    Allocate {
        mib: u64,
        is_guaranteed: bool,
    },
    /// It frees the allocation at this position.
    Free(usize),
    /// It compares the allocation at this position with what was written.
    Check(usize),
    Killed,
}

impl ElasticProgram {
    fn start(host: &TestHost, name: &str) -> Self {
        let [guarantee, limit] = &[GUARANTEE, LIMIT].map(|mib| mib.to_string());
        let options = ["--gpu-memory", guarantee, "--gpu-memory-limit", limit];
        Self {
            victim: host.victim(&[&options[..], &["--name", name]].concat()),
            held: Vec::new(),
            next: 0,
        }
    }

    fn used(&self) -> u64 {
        CONTEXT + self.held.iter().map(|(_, mib)| mib).sum::<u64>()
    }

    fn step(&self, random: &mut RandomNumbers) -> ProgramStep {
        let at = |random: &mut RandomNumbers| {
            usize::try_from(random.below(self.held.len() as u64)).expect("it is small")
        };
        match random.below(100) {
            0..=7 => ProgramStep::Killed,
            8..=23 => ProgramStep::Rest,
            24..=33 if !self.held.is_empty() => ProgramStep::Free(at(random)),
            34..=49 if !self.held.is_empty() => ProgramStep::Check(at(random)),
            _ => {
                let mib = 2 * (1 + random.below(150));
                let is_guaranteed = self.used() + mib <= GUARANTEE;
                ProgramStep::Allocate { mib, is_guaranteed }
            }
        }
    }

    fn begin(&mut self, step: ProgramStep) {
        match step {
            ProgramStep::Rest => {}
            ProgramStep::Allocate { mib, .. } => {
                let number = self.next;
                self.victim
                    .begin(&format!("alloc {mib}M mark {number} {mib}M"));
            }
            ProgramStep::Free(at) => self.victim.begin(&format!("free {}", self.held[at].0)),
            ProgramStep::Check(at) => {
                let (number, mib) = self.held[at];
                self.victim.begin(&format!("check {number} {mib}M"));
            }
            ProgramStep::Killed => self.victim.signal(Signal::SIGKILL),
        }
    }

    #[track_caller]
    fn finish(&mut self, step: ProgramStep) {
        match step {
            ProgramStep::Rest | ProgramStep::Killed => {}
            ProgramStep::Allocate { mib, is_guaranteed } => {
                // Without the allocation there is nothing to write to.
                let is_there = self.victim.finish().code == 0;
                assert!(is_there || !is_guaranteed, "a guarantee was refused");
                if is_there {
                    self.held.push((self.next, mib));
                    self.next += 1;
                }
            }
            ProgramStep::Free(at) => {
                self.victim.finish().ok();
                self.held.remove(at);
            }
            ProgramStep::Check(_) => assert_eq!(self.victim.finish().value(), 0, "a byte changed"),
        }
    }
}

struct ElasticTraces {
    host: TestHost,
    agent: Option<AgentProcess>,
    random: RandomNumbers,
    programs: Vec<Option<ElasticProgram>>,
    started: u64,
    /// The suspensions that agents counted before they were killed.
    suspended: f64,
}

impl Drop for ElasticTraces {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.host.agent_log());
        }
    }
}

fn agent(host: &TestHost) -> AgentProcess {
    let mut options = vec!["--tick", "20", "--context-reserve", "20"];
    options.extend(["--burst-reclaim", "suspend", "--suspend-turn", "1s"]);
    options.extend(["--gpu-memory-overcommit", "3"]);
    host.agent(&options)
}

impl ElasticTraces {
    fn new(seed: u64) -> Self {
        let mut config = MachineConfig {
            // A copy of a limit takes a tenth of a second, so that kills come before, in and after it.
            checkpoint_mib_per_second: 7_500,
            ..cards(1)
        };
        for card in &mut config.cards {
            card.memory = CARD * MIB + card.reserved;
            card.context_bytes = CONTEXT * MIB;
            card.further_context_bytes = CONTEXT * MIB;
        }
        let host = TestHost::with(&config);
        Self {
            agent: Some(agent(&host)),
            host,
            random: RandomNumbers::of(seed),
            programs: (0..PROGRAMS).map(|_| None).collect(),
            started: 0,
            suspended: 0.0,
        }
    }

    fn suspensions(&self) -> f64 {
        let labels = ["action=\"suspend\"", "result=\"done\""];
        let count = self.host.metric("apportion_suspensions_total", &labels);
        count.unwrap_or(0.0)
    }

    fn restart_agent(&mut self) {
        self.suspended += self.suspensions();
        self.agent.take().expect("it runs").kill();
        self.agent = Some(agent(&self.host));
    }

    /// Every program does something, and something is killed.
    fn round(&mut self) {
        let begun = Instant::now();
        let mut steps = Vec::new();
        let mut newcomers = Vec::new();
        for at in 0..PROGRAMS {
            match &mut self.programs[at] {
                Some(program) => {
                    let step = program.step(&mut self.random);
                    program.begin(step);
                    steps.push((at, step));
                }
                None if self.random.percent(35) => {
                    self.started += 1;
                    let name = format!("program-{}", self.started);
                    newcomers.push(at);
                    self.programs[at] = Some(ElasticProgram::start(&self.host, &name));
                }
                None => {}
            }
        }
        thread::sleep(Duration::from_millis(self.random.below(200)));
        let is_agent_killed = self.random.percent(20);
        if is_agent_killed {
            self.restart_agent();
        } else if self.random.percent(30) {
            self.agent.as_ref().expect("it runs").kill_mover();
        }
        for at in newcomers {
            let program = self.programs[at].as_mut().expect("it was just started");
            let is_there = program
                .victim
                .try_say("start")
                .iter()
                .any(|of| of.code == 0);
            let errors = program.victim.errors();
            assert!(is_there || is_agent_killed, "a newcomer ended: {errors}");
            if !is_there {
                let _ = program.victim.wait();
                self.programs[at] = None;
            }
        }
        for (at, step) in steps {
            let program = self.programs[at].as_mut().expect("it has a step");
            program.finish(step);
            if matches!(step, ProgramStep::Killed) {
                let _ = program.victim.wait();
                self.programs[at] = None;
            }
        }
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        self.fits();
    }

    #[track_caller]
    fn fits(&self) {
        let most = self.host.high_water();
        assert!(most <= CARD * MIB, "the driver held {most} bytes");
    }

    /// All contents are compared, everybody ends, and nothing is left.
    fn end(&mut self) {
        let mut programs: Vec<_> = self.programs.iter_mut().filter_map(Option::take).collect();
        for program in &mut programs {
            let checks: Vec<String> = program
                .held
                .iter()
                .map(|(number, mib)| format!("check {number} {mib}M"))
                .collect();
            program.victim.begin(&format!("sync {}", checks.join(" ")));
        }
        for program in &mut programs {
            for answer in program.victim.finish_all() {
                let is_as_it_was = answer.numbers.iter().all(|changed| *changed == 0);
                assert!(answer.code == 0 && is_as_it_was, "{answer:?}");
            }
            assert!(program.victim.end().success(), "nobody killed it");
        }
        let host = &self.host;
        eventually(PATIENCE, "nothing is left", || {
            let top = host.top();
            let is_empty = top["allocations"].as_array().is_some_and(Vec::is_empty);
            is_empty && top["cards"][0]["free_bytes"] == CARD * MIB && host.used() == 0
        });
        assert_eq!(host.metric("apportion_offences_total", &[]), Some(0.0));
        self.fits();
    }
}

#[test]
fn nobody_loses_memory_or_a_guarantee_whatever_is_killed() {
    let traces = number_from_env("APPORTION_ELASTIC_TRACES", 6);
    let seed = number_from_env("APPORTION_SEED", 1);
    let mut all = ElasticTraces::new(seed);
    for trace in 0..traces {
        eprintln!("seed {seed}, trace {trace}");
        for _ in 0..ROUNDS {
            all.round();
        }
        all.end();
    }
    let suspended = all.suspended + all.suspensions();
    println!(
        "{traces} traces: {} programs, {suspended} suspensions",
        all.started
    );
    // How many programs have to sleep depends on the speed of the machine, too: about one in two traces.
    assert!(
        suspended > 0.0 || traces < 60,
        "nobody was suspended, so this showed little"
    );
}
