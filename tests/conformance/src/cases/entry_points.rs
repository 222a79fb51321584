//! Every entry point of CUDA's headers, looked up by `cuGetProcAddress`.
//!
//! The hooks replace functions by the pointer that the driver returns. They recognize it only if it is the address of
//! an exported symbol, which no document promises. This case counts how often it is.

use crate::library::Cuda;
use crate::record::{CaseError, CaseReport};
use crate::session::{must, start_without_card};

use super::driver_lookup::ask;

const LIST: &str = include_str!("entry_points.txt");
const VERSIONS: [&str; 5] = ["", "_v2", "_v3", "_v4", "_v5"];
const STREAMS: [&str; 3] = ["", "_ptsz", "_ptds"];

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let cuda = Cuda::open()?;
    start_without_card(report, &cuda)?;
    let mut newest = 0;
    must("cuDriverGetVersion", cuda.driver_version(Some(&mut newest)))?;
    let (mut asked, mut found) = (0, 0);
    let (mut hidden, mut unsaid) = (Vec::new(), Vec::new());
    for (name, version, flags) in LIST.lines().filter_map(row) {
        if version > newest {
            continue;
        }
        asked += 1;
        let answer = ask(&cuda, name, version, flags);
        let label = format!("{name} {version} {flags}");
        if !answer.is_found() {
            if answer.status == Some(0) {
                unsaid.push(label);
            }
            continue;
        }
        found += 1;
        if answer.status.is_some_and(|status| status != 0) {
            unsaid.push(label.clone());
        }
        if !is_exported(&cuda, name, answer.address) {
            hidden.push(label);
        }
    }
    report.holds("the status says what was found", unsaid.is_empty(), unsaid);
    report.observed("entry points asked for", asked);
    report.observed("entry points found", found);
    report.observed("found at an address that is no export of that name", hidden);
    Ok(())
}

fn row(line: &str) -> Option<(&str, i32, u64)> {
    let mut words = line.split(' ');
    let name = words.next().filter(|name| name.starts_with("cu"))?;
    let version = words.next()?.parse().ok()?;
    Some((name, version, words.next()?.parse().ok()?))
}

fn is_exported(cuda: &Cuda, name: &str, address: usize) -> bool {
    let symbols = VERSIONS
        .iter()
        .flat_map(|version| STREAMS.map(|stream| format!("{name}{version}{stream}")));
    symbols
        .into_iter()
        .any(|symbol| cuda.address(&symbol) == Some(address))
}
