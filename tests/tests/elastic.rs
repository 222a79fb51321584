//! Shares with a guarantee and a higher limit: programs burst into memory that nobody was guaranteed, guarantees of others
//! hold, and nobody can make the agent or another program pay for it.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use apportion_abi::Bytes;
use apportion_abi::account::BurstMap;
use apportion_tests::{
    CONTEXT, CommandOutput, MIB, MachineConfig, PATIENCE, TestHost, VictimProcess, eventually,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const GIB: u64 = 1024 * MIB;
/// What programs can get of the card of these tests.
const CARD: u64 = 16 * GIB;
/// The guarantee and the limit of most programs here.
const GUARANTEED: u64 = 3 * GIB;
const ELASTIC: [&str; 4] = ["--gpu-memory", "3Gi", "--gpu-memory-limit", "12Gi"];

/// A machine with one card of 16 GiB for programs.
fn machine() -> MachineConfig {
    let mut machine = apportion_tests::cards(1);
    machine.cards[0].memory = CARD + machine.cards[0].reserved;
    machine
}

fn host() -> TestHost {
    TestHost::with(&machine())
}

fn elastic(host: &TestHost, name: &str) -> VictimProcess {
    let mut victim = host.victim(&[&ELASTIC[..], &["--name", name]].concat());
    victim.step("start").ok();
    victim
}

fn grant(host: &TestHost, name: &str) -> Value {
    let top = host.top();
    let all = top["allocations"].as_array().expect("a list");
    let found = all.iter().find(|of| of["name"] == name);
    found.map_or(Value::Null, |of| of["grants"][0].clone())
}

fn bytes(of: &Value) -> u64 {
    of.as_u64().expect("a number of bytes")
}

fn account(host: &TestHost, name: &str) -> PathBuf {
    let top = host.top();
    let all = top["allocations"].as_array().expect("a list");
    let found = all
        .iter()
        .find(|of| of["name"] == name)
        .expect("it is there");
    found["account_dir"].as_str().expect("a path").into()
}

#[test]
fn four_programs_fill_what_nobody_is_guaranteed_and_never_more_than_the_card() {
    let host = host();
    let _agent = host.agent(&[]);
    let mut fixed = host.victim(&["--gpu-memory", "1Gi", "--name", "fixed"]);
    fixed.step("start").ok();
    let names = ["a", "b", "c", "d"];
    let mut victims = names.map(|name| elastic(&host, name));
    for victim in &mut victims {
        victim.begin("fill 64M");
    }
    let filled = victims
        .each_mut()
        .map(|victim| victim.finish().numbers[0] + CONTEXT);
    assert!(host.high_water() <= CARD);
    assert!(
        filled.iter().all(|bytes| *bytes > GUARANTEED - 64 * MIB),
        "{filled:?}"
    );
    let (sum, usable) = (filled.iter().sum::<u64>(), CARD - GIB);
    assert!(sum <= usable && sum > usable - 5 * 64 * MIB, "{filled:?}");

    fixed.step(&format!("alloc {}", GIB - CONTEXT)).ok();
    fixed.step("alloc 1").refused();
    assert!(host.high_water() <= CARD);

    let refused = host.run(&["--gpu-memory", "2Gi"], &["true"]);
    let refused = refused.fails_in_one_line(1);
    for part in ["used above guarantees", "by ", "a with "] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    victims[0].signal(Signal::SIGKILL);
    victims[0].wait();
    eventually(PATIENCE, "the dead program's memory is free", || {
        host.run(&["--gpu-memory", "2Gi"], &["true"]).code() == Some(0)
    });
    victims[1].step("alloc 512M").ok();
    assert!(host.high_water() <= CARD);
}

#[test]
fn an_allowance_that_is_not_used_goes_to_a_newcomer_at_once() {
    let host = host();
    let _agent = host.agent(&[]);
    let mut elastic = elastic(&host, "elastic");
    let held = elastic.step("alloc 10G").value();
    assert!(bytes(&grant(&host, "elastic")["allowance_bytes"]) >= 10 * GIB);
    elastic.step(&format!("free {held}")).ok();
    elastic.step("alloc 4G").ok();
    // The guarantee is 3 GiB, and 4 GiB and a context are used.
    let room = CARD - 4 * GIB - CONTEXT;
    let ask = (room / MIB).to_string();
    let mut newcomer = host.victim(&["--gpu-memory", &ask, "--name", "newcomer"]);
    newcomer.step(&format!("alloc {}", room - CONTEXT)).ok();
    assert_eq!(host.used(), CARD);
    elastic.step("alloc 2M").refused();
    assert!(host.high_water() <= CARD);
    let grant = grant(&host, "elastic");
    assert_eq!(grant["guaranteed_bytes"], GUARANTEED);
    assert_eq!(grant["limit_bytes"], 12 * GIB);
    assert_eq!(grant["allowance_bytes"], 4 * GIB + CONTEXT);
}

#[test]
fn an_allowance_that_is_not_used_goes_to_another_program_that_asks() {
    let host = host();
    let _agent = host.agent(&[]);
    let (mut one, mut other) = (elastic(&host, "one"), elastic(&host, "other"));
    for _ in 0..5 {
        for victim in [&mut one, &mut other] {
            let held = victim.step("alloc 11G").value();
            victim.step(&format!("free {held}")).ok();
        }
    }
    assert!(host.high_water() <= CARD);
    one.step("alloc 12G").refused();
    let answers = |result: &str| {
        let name = "apportion_burst_answer_duration_seconds_count";
        host.metric(name, &[result])
    };
    eventually(PATIENCE, "the answers are counted", || {
        answers("granted") >= Some(10.0)
    });
}

#[test]
fn a_program_sees_what_it_could_have_or_its_guarantee() {
    let host = host();
    let _agent = host.agent(&[]);
    let mut reaching = elastic(&host, "reaching");
    let info = |victim: &mut VictimProcess| victim.step("info").numbers.clone();
    assert_eq!(info(&mut reaching), [12 * GIB - CONTEXT, 12 * GIB]);
    let shown = ["--gpu-memory-info", "guaranteed", "--name", "modest"];
    let mut modest = host.victim(&[&ELASTIC[..], &shown].concat());
    assert_eq!(info(&mut modest), [GUARANTEED - CONTEXT, GUARANTEED]);
    modest.step("alloc 9G").ok();
    assert_eq!(info(&mut modest), [0, GUARANTEED]);
    eventually(PATIENCE, "what the other uses can't be had", || {
        let left = CARD - 9 * GIB - CONTEXT;
        info(&mut reaching) == [left - CONTEXT, left]
    });
    assert_eq!(reaching.step("nvml").numbers[0], CARD - 9 * GIB - CONTEXT);
    reaching.step("alloc 9G").refused();
    reaching.step("take 100").ok();
}

#[test]
fn combinations_that_make_no_sense_are_refused_with_their_numbers() {
    let host = host();
    let _agent = host.agent(&["--gpu-memory-overcommit", "1.5"]);
    let _other = elastic(&host, "other");
    for (limit, code, part) in [
        ("2Gi", 64, "a limit is at least the request"),
        ("17Gi", 1, "a limit of 17.0 GiB is above the 16.0 GiB"),
        (
            "16Gi",
            1,
            "would add up to 28.0 GiB; this agent allows 24.0 GiB there, which is 1.5 times",
        ),
    ] {
        let options = ["--gpu-memory", "3Gi", "--gpu-memory-limit", limit];
        let refused = host.run(&options, &["true"]);
        let refused = refused.fails_in_one_line(code);
        assert!(refused.contains(part), "{limit}: {refused}");
    }
}

/// Runs `apportion resize` with these options.
fn resize(host: &TestHost, options: &[&str]) -> CommandOutput {
    CommandOutput::by(host.simulated("resize").args(options))
}

#[test]
fn a_running_program_gets_another_guarantee_and_another_limit() {
    let host = host();
    let _agent = host.agent(&[]);
    let mut serve = elastic(&host, "serve");
    let mut other = elastic(&host, "other");
    let info = |victim: &mut VictimProcess| victim.step("info").numbers[1];

    // A lower guarantee: what is used stays, and is a burst.
    let held = serve.step("alloc 2G").value();
    let said = resize(&host, &["serve", "--gpu-memory", "1Gi"]).well().out;
    assert!(
        said.starts_with("serve: 3072 MiB up to 12.0 GiB -> 1024 MiB up to 12.0 GiB on GPU-"),
        "{said}"
    );
    let refused = host.run(&["--gpu-memory", "12Gi"], &["true"]);
    let refused = refused.fails_in_one_line(1);
    assert!(refused.contains("by serve with 1324 MiB"), "{refused}");

    // A lower limit than what is used: nothing is taken, and nothing more is given.
    let more = serve.step("alloc 6G").value();
    let _ = resize(&host, &["serve", "--gpu-memory-limit", "4Gi"]).well();
    serve.step("alloc 2M").refused();
    assert_eq!(info(&mut serve), 4 * GIB);
    assert!(host.used() >= 8 * GIB);
    serve.step(&format!("free {more}")).ok();
    serve.step("alloc 1G").ok();
    serve.step("alloc 1G").refused();

    // A higher one: it may go there at once.
    let _ = resize(&host, &["serve", "--gpu-memory-limit", "8Gi"]).well();
    assert_eq!(info(&mut serve), 8 * GIB);
    serve.step("alloc 4G").ok();

    // A higher guarantee needs room beside what others use above theirs, and then nobody can take it.
    let burst = other.step("alloc 7G").value();
    let refused = resize(
        &host,
        &[
            "serve",
            "--gpu-memory",
            "10Gi",
            "--gpu-memory-limit",
            "12Gi",
        ],
    );
    let refused = refused.fails_in_one_line(1);
    assert!(
        refused.contains("held by other with ") && refused.contains("by other with "),
        "{refused}"
    );
    other.step(&format!("free {burst}")).ok();
    eventually(PATIENCE, "what the other has freed is free", || {
        let options = [
            "serve",
            "--gpu-memory",
            "13Gi",
            "--gpu-memory-limit",
            "13Gi",
        ];
        resize(&host, &options).code() == Some(0)
    });
    other.step("alloc 4G").refused();
    serve.step(&format!("free {held}")).ok();
    serve
        .step(&format!("alloc {}", 13 * GIB - 5 * GIB - CONTEXT))
        .ok();
    serve.step("alloc 2M").refused();
    other.step(&format!("alloc {}", GUARANTEED - CONTEXT)).ok();
    assert!(host.high_water() <= CARD);
    let grant = grant(&host, "serve");
    assert_eq!(grant["guaranteed_bytes"], 13 * GIB);
    assert_eq!(grant["limit_bytes"], 13 * GIB);
}

#[test]
fn resizes_while_programs_allocate_and_agents_die_break_no_guarantee() {
    let host = host();
    let mut agent = host.agent(&["--tick", "20"]);
    let names = ["a", "b", "c"];
    let mut victims = names.map(|name| elastic(&host, name));
    for (victim, seed) in victims.iter_mut().zip(1..) {
        victim.begin(&format!("kills 120 {seed}"));
    }
    for round in 0..24 {
        let name = names[round % names.len()];
        let guaranteed = 1 + round * 7 % 5;
        let (guaranteed, limit) = (
            format!("{guaranteed}Gi"),
            format!("{}Gi", guaranteed + round % 9),
        );
        let options = [
            name,
            "--gpu-memory",
            &guaranteed,
            "--gpu-memory-limit",
            &limit,
        ];
        // Whether it is accepted depends on what the others use.
        let _ = resize(&host, &options).code();
        if round % 6 == 5 {
            agent.kill();
            agent = host.agent(&["--tick", "20"]);
        }
    }
    for victim in &mut victims {
        victim.finish().ok();
    }
    assert!(host.high_water() <= CARD);
    for name in names {
        let grant = grant(&host, name);
        let [guaranteed, allowance, limit] =
            ["guaranteed_bytes", "allowance_bytes", "limit_bytes"].map(|key| bytes(&grant[key]));
        assert!(guaranteed <= allowance && allowance <= limit, "{grant}");
    }
    eventually(PATIENCE, "what the killed programs had is free", || {
        host.used() == 3 * CONTEXT
    });
    // Everybody has its guarantee, at the same time.
    for (victim, name) in victims.iter_mut().zip(names) {
        let guaranteed = bytes(&grant(&host, name)["guaranteed_bytes"]);
        victim.step(&format!("alloc {}", guaranteed - CONTEXT)).ok();
    }
    assert!(host.high_water() <= CARD);
}

#[test]
fn a_fixed_share_has_no_third_file() {
    let host = host();
    let _agent = host.agent(&[]);
    for options in [
        &["--gpu-memory", "3Gi"][..],
        &["--gpu-memory", "3Gi", "--gpu-memory-limit", "3Gi"],
    ] {
        let mut fixed = host.victim(&[options, &["--name", "fixed"]].concat());
        fixed.step("alloc 4G").refused();
        let mut files: Vec<_> = fs::read_dir(account(&host, "fixed"))
            .expect("its account is there")
            .map(|file| file.expect("it can be read").file_name())
            .collect();
        files.sort();
        assert_eq!(files, ["limits", "usage"]);
        assert!(fixed.end().success());
        eventually(PATIENCE, "it is released", || {
            grant(&host, "fixed").is_null()
        });
    }
}

#[test]
fn without_an_agent_a_program_keeps_its_allowance_and_is_refused_soon() {
    let host = host();
    let agent = host.agent(&[]);
    let mut victim = elastic(&host, "elastic");
    let held = victim.step("alloc 7G").value();
    let before = bytes(&grant(&host, "elastic")["allowance_bytes"]);
    agent.kill();
    let begun = Instant::now();
    for _ in 0..20 {
        victim.step("alloc 4G").refused();
    }
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    victim.step(&format!("free {held}")).ok();
    victim.step("alloc 7G").ok();

    let _agent = host.agent(&[]);
    let grant = grant(&host, "elastic");
    // The new agent may have answered what was asked last.
    assert!(bytes(&grant["allowance_bytes"]) >= before, "{grant}");
    assert_eq!(
        (&grant["guaranteed_bytes"], &grant["limit_bytes"]),
        (&GUARANTEED.into(), &(12 * GIB).into())
    );
    let refused = host.run(&["--gpu-memory", "9Gi"], &["true"]);
    let refused = refused.fails_in_one_line(1);
    assert!(refused.contains("elastic with 4396 MiB"), "{refused}");
    eventually(PATIENCE, "the program asks again", || {
        victim.step("alloc 3G").code == 0
    });
    assert!(host.high_water() <= CARD);
}

/// A busy machine may not run the agent for a while. A program must not fail for that.
#[test]
fn an_agent_that_is_slow_is_waited_for() {
    let host = host();
    let agent = host.agent(&[]);
    let mut victim = elastic(&host, "elastic");
    let process = Pid::from_raw(agent.pid().cast_signed());
    kill(process, Signal::SIGSTOP).expect("the agent is our child");
    let waker = thread::spawn(move || {
        thread::sleep(Duration::from_millis(600));
        kill(process, Signal::SIGCONT)
    });
    victim.step("alloc 10G").ok();
    waker.join().expect("it ends").expect("the agent is there");
}

#[test]
fn a_weight_is_shown_and_outlives_the_agent() {
    let host = host();
    let agent = host.agent(&[]);
    let weighted = ["--burst-weight", "2.5", "--name", "heavy"];
    let mut heavy = host.victim(&[&ELASTIC[..], &weighted].concat());
    heavy.step("start").ok();
    let _light = elastic(&host, "light");
    let weight = |name: &str| {
        let top = host.top();
        let all = top["allocations"].as_array().expect("a list");
        let found = all.iter().find(|of| of["name"] == name);
        found.map_or(Value::Null, |of| of["burst_weight"].clone())
    };
    assert_eq!((weight("heavy"), weight("light")), (2.5.into(), 1.0.into()));
    agent.kill();
    let _agent = host.agent(&[]);
    eventually(PATIENCE, "the next agent knows the weights", || {
        (weight("heavy"), weight("light")) == (2.5.into(), 1.0.into())
    });
}

#[test]
fn a_program_that_writes_nonsense_harms_nobody() {
    let host = host();
    let _agent = host.agent(&[]);
    let _hostile = elastic(&host, "hostile");
    let mut honest = elastic(&host, "honest");
    let folder = account(&host, "hostile");
    let burst = OpenOptions::new()
        .write(true)
        .open(folder.join("burst"))
        .expect("it is writable");
    // The last word that is written is the number of requests.
    burst.write_all_at(&[0x7f; 36], 64).expect("it has a card");
    flood(folder.join("wake"));
    honest.step("alloc 8G").ok();
    let allowance = bytes(&grant(&host, "hostile")["allowance_bytes"]);
    assert!((GUARANTEED..=12 * GIB).contains(&allowance), "{allowance}");

    burst.set_len(0).expect("it is writable");
    flood(folder.join("wake"));
    eventually(PATIENCE, "the other program gets more", || {
        honest.step("alloc 2G").code == 0
    });
    burst.set_len(1 << 20).expect("it is writable");
    eventually(PATIENCE, "the agent goes on", || {
        grant(&host, "honest")["used_bytes"] == 10 * GIB + CONTEXT
    });
    assert!(host.high_water() <= CARD);
}

#[test]
fn what_was_given_to_a_program_is_not_given_to_another_before_it_can_use_it() {
    let host = host();
    let _agent = host.agent(&[]);
    let _greedy = elastic(&host, "greedy");
    let mut honest = elastic(&host, "honest");
    let folder = account(&host, "greedy");
    let is_over = Arc::new(AtomicBool::new(false));
    let asking = thread::spawn({
        let is_over = is_over.clone();
        move || {
            let name = folder.join("burst").into_os_string().into_vec();
            let burst = BurstMap::open(&CString::new(name).expect("a path")).expect("its file");
            let wake = File::options().write(true).open(folder.join("wake"));
            let mut wake = wake.expect("the program may open it");
            while !is_over.load(Ordering::Relaxed) {
                // It never uses what it gets.
                let ticket = burst.cards()[0].ask(Bytes(12 * GIB));
                wake.write_all(&[1]).expect("the agent reads it");
                burst.cards()[0].wait(ticket, 1_000_000);
            }
        }
    });
    // Both may have 8 GiB of the card while both ask.
    for _ in 0..300 {
        let held = honest.step("alloc 7G").value();
        honest.step(&format!("free {held}")).ok();
    }
    is_over.store(true, Ordering::Relaxed);
    asking.join().expect("it asks until it is told to end");
    assert!(host.high_water() <= CARD);
}

/// Fills a FIFO again and again.
fn flood(fifo: PathBuf) {
    let options = &mut OpenOptions::new();
    let options = options.read(true).write(true);
    let mut fifo: File = options
        .custom_flags(libc::O_NONBLOCK)
        .open(fifo)
        .expect("the program may open it");
    thread::spawn(move || {
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            let _ = fifo.write(&[1; 4096]);
        }
    });
}

