//! The running scheduler against a real etcd and kube-apiserver: from a pod's creation to its binding.
//!
//! Nodes are objects, and their agents stand-ins in this process, which keep books and publish them as
//! agents do; everything else is real. Two questions: how long the first share of an idle card takes, one
//! pod at a time, and how long a cluster takes that is filled at once. What each process used of the
//! processors stands beside the times, because all of them share this machine. The budgets of the design are
//! printed with the figures; nothing fails when one is missed, because a busy machine is not a bug.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use apportion_abi::Bytes;
use apportion_tests::control_plane::ControlPlane;
use clap::Parser;

mod agents;
mod books;
mod bound;
mod cluster;
mod objects;
mod publish;
mod scheduler;
mod spread;
mod usage;

use cluster::Cluster;
use objects::Ask;
use scheduler::Scheduler;
use spread::Spread;
use usage::Usage;

/// Measures the running scheduler against a real API server.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// How many nodes there are
    #[arg(long, default_value_t = 500, value_name = "N")]
    nodes: usize,
    /// How many cards a node has
    #[arg(long, default_value_t = 8, value_name = "N")]
    cards: usize,
    /// How many pods come at once: half of them want a card, half of them half a card
    #[arg(long, default_value_t = 4000, value_name = "N")]
    pods: usize,
    /// How many pods come one after the other to idle cards
    #[arg(long, default_value_t = 200, value_name = "N")]
    first: usize,
    /// What the scheduler logs, into a file that is named at the end
    #[arg(long, default_value = "info", value_name = "FILTER")]
    log: String,
}

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("apportion-bench-api: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    let plane = ControlPlane::new();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    println!("{}", surroundings(arguments));
    let cluster = runtime.block_on(Cluster::make(&plane, arguments.nodes, arguments.cards))?;
    let mut scheduler = Scheduler::start(&plane, &arguments.log)?;
    let [now, _] = usage::resident(scheduler.process()).map(Bytes::as_mib);
    println!("scheduler resident with no pods: {now} MiB");
    let processes = |scheduler: &Scheduler| {
        let [etcd, apiserver] = plane.processes();
        let own = std::process::id();
        [
            ("scheduler", scheduler.process()),
            ("kube-apiserver", apiserver),
            ("etcd", etcd),
            ("agents and clients", own),
        ]
        .map(|(name, process)| (name, Usage::of(process)))
    };

    let times = runtime.block_on(one_by_one(&cluster, arguments.first))?;
    println!(
        "first share of an idle card, created to bound: {} (p99 below 200 ms)",
        Spread::of(times)
    );

    let before = processes(&scheduler);
    let (times, whole) = runtime.block_on(at_once(&cluster, arguments.pods))?;
    let after = processes(&scheduler);
    println!(
        "{} pods at once, created to bound: all in {:.1} s (60 s), each in {}",
        arguments.pods,
        whole.as_secs_f64(),
        Spread::of(times)
    );
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        println!("  {name}: {}", after.since(before));
    }
    let [now, most] = usage::resident(scheduler.process()).map(Bytes::as_mib);
    println!("scheduler resident: {now} MiB, at most {most} MiB (100 MiB)");
    scheduler.stop(&plane)
}

/// Shares that fit on no card with another: each pod is gone before the next comes.
async fn one_by_one(cluster: &Cluster, count: usize) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for number in 0..count {
        let name = format!("first-{number}");
        times.push(cluster.time_of_one(&name, Ask::Most).await?);
        cluster.end(&name).await?;
    }
    Ok(times)
}

async fn at_once(cluster: &Cluster, count: usize) -> Result<(Vec<Duration>, Duration)> {
    let ask = |number: usize| match number % 2 {
        0 => Ask::Card,
        _ => Ask::Half,
    };
    let pods = (0..count).map(|number| (format!("pod-{number}"), ask(number)));
    cluster.times_of(pods.collect()).await
}

fn surroundings(arguments: &Arguments) -> String {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let Arguments { nodes, cards, .. } = arguments;
    format!(
        "{nodes} nodes with {cards} cards each; {processors} processors, load {load} at the start"
    )
}
