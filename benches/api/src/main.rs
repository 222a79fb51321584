//! The running scheduler against a real etcd and kube-apiserver: from a pod's creation to its binding.
//!
//! Nodes are objects. Their agents are stand-ins in this process, which have ledgers and publish them as agents do.
//! Everything else is real. Two questions: how long does the first share of an idle card take, one pod at a time? And
//! how long does it take to fill a whole cluster at once? The CPU time of each process is printed with the times,
//! because all of them share this machine. The design's budgets are printed, too. A missed budget fails nothing,
//! because a busy machine is not a bug.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use apportion_abi::Bytes;
use apportion_cluster::operators::KaiCheckout;
use apportion_tests::control_plane::ControlPlane;
use apportion_tests::cpu_time::{self, CpuTime};
use clap::Parser;

mod agents;
mod background;
mod bind_times;
mod cluster;
mod idle_costs;
mod kai;
mod kubectl;
mod kubelet;
mod latency;
mod objects;
mod percentiles;
mod publish;
mod requests;
mod scheduler;
mod stand_in_ledger;

use cluster::BenchCluster;
use idle_costs::IdleComparison;
use kai::KaiPrograms;
use objects::BenchPodRequest;
use percentiles::LatencyPercentiles;
use scheduler::{LEADS, SchedulerProcess, WAITS};

/// Measures the running scheduler against a real API server.
#[derive(Debug, Parser)]
#[command(version)]
struct ApiBenchArguments {
    /// Number of nodes
    #[arg(long, default_value_t = 500, value_name = "N")]
    nodes: usize,
    /// Cards on each node
    #[arg(long, default_value_t = 8, value_name = "N")]
    cards: usize,
    /// Pods that are created at once: half of them request a card, half of them half a card
    #[arg(long, default_value_t = 4000, value_name = "N")]
    pods: usize,
    /// Pods that are created one after the other on idle cards
    #[arg(long, default_value_t = 200, value_name = "N")]
    first: usize,
    /// Pods of another queue that reclaim cards; the cluster is first filled with pods of one card
    #[arg(long, default_value_t = 0, value_name = "N")]
    reclaim: usize,
    /// Delay of every byte between the scheduler and the API server, each way
    #[arg(long, default_value_t = 0, value_name = "MILLISECONDS")]
    delay: u64,
    /// Seconds of each of the windows in which the cost of an idle cluster is measured, without and with the scheduler
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    idle: u64,
    /// Checkout of KAI Scheduler, whose programs are measured on the idle cluster, too; needs Go
    #[arg(long, requires = "idle", value_name = "DIR", value_parser = kai::checkout)]
    kai: Option<KaiCheckout>,
    /// Kill the leader while another scheduler waits
    #[arg(long)]
    failover: bool,
    /// Log filter of the scheduler; the log's file is named at the end
    #[arg(long, default_value = "info", value_name = "FILTER")]
    log: String,
}

