//! Compares two runs, such as one on the simulation and one on a card.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::record::FactRecord;

/// Lists every fact that differs in `file`, the record of another run.
pub(crate) fn differences(records: &[FactRecord], file: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("failed to read {}: {error}", file.display()))?;
    let there: BTreeMap<(String, String), Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<FactRecord>(line).ok())
        .map(|record| ((record.case, record.fact), record.seen))
        .collect();
    for record in records {
        let key = (record.case.clone(), record.fact.clone());
        match there.get(&key) {
            Some(seen) if *seen == record.seen => {}
            Some(seen) => eprintln!(
                "differs: {}: {}: {} here, {seen} there",
                record.case, record.fact, record.seen
            ),
            None => eprintln!("differs: {}: {}: only here", record.case, record.fact),
        }
    }
    Ok(())
}