#[test]
fn kills_of_programs_and_of_the_agent_never_fill_more_than_the_card() {
    let host = host();
    let mut agent = host.agent(&["--tick", "20"]);
    let mut victims = ["a", "b", "c"].map(|name| elastic(&host, name));
    for (victim, seed) in victims.iter_mut().zip(1..) {
        victim.begin(&format!("kills 150 {seed}"));
    }
    for _ in 0..6 {
        thread::sleep(Duration::from_millis(300));
        agent.kill();
        agent = host.agent(&["--tick", "20"]);
    }
    for victim in &mut victims {
        victim.finish().ok();
    }
    assert!(host.high_water() <= CARD);
    eventually(
        PATIENCE,
        "driver and ledger agree that only contexts are used",
        || {
            let used = |name| grant(&host, name)["used_bytes"].clone();
            host.used() == 3 * CONTEXT
                && ["a", "b", "c"]
                    .into_iter()
                    .all(|name| used(name) == CONTEXT)
        },
    );
    let mut newcomer = host.victim(&["--gpu-memory", "7Gi", "--name", "newcomer"]);
    newcomer.step(&format!("alloc {}", 7 * GIB - CONTEXT)).ok();
    victims[0].step("alloc 2G").ok();
    assert!(host.high_water() <= CARD);
}
