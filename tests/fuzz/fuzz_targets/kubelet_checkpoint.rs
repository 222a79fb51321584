//! The kubelet's checkpoint, which records which container has which device.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The agent is a program without a library, so its file is compiled here again.
#[allow(dead_code, reason = "the agent reads files, too")]
#[path = "../../../node-agent/src/kubelet/checkpoint.rs"]
mod checkpoint;

fuzz_target!(|data: &[u8]| {
    let Ok(record) = checkpoint::parse(data) else {
        return;
    };
    for entry in &record.entries {
        let devices: Vec<&str> = entry.devices().collect();
        assert!(devices.iter().map(|id| id.len()).sum::<usize>() <= data.len());
    }
    assert_eq!(checkpoint::parse(data).ok().as_ref(), Some(&record));
});
