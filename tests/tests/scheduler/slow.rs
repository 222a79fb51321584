//! An API server that answers the scheduler slowly, or not at all for a while: no pod is evicted in vain, and the
//! lease is kept.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE, placed, pod, queue};

/// A proxy between the scheduler and the API server. It delays every byte in both directions.
struct LatencyProxy(Arc<AtomicU64>);

impl LatencyProxy {
    /// Puts the proxy before the next scheduler that is started.
    fn before(cluster: &mut Cluster) -> Self {
        let config = fs::read_to_string(cluster.plane.kubeconfig()).expect("there is one");
        let mut config: Value = serde_json::from_str(&config).expect("it is JSON");
        let server = &mut config["clusters"][0]["cluster"]["server"];
        let far = server.as_str().expect("it names a server");
        let far = far.trim_start_matches("https://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let near = listener.local_addr().expect("it listens");
        *server = format!("https://{near}").into();
        let path = cluster.plane.dir().join("kubeconfig-slow");
        fs::write(&path, config.to_string()).expect("the folder is writable");
        cluster.kubeconfig = Some(path);
        let delay = Arc::new(AtomicU64::new(0));
        let known = delay.clone();
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(&far) else {
                    continue;
                };
                let both = |one: &TcpStream| one.try_clone().expect("a descriptor is free");
                carry(both(&near), both(&far), known.clone());
                carry(far, near, known.clone());
            }
        });
        Self(delay)
    }

    fn set(&self, delay: Duration) {
        let millis = u64::try_from(delay.as_millis()).expect("it is short");
        self.0.store(millis, Ordering::Relaxed);
    }
}

/// Forwards bytes with the delay. There is no limit on the bytes in flight.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Arc<AtomicU64>) {
    let (sent, arrived) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut some = [0; 1 << 14];
        while let Ok(count @ 1..) = from.read(&mut some) {
            if sent.send((Instant::now(), some[..count].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        while let Ok((at, bytes)) = arrived.recv() {
            let due = || at + Duration::from_millis(delay.load(Ordering::Relaxed));
            while Instant::now() < due() {
                let left = due().saturating_duration_since(Instant::now());
                thread::sleep(left.min(Duration::from_millis(50)));
            }
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// A pod that wants a GPU.
fn whole(name: &str, queue: &str) -> Value {
    let mut pod = pod(name, json!({}));
    pod["metadata"]["labels"]["kai.scheduler/queue"] = queue.into();
    pod["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": "1"});
    pod
}

fn is_ending(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

impl Cluster {
    /// Deletes evicted pods, as kubelets do. Returns how many.
    fn end_evicted(&self) -> usize {
        let pods = self.plane.all("pods");
        let ending = pods.iter().filter(|pod| is_ending(pod));
        let names = ending.filter_map(|pod| pod["metadata"]["name"].as_str());
        let names: Vec<&str> = names.collect();
        if !names.is_empty() {
            let delete = ["delete", "pod", "--force", "--grace-period=0"];
            let _ = self.plane.kubectl(&[&delete[..], &names].concat());
        }
        names.len()
    }
}

#[test]
fn a_reclaim_on_a_slow_api_server_evicts_as_many_as_it_needs() {
    const CARDS: usize = 6;
    let mut cluster = Cluster::bare();
    let distance = LatencyProxy::before(&mut cluster);
    for node in ["node-1", "node-2"] {
        cluster.add_node(node, &apportion_tests::cards(CARDS / 2));
    }
    let half = i64::try_from(CARDS / 2).expect("it is small");
    let mut queues = [queue("borrower", half), queue("lender", half)];
    for queue in &mut queues {
        queue["spec"]["resources"]["gpu"]["limit"] = json!(-1);
    }
    cluster.plane.apply(&queues);
    cluster.start_scheduler();
    let name = |queue: &str, number: usize| whole(&format!("{queue}-{number}"), queue);
    let all: Vec<Value> = (0..CARDS).map(|number| name("borrower", number)).collect();
    cluster.plane.apply(&all);
    cluster.bound(CARDS);
    distance.set(Duration::from_millis(600));
    let mut evicted = 0;
    // They arrive one by one, while the victims of earlier ones end.
    for number in 0..CARDS / 2 {
        cluster.plane.apply(&[name("lender", number)]);
        evicted += cluster.end_evicted();
    }
    let deadline = Instant::now() + PATIENCE * 2;
    loop {
        evicted += cluster.end_evicted();
        let bound = placed(&cluster.plane.all("pods"));
        if bound
            .keys()
            .filter(|name| name.starts_with("lender"))
            .count()
            == CARDS / 2
        {
            break;
        }
        assert!(Instant::now() < deadline, "{bound:?}: {}", cluster.said());
    }
    // Needless evictions would show now.
    distance.set(Duration::ZERO);
    thread::sleep(Duration::from_secs(3));
    evicted += cluster.end_evicted();
    assert_eq!(evicted, CARDS / 2, "{}", cluster.said());
    assert_eq!(placed(&cluster.plane.all("pods")).len(), CARDS);
}

#[test]
fn slow_answers_and_silence_take_the_lease_from_nobody() {
    let mut cluster = Cluster::bare();
    let distance = LatencyProxy::before(&mut cluster);
    cluster.add_node("node-1", &apportion_tests::cards(3));
    cluster.start_scheduler();
    cluster.plane.apply(&[whole("quick", "default-queue")]);
    cluster.bound(1);
    // A round trip that is longer than the lease with a quick API server.
    distance.set(Duration::from_millis(1200));
    cluster.plane.apply(&[whole("slow", "default-queue")]);
    cluster.bound(2);
    // Longer than any lease.
    distance.set(Duration::from_secs(600));
    let silent = Instant::now();
    while silent.elapsed() < Duration::from_secs(25) {
        assert!(cluster.is_running(), "{}", cluster.said());
        thread::sleep(Duration::from_millis(200));
    }
    assert!(
        cluster.whole_log().contains("Scheduling paused"),
        "{}",
        cluster.said()
    );
    cluster.plane.apply(&[whole("later", "default-queue")]);
    distance.set(Duration::ZERO);
    cluster.bound(3);
    assert!(cluster.is_running(), "{}", cluster.said());
    let led = cluster
        .whole_log()
        .matches("Scheduler became leader")
        .count();
    assert_eq!(led, 1, "{}", cluster.said());
}
