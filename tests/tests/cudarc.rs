//! cudarc as a client of the simulated driver, with the whole card and with a limit.

use apportion_tests::{CARD, CommandOutput, MIB, TestHost, built};

#[test]
fn cudarc_sees_the_card_and_under_a_limit_a_smaller_one() {
    let host = TestHost::new();
    let total = (CARD / MIB).to_string();
    let mut free = host.unlimited(built("client-cudarc"));
    let said = CommandOutput::by(free.args(["--expect-total", &total])).well();
    assert!(said.out.starts_with("OK cudarc"), "{said:?}");

    let mut limited = host.limited(&["--gpu-memory", "2000"], built("client-cudarc"));
    let said = CommandOutput::by(limited.args(["--expect-total", "2000"])).well();
    assert!(said.out.starts_with("OK cudarc"), "{said:?}");
    assert_eq!(said.err, "");
}
