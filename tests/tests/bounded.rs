//! Arbitrary clients at the agent's port: whatever they send and however many they are, the agent keeps the chart's
//! memory limit and reports that it is healthy.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use apportion_memory_group::{ChartContainer, MemoryGroup};
use apportion_tests::{TestHost, eventually};

/// Longer than any answer takes, shorter than the kubelet's timeout.
const SOON: Duration = Duration::from_secs(4);
const KIB: u64 = 1024;

/// The peak memory of a process, in bytes.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    number.expect("the kernel says it") * KIB
}

fn connect(host: &TestHost) -> TcpStream {
    let stream = TcpStream::connect(host.metrics_address().trim()).expect("the agent listens");
    let _ = stream.set_read_timeout(Some(SOON));
    let _ = stream.set_write_timeout(Some(Duration::from_millis(20)));
    stream
}

#[track_caller]
fn is_well(host: &TestHost) {
    let asked = Instant::now();
    let said = host.http("/healthz");
    assert!(said.starts_with("HTTP/1.1 200"), "{said:?}");
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
}

#[test]
fn unfinished_headers_take_no_memory_and_the_oldest_go() {
    let host = TestHost::new();
    let group = MemoryGroup::of(ChartContainer::Agent);
    let agent = host.agent_in(group.as_ref());
    is_well(&host);
    let before = peak(agent.pid());
    let head = format!(
        "GET /metrics HTTP/1.1\r\nHost: x\r\nX: {}",
        "a".repeat(60_000)
    );
    let mut held = Vec::new();
    for _ in 0..300 {
        let mut stream = connect(&host);
        // If the connection is refused, the write may fail.
        let _ = stream.write_all(head.as_bytes());
        held.push(stream);
    }
    is_well(&host);
    let grown = peak(agent.pid()) - before;
    assert!(grown < 8 * KIB * KIB, "{grown} bytes for 300 connections");
    // Connections with small incomplete heads are kept until newer ones need the room.
    let held: Vec<_> = (0..60)
        .map(|_| {
            let mut stream = connect(&host);
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
            stream
        })
        .collect();
    is_well(&host);
    let metric = "apportion_connections_dropped_total";
    eventually(SOON, "it is counted", || {
        host.metric(metric, &["listener=\"metrics\""]) > Some(40.0)
    });
    assert!(host.agent_log().contains("the oldest are dropped"));
    assert_eq!(group.as_ref().map_or(0, MemoryGroup::killed), 0);
    drop(held);
}

/// The answer comes well before the timeout for a head.
#[test]
fn a_head_larger_than_the_bound_is_refused_at_once() {
    let host = TestHost::new();
    let _agent = host.agent(&[]);
    let mut stream = connect(&host);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
    let head = format!("GET /metrics HTTP/1.1\r\nX: {}", "a".repeat(12 << 10));
    let _ = stream.write_all(head.as_bytes());
    let mut said = Vec::new();
    let ended = stream.read_to_end(&mut said);
    let waited = ended.is_err_and(|problem| problem.kind() == ErrorKind::WouldBlock);
    assert!(!waited, "the agent still waits for the rest of the head");
    let said = String::from_utf8_lossy(&said);
    assert!(
        said.is_empty() || said.starts_with("HTTP/1.1 431"),
        "{said}"
    );
}

#[test]
fn health_is_answered_while_metrics_are_asked_for_without_an_end() {
    let host = TestHost::new();
    let group = MemoryGroup::of(ChartContainer::Agent);
    let _agent = host.agent_in(group.as_ref());
    let is_over = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let flood = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(50);
    let clients: Vec<_> = (0..64)
        .map(|_| {
            let (is_over, answered) = (is_over.clone(), answered.clone());
            let flood = flood.clone();
            let address = host.metrics_address();
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let Ok(mut stream) = TcpStream::connect(address.trim()) else {
                        continue;
                    };
                    let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
                    // Keep asking as long as there are answers.
                    let mut said = vec![0; 64 << 10];
                    while !is_over.load(Ordering::Relaxed)
                        && stream.write_all(flood.as_bytes()).is_ok()
                        && stream.read(&mut said).is_ok_and(|length| length > 0)
                    {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    eventually(SOON, "the clients are at it", || {
        answered.load(Ordering::Relaxed) > 64
    });
    let asked = (0..5).map(|_| {
        let asked = Instant::now();
        is_well(&host);
        asked.elapsed()
    });
    let best = asked.min().unwrap_or_default();
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().expect("a client ends");
    }
    // Use the best time, because the machine may be busy during some of them.
    assert!(best < Duration::from_millis(300), "{best:?}");
    assert_eq!(group.as_ref().map_or(0, MemoryGroup::killed), 0);
}

#[test]
fn a_connection_gets_one_answer() {
    let host = TestHost::new();
    let _agent = host.agent(&[]);
    let mut stream = connect(&host);
    let twice = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2);
    stream.write_all(twice.as_bytes()).expect("it is there");
    let mut said = Vec::new();
    // Unread requests make the server reset the connection after its answer.
    let _ = stream.read_to_end(&mut said);
    let said = String::from_utf8_lossy(&said);
    assert_eq!(said.matches("HTTP/1.1 200").count(), 1, "{said}");
}
