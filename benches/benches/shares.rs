//! A simulated GPU with shares of 1 and of 64 processes.

use apportion_tests::{MIB, PATIENCE, TestHost, VictimProcess, cards, eventually};

/// A host with one GPU, on which the contexts of 64 processes fit.
pub(crate) fn host() -> TestHost {
    let mut config = cards(1);
    for card in &mut config.cards {
        card.context_bytes = 20 * MIB;
    }
    TestHost::with(&config)
}

/// A share of so many processes, which hold `each` MiB. `sizes` are options of `apportion run`.
pub(crate) fn share(
    host: &TestHost,
    name: &str,
    sizes: &[&str],
    processes: usize,
    each: usize,
) -> VictimProcess {
    let mut parent = host.victim(&[sizes, &["--name", name]].concat());
    for _ in 1..processes {
        parent.step(&format!("spawn start alloc {each}M")).ok();
    }
    parent.step(&format!("alloc {each}M")).ok();
    eventually(PATIENCE, "the agent knows all processes", || {
        let top = host.top();
        let mut all = top["allocations"].as_array().into_iter().flatten();
        let own = all.find(|allocation| allocation["name"] == name);
        own.and_then(|own| own["processes"].as_array())
            .is_some_and(|all| all.len() == processes)
    });
    parent
}
