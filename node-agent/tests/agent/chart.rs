//! The chart uses only options that the agent has: an unknown one would end the agent at once.

use std::path::Path;
use std::process::Command;

#[test]
fn every_option_of_the_chart_is_one_of_the_agent() {
    let help = Command::new(env!("CARGO_BIN_EXE_apportion-agent"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let chart = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/chart/apportion/templates/daemonset.yaml");
    let text = std::fs::read_to_string(chart).unwrap();
    let agent = text.split("- name: agent").nth(1).unwrap();
    let lines = agent.lines().map(str::trim);
    let options: Vec<_> = lines
        .filter_map(|line| line.strip_prefix("- --"))
        .filter_map(|option| option.split('=').next())
        .collect();
    assert!(options.len() > 5, "{options:?}");
    for option in options {
        assert!(help.contains(&format!("  --{option}")), "no --{option}");
    }
}
