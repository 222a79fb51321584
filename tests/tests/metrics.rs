//! Every metric of the reference is served and moves.

use apportion_reference::{folder, part};
use apportion_tests::{CARD, CONTEXT, MIB, PATIENCE, TestHost, cards, eventually};

/// The names of the agent's metrics in the reference.
fn named() -> Vec<String> {
    let page = std::fs::read_to_string(folder().join("metrics.md")).expect("the page is there");
    let rows = part(&page, "agent").expect("the page has the agent's metrics");
    let rows = rows.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_metric_of_the_reference_is_served_and_no_other() {
    let host = TestHost::new();
    let _agent = host.agent(&[]);
    let _victim = host.victim(&["--gpu-memory", "2000"]).step("start");
    let mut victim = host.victim(&["--gpu-memory", "2000"]);
    victim.step("alloc 1M").ok();
    eventually(PATIENCE, "it is known who takes the card's time", || {
        let parts = host.metric("apportion_container_utilisation_ratio", &[]);
        parts.is_some()
    });
    let text = host.http("/metrics");
    let mut served: Vec<String> = text
        .lines()
        .filter(|line| line.starts_with("apportion_"))
        .filter_map(|line| line.split(['{', ' ']).next())
        .map(str::to_owned)
        .collect();
    served.sort();
    served.dedup();
    let mut named = named();
    // Without a container runtime, a kubelet, failing cards, elastic shares and suspended programs, these are missing
    // here. Other suites test them.
    let parts = [
        "_nri_",
        "_cdi_",
        "_errors_",
        "_kubelet_",
        "_slots",
        "_prestart_",
        "_identity_",
        "_suspension_duration_",
        "_guarantee_call_duration_",
        "_idle_wake_duration_",
        "_burst_",
    ];
    named.retain(|name| !parts.iter().any(|part| name.contains(part)));
    named.sort();
    assert_eq!(served, named);
}

#[test]
fn a_card_and_an_allocation_show_in_their_metrics() {
    let host = TestHost::with(&cards(2));
    let _agent = host.agent(&["--tick", "50"]);
    let uuid = host.card(0).uuid;
    let card = |name: &str| host.metric(&format!("apportion_gpu_{name}"), &[&uuid]);
    let mib = |mib: u64| Some((mib * MIB) as f64);
    assert_eq!(card("memory_total_bytes"), Some(host.card(0).total as f64));
    assert_eq!(card("memory_allocatable_bytes"), Some(CARD as f64));
    assert_eq!(
        card("memory_reserved_bytes"),
        Some(host.card(0).reserved as f64)
    );
    assert_eq!(card("memory_free_bytes"), Some(CARD as f64));
    assert_eq!(card("memory_granted_bytes"), Some(0.0));
    assert_eq!(card("healthy"), Some(1.0));

    let mut victim = host.victim(&["--gpu-memory", "2000", "--name", "shown", "--gpu", &uuid]);
    victim.step("alloc 500M").ok();
    victim.step("alloc 3000M").refused();
    victim.step("alloc 3000M").refused();
    // The kernel's code is charged. The memory that the driver takes besides is not.
    victim.step("launch 16M").ok();
    let hidden = host.used() - 502 * MIB - CONTEXT;
    let held = Some(host.used() as f64);
    let metric = |name: &str, more: &str| {
        let name = format!("apportion_container_{name}");
        host.metric(&name, &["container=\"shown/", more])
    };
    eventually(PATIENCE, "the sample is taken", || {
        metric("memory_overhead_bytes", "") == Some(hidden as f64)
            && card("memory_used_bytes") == held
    });
    assert_eq!(card("memory_granted_bytes"), mib(2000));
    assert_eq!(card("memory_free_bytes"), mib(8000));
    assert_eq!(card("context_reserve_bytes"), Some(CONTEXT as f64));
    assert_eq!(metric("memory_limit_bytes", ""), mib(2000));
    assert_eq!(metric("memory_used_bytes", "source=\"account\""), held);
    assert_eq!(metric("memory_used_bytes", "source=\"nvml\""), held);
    assert_eq!(metric("memory_context_bytes", ""), Some(CONTEXT as f64));
    assert_eq!(metric("memory_peak_bytes", ""), held);
    assert_eq!(metric("memory_denied_total", "api=\"alloc\""), Some(2.0));
    assert_eq!(metric("memory_denied_total", "api=\"other\""), Some(0.0));
    let code = metric("memory_module_bytes", "").unwrap_or_default();
    assert_eq!(Some(code), mib(2));
    assert_eq!(metric("memory_buffer_bytes", ""), mib(500));
    assert_eq!(metric("memory_denied_bytes_total", ""), mib(6000));
    assert_eq!(metric("processes", ""), Some(1.0));
    assert_eq!(metric("enforcement_state", "state=\"attached\""), Some(1.0));
    assert_eq!(metric("enforcement_state", "state=\"bypassed\""), Some(0.0));

    assert!(victim.end().success());
    eventually(PATIENCE, "its series end", || {
        metric("memory_limit_bytes", "").is_none()
    });
    eventually(PATIENCE, "the card is free", || {
        card("memory_used_bytes") == Some(0.0)
    });
}

#[test]
fn requests_and_the_age_of_the_sample_show() {
    let host = TestHost::new();
    let agent = host.agent(&["--tick", "50"]);
    let mut victim = host.victim(&["--gpu-memory", "6000", "--name", "held"]);
    victim.step("start").ok();
    let generation = host.metric("apportion_ledger_generation", &[]);
    host.run(&["--gpu-memory", "6000"], &["true"])
        .fails_in_one_line(1);
    assert!(
        host.run(&["--gpu-memory", "600"], &["true"])
            .status
            .success()
    );
    eventually(PATIENCE, "both were accepted", || {
        host.metric("apportion_grants_total", &["accepted"]) == Some(2.0)
    });
    assert!(host.metric("apportion_ledger_generation", &[]) > generation);
    assert!(
        host.metric("apportion_snapshot_age_seconds", &[])
            .is_some_and(|age| age < 5.0)
    );
    let info = host.metric(
        "apportion_node_info",
        &["simulated=\"true\"", "driver=\"580"],
    );
    assert_eq!(info, Some(1.0));
    assert_eq!(host.metric("apportion_adopted_grants", &[]), Some(0.0));

    agent.kill();
    let _agent = host.agent(&["--tick", "50"]);
    eventually(PATIENCE, "the account was adopted", || {
        host.metric("apportion_adopted_grants", &[]) == Some(1.0)
    });
}

#[test]
fn health_and_readiness_are_served() {
    let host = TestHost::new();
    let _agent = host.agent(&[]);
    for path in ["/healthz", "/readyz", "/metrics"] {
        eventually(PATIENCE, path, || {
            host.http(path).starts_with("HTTP/1.1 200")
        });
    }
    assert!(host.http("/elsewhere").starts_with("HTTP/1.1 404"));
}
