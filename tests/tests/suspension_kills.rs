//! Two programs take turns on one card while the agent, its child that moves them, and the sleeper are killed at random
//! points. No turn loses memory, none gets what the other has, and all contents are as they were.
//!
//! `APPORTION_SUSPENSIONS` is the number of turns (default 40), `APPORTION_SEED` the random seed.

use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use apportion_tests::{
    AgentProcess, CARD, CommandOutput, MachineConfig, PATIENCE, RandomNumbers, TestHost,
    VictimProcess, cards, eventually, number_from_env,
};
use nix::sys::signal::Signal;

/// Both programs want 60 % of the card.
const OPTIONS: [&str; 2] = ["--gpu-memory", "6000"];
const HELD: &str = "5600M";
/// A copy of one program takes a quarter of a second.
const MIB_PER_SECOND: u32 = 24_000;
/// The latest point at which something is killed.
const LATEST: u64 = 320;

/// What is killed during a turn.
#[derive(Clone, Copy, Debug)]
enum KilledPart {
    Nothing,
    Agent,
    Mover,
    Sleeper,
}

struct TurnTaking {
    host: TestHost,
    agent: Option<AgentProcess>,
    programs: [VictimProcess; 2],
    random: RandomNumbers,
}

fn started(host: &TestHost, at: usize) -> VictimProcess {
    let name = format!("program-{at}");
    let mut program = host.victim(&[&OPTIONS[..], &["--name", &name]].concat());
    program.fill(HELD);
    program
}

fn agent(host: &TestHost) -> AgentProcess {
    host.agent(&["--tick", "20", "--context-reserve", "300"])
}

impl Drop for TurnTaking {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.host.agent_log());
        }
    }
}

impl TurnTaking {
    fn new(seed: u64) -> Self {
        let config = MachineConfig {
            checkpoint_mib_per_second: MIB_PER_SECOND,
            ..cards(1)
        };
        let host = TestHost::with(&config);
        let agent = agent(&host);
        let first = started(&host, 0);
        let _ = CommandOutput::by(host.simulated("suspend").arg("program-0")).well();
        let second = started(&host, 1);
        Self {
            host,
            agent: Some(agent),
            programs: [first, second],
            random: RandomNumbers::of(seed),
        }
    }

    fn begin(&self, command: &str, at: usize) -> Child {
        let mut command = self.host.simulated(command);
        command.arg(format!("program-{at}"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("the program is staged")
    }

    fn phase(&self, at: usize) -> String {
        let name = format!("program-{at}");
        let top = self.host.top();
        let mut all = top["allocations"].as_array().expect("it is there").iter();
        let found = all.find(|of| of["name"] == name.as_str());
        let phase = found.and_then(|of| of["suspension"].as_str());
        phase.unwrap_or("gone").to_owned()
    }

    /// Kills something while a command runs, and waits until nothing is half-way.
    fn disturb(&mut self, command: &str, at: usize, part: KilledPart) {
        let mut running = self.begin(command, at);
        thread::sleep(Duration::from_millis(self.random.below(LATEST)));
        match part {
            KilledPart::Nothing => {}
            KilledPart::Agent => {
                self.agent.take().expect("it runs").kill();
                self.agent = Some(agent(&self.host));
            }
            KilledPart::Mover => self.agent.as_ref().expect("it runs").kill_mover(),
            KilledPart::Sleeper => {
                self.programs[at].signal(Signal::SIGKILL);
                let _ = self.programs[at].wait();
            }
        }
        let _ = running.wait();
        let what = format!("{command} of program-{at} settles after {part:?}");
        eventually(PATIENCE, &what, || {
            let phase = self.phase(at);
            ["running", "suspended", "gone"].contains(&phase.as_str())
        });
    }

    /// Brings a program to a phase, now undisturbed.
    #[track_caller]
    fn bring(&self, command: &str, at: usize, phase: &str) {
        let what = format!("program-{at} is {phase}");
        eventually(PATIENCE, &what, || {
            self.phase(at) == phase || {
                let _ = self.begin(command, at).wait();
                false
            }
        });
    }

    /// The one that runs goes to sleep, the other one wakes.
    fn turn(&mut self, awake: usize) {
        let parts = [
            KilledPart::Nothing,
            KilledPart::Agent,
            KilledPart::Mover,
            KilledPart::Agent,
            KilledPart::Mover,
            KilledPart::Sleeper,
        ];
        let asleep = 1 - awake;
        let mut part = || parts[usize::try_from(self.random.below(6)).expect("small")];
        let (first, second) = (part(), part());
        self.disturb("suspend", awake, first);
        if self.phase(awake) != "gone" {
            self.bring("suspend", awake, "suspended");
        }
        assert!(self.host.used() <= CARD);
        self.disturb("resume", asleep, second);
        if self.phase(asleep) == "gone" {
            self.programs[asleep] = started(&self.host, asleep);
        } else {
            self.bring("resume", asleep, "running");
        }
        let checked = self.programs[asleep].step(&format!("check 0 {HELD}"));
        assert_eq!(checked.value(), 0, "all is as it was");
        if self.phase(awake) == "gone" {
            self.bring("suspend", asleep, "suspended");
            self.programs[awake] = started(&self.host, awake);
            self.bring("suspend", awake, "suspended");
            self.bring("resume", asleep, "running");
        }
    }
}

#[test]
fn turns_survive_kills_of_everything_at_any_point() {
    let (turns, seed) = (
        number_from_env("APPORTION_SUSPENSIONS", 40),
        number_from_env("APPORTION_SEED", 1),
    );
    println!("seed {seed}");
    let mut taking = TurnTaking::new(seed);
    for turn in 0..turns {
        let awake = usize::from(turn % 2 == 0);
        taking.turn(awake);
    }
    let most = taking.host.high_water();
    assert!(most <= CARD, "{most}");
    let offences = taking.host.metric("apportion_offences_total", &[]);
    assert_eq!(offences, Some(0.0), "{}", taking.host.agent_log());
    for at in [0, 1] {
        taking.programs[at].signal(Signal::SIGKILL);
        let _ = taking.programs[at].wait();
    }
    eventually(PATIENCE, "nothing is left", || {
        let top = taking.host.top();
        let is_empty = top["allocations"].as_array().is_some_and(Vec::is_empty);
        is_empty && top["cards"][0]["free_bytes"] == CARD && taking.host.used() == 0
    });
}