fn main() -> ExitCode {
    match measure(&ApiBenchArguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("apportion-bench-api: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &ApiBenchArguments) -> Result<()> {
    let plane = ControlPlane::new();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    println!("{}", surroundings(arguments));
    let cluster = runtime.block_on(BenchCluster::make(&plane, arguments.nodes, arguments.cards))?;
    let delay = Duration::from_millis(arguments.delay);
    let kubeconfig = match arguments.delay {
        0 => plane.kubeconfig(),
        _ => runtime.block_on(latency::between(&plane.kubeconfig(), delay))?,
    };
    let mut scheduler = SchedulerProcess::start(&plane, &kubeconfig, &arguments.log, LEADS)?;
    let [now, _] = cpu_time::resident(scheduler.process()).map(Bytes::as_mib);
    println!("scheduler resident with no pods: {now} MiB");
    let usage = |scheduler: &SchedulerProcess| {
        let [etcd, apiserver] = plane.processes();
        let processes = [
            ("scheduler", scheduler.process()),
            ("kube-apiserver", apiserver),
            ("etcd", etcd),
            ("agents and clients", std::process::id()),
        ];
        processes.map(|(name, process)| (name, CpuTime::of(process)))
    };

    let times = runtime.block_on(one_by_one(&cluster, arguments.first))?;
    println!(
        "first share of an idle card, created to bound: {} (p99 below 200 ms)",
        LatencyPercentiles::of(times)
    );

    let before = usage(&scheduler);
    let whole_cards = arguments.reclaim > 0;
    let count = if whole_cards {
        arguments.nodes * arguments.cards
    } else {
        arguments.pods
    };
    let (times, whole) = runtime.block_on(at_once(&cluster, count, whole_cards))?;
    let after = usage(&scheduler);
    println!(
        "{count} pods at once, created to bound: all in {:.1} s (60 s), each in {}",
        whole.as_secs_f64(),
        LatencyPercentiles::of(times)
    );
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        println!("  {name}: {}", after.since(before));
    }
    let budget = if arguments.delay == 0 { 10 } else { 40 };
    println!("  budget of the scheduler: {budget} s of a processor");
    let [now, most] = cpu_time::resident(scheduler.process()).map(Bytes::as_mib);
    println!("scheduler resident: {now} MiB, at most {most} MiB (100 MiB)");
    if arguments.reclaim > 0 {
        reclaim(&runtime, &cluster, arguments.reclaim)?;
        let [now, most] = cpu_time::resident(scheduler.process()).map(Bytes::as_mib);
        println!("scheduler resident after it: {now} MiB, at most {most} MiB (100 MiB)");
    }
    kubectl::measure(&kubeconfig)?;
    if arguments.idle > 0 {
        scheduler.stop()?;
        let kai = arguments.kai.as_ref();
        let kai = kai
            .map(|checkout| KaiPrograms::install(checkout, &plane))
            .transpose()?;
        let comparison = IdleComparison {
            plane: &plane,
            kubeconfig: &kubeconfig,
            log: &arguments.log,
            kai: kai.as_ref(),
        };
        comparison.run(Duration::from_secs(arguments.idle))?;
        scheduler = SchedulerProcess::start(&plane, &kubeconfig, &arguments.log, LEADS)?;
    }
    if arguments.failover {
        if count > 0 {
            // Make room for a pod.
            runtime.block_on(cluster.end_one("pod-0"))?;
        }
        let next = SchedulerProcess::start(&plane, &kubeconfig, &arguments.log, WAITS)?;
        std::thread::sleep(Duration::from_secs(10));
        scheduler.stop()?;
        let took = runtime.block_on(cluster.time_of_one("after", BenchPodRequest::Card))?;
        println!(
            "killed the leader; the next binding came after {:.1} s (5 s)",
            took.as_secs_f64()
        );
        scheduler = next;
    }
    scheduler.stop()
}

/// Pods that reclaim cards. Any further eviction is a bug, on a busy machine too.
fn reclaim(runtime: &tokio::runtime::Runtime, cluster: &BenchCluster, count: usize) -> Result<()> {
    let took = runtime.block_on(cluster.reclaim(count))?;
    // Evictions for nothing would show now.
    std::thread::sleep(Duration::from_secs(10));
    let evicted = cluster.evicted();
    let took = took.as_secs_f64();
    println!("reclaim of {count}: all bound in {took:.1} s, {evicted} evicted ({count})");
    ensure!(evicted == count, "{evicted} were evicted for {count}");
    Ok(())
}

/// Creates shares of which no two fit on one card. Each pod is gone before the next comes.
async fn one_by_one(cluster: &BenchCluster, count: usize) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for number in 0..count {
        let name = format!("first-{number}");
        times.push(cluster.time_of_one(&name, BenchPodRequest::Most).await?);
        cluster.end(&name).await?;
    }
    Ok(times)
}

async fn at_once(
    cluster: &BenchCluster,
    count: usize,
    whole_cards: bool,
) -> Result<(Vec<Duration>, Duration)> {
    let pods = (0..count).map(|number| {
        let ask = match number % 2 {
            _ if whole_cards => BenchPodRequest::Card,
            0 => BenchPodRequest::Card,
            _ => BenchPodRequest::Half,
        };
        (format!("pod-{number}"), ask)
    });
    cluster.times_of(pods.collect()).await
}

fn surroundings(arguments: &ApiBenchArguments) -> String {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let ApiBenchArguments { nodes, cards, .. } = arguments;
    format!(
        "{nodes} nodes with {cards} cards each; {processors} processors, load {load} at the start"
    )
}
