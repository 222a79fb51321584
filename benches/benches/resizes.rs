//! How long it takes to resize an elastic share of 1 and of 64 processes.
//!
//! The first time is from the request to the agent's answer: the ledger's decision, a checkpoint on the disk, and the
//! new numbers in the account. The second is that of the command `apportion resize`. Each resize changes the guarantee
//! and the limit, so that none is answered without a change.

use std::time::{Duration, Instant};

use apportion_proto::connect;
use apportion_proto::v1::{Allocation, ListRequest, ResizeRequest, Share, resize_reply};
use apportion_tests::{CommandOutput, MIB, TestHost};

mod shares;

use shares::{host, share};

/// How many processes a share has, with the budgets of an answer and of a command. After each resize the agent takes a
/// sample of all processes, and an answer may have to wait for the one before.
const BUDGETS: [(usize, Duration, Duration); 2] = [
    (1, Duration::from_millis(50), Duration::from_millis(100)),
    (64, Duration::from_millis(200), Duration::from_millis(250)),
];
const SIZES: [&str; 4] = ["--gpu-memory", "2000", "--gpu-memory-limit", "6000"];
const ANSWERS: usize = 400;
const COMMANDS: usize = 21;

/// The guarantee and the limit of a turn, in MiB.
fn sizes(turn: usize) -> [u64; 2] {
    let turn = turn as u64 % 2;
    [2000 + 200 * turn, 6000 - 200 * turn]
}

fn quantiles(mut times: Vec<Duration>) -> [Duration; 2] {
    times.sort();
    [times[times.len() / 2], times[times.len() * 99 / 100]]
}

/// The median and the 99th percentile of answers.
async fn answers(host: &TestHost, name: &str) -> [Duration; 2] {
    let socket = host.instance().join("agent.sock");
    let mut client = connect(&socket).await.expect("the agent listens");
    let list = client
        .list(ListRequest {})
        .await
        .expect("the agent answers");
    let mut all = list.into_inner().allocations.into_iter();
    let own: Allocation = all.find(|of| of.name == name).expect("it is there");
    let mut times = Vec::new();
    for turn in 1..=ANSWERS {
        let [guaranteed, limit] = sizes(turn);
        let share = Share {
            card: own.grants[0].card.clone(),
            bytes: guaranteed * MIB,
            limit_bytes: limit * MIB,
        };
        let (id, shares) = (own.id.clone(), vec![share]);
        let begun = Instant::now();
        let reply = client.resize(ResizeRequest { id, shares }).await;
        times.push(begun.elapsed());
        let result = reply.expect("the agent answers").into_inner().result;
        assert!(matches!(result, Some(resize_reply::Result::Allocation(_))));
    }
    quantiles(times)
}

/// The median of commands.
fn commands(host: &TestHost, name: &str) -> Duration {
    let mut times = Vec::new();
    for turn in 1..=COMMANDS {
        let [guaranteed, limit] = sizes(turn).map(|mib| mib.to_string());
        let mut command = host.simulated("resize");
        command.args([
            name,
            "--gpu-memory",
            &guaranteed,
            "--gpu-memory-limit",
            &limit,
        ]);
        let begun = Instant::now();
        let output = CommandOutput::by(&mut command);
        times.push(begun.elapsed());
        let _ = output.well();
    }
    quantiles(times)[0]
}

fn verdict(is_kept: bool) -> &'static str {
    if is_kept { "kept" } else { "missed" }
}

fn main() {
    let host = host();
    let _agent = host.agent(&["--context-reserve", "20"]);
    let runtime = tokio::runtime::Runtime::new().expect("it starts");
    for (processes, answer, command) in BUDGETS {
        let name = format!("share-{processes}");
        let mut program = share(&host, &name, &SIZES, processes, 2);
        let [median, late] = runtime.block_on(answers(&host, &name));
        let is_kept = verdict(late <= answer);
        println!(
            "{processes} processes, answer: median {median:?}, 99th percentile {late:?}, budget {answer:?}: {is_kept}"
        );
        let took = commands(&host, &name);
        let is_kept = verdict(took <= command);
        println!("{processes} processes, command: median {took:?}, budget {command:?}: {is_kept}");
        program.step("reap").ok();
        assert!(program.end().success());
    }
}
