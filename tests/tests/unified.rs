//! A card without memory of its own, which uses the machine's. The driver does not report its size and, on some, not
//! the use of each process. The size is configured, and limits hold.

use apportion_tests::{CONTEXT, MIB, PATIENCE, TestHost, cards, eventually};

const SIZE: u64 = 4000;

/// A machine with such a card.
fn host(process_memory: bool) -> TestHost {
    let mut config = cards(1);
    config.cards[0].memory_info = false;
    config.cards[0].process_memory = process_memory;
    config.cards[0].model = "NVIDIA GB10".to_owned();
    TestHost::with(&config)
}

fn agent(host: &TestHost) -> apportion_tests::AgentProcess {
    let size = format!("NVIDIA GB10={SIZE}");
    host.agent(&["--tick", "50", "--card-memory", &size])
}

#[test]
fn no_share_is_given_of_a_card_whose_size_nobody_knows() {
    let host = host(true);
    let _agent = host.agent(&[]);
    for share in [["--gpu-memory", "1000"], ["--gpu-fraction", "0.5"]] {
        let said = host.run(&share, &["true"]);
        assert!(!said.status.success());
        let sentence = "(NVIDIA GB10) does not report its memory size, so it cannot be shared";
        assert!(said.err.contains(sentence), "{}", said.err);
        assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    }
}

#[test]
fn the_doctor_says_what_to_set_for_such_a_card() {
    let host = host(true);
    let said = apportion_tests::CommandOutput::by(&mut host.simulated("doctor"));
    let all = format!("{}{}", said.out, said.err);
    let total = apportion_tests::CARD / MIB;
    let todo = format!(
        "card memory: start the agent with --card-memory 'NVIDIA GB10=MIB' (chart: cardMemory), where MIB is at most \
         {total}"
    );
    assert!(all.contains(&todo), "{all}");
    let other = TestHost::new();
    let said = apportion_tests::CommandOutput::by(&mut other.simulated("doctor"));
    assert!(!said.out.contains("card memory"), "{}", said.out);
}

#[test]
fn a_limit_holds_on_a_card_of_a_size_that_was_set() {
    let host = host(true);
    let _agent = agent(&host);
    let uuid = host.card(0).uuid;
    let card = |name: &str| host.metric(&format!("apportion_gpu_memory_{name}_bytes"), &[&uuid]);
    assert_eq!(card("allocatable"), Some((SIZE * MIB) as f64));
    let mut victim = host.victim(&["--gpu-fraction", "0.5"]);
    victim
        .step(&format!("alloc {}", SIZE / 2 * MIB - CONTEXT))
        .ok();
    victim.step("alloc 1").refused();
    eventually(PATIENCE, "what is used is what processes use", || {
        card("used") == Some((SIZE / 2 * MIB) as f64)
    });
    assert_eq!(host.metric("apportion_reconcile_drift_bytes", &[]), None);
    // Memory of unmanaged processes cannot be given out.
    let mut free = host.free_victim();
    free.step("alloc 500M").ok();
    eventually(PATIENCE, "unmanaged memory is taken off", || {
        card("free") == Some(((SIZE / 2 - 500) * MIB - CONTEXT) as f64)
    });
    drop(free);
    eventually(PATIENCE, "and comes back", || {
        card("free") == Some((SIZE / 2 * MIB) as f64)
    });
}

#[test]
fn a_limit_holds_where_nobody_says_who_uses_what() {
    let host = host(false);
    let _agent = agent(&host);
    let mut victim = host.victim(&["--gpu-memory", "2000"]);
    victim.step("alloc 1000M").ok();
    victim.step("alloc 1000M").refused();
    let state = |word: &str| {
        let label = format!("state=\"{word}\"");
        host.metric("apportion_container_enforcement_state", &[&label])
    };
    eventually(PATIENCE, "its limit is kept", || {
        state("attached") == Some(1.0)
    });
    assert_eq!(state("bypassed"), Some(0.0));
    let unmanaged = host.metric("apportion_gpu_memory_unmanaged_bytes", &[]);
    assert_eq!(unmanaged, Some(0.0));
}
