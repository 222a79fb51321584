//! Code images as a program passes them to the driver: cubins, bundles with LZ4, PTX.
#![no_main]

use apportion_gate::image::{BUNDLE, CUBIN, ImageFootprint, bundle, cubin, text};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let read = |at: u64, into: &mut [u8]| {
        let start = usize::try_from(at).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(into.len())?));
        let found = range.and_then(|range| data.get(range));
        found.map(|found| into.copy_from_slice(found)).is_some()
    };
    let first: Option<&[u8; 4]> = data.first_chunk();
    let found: Option<ImageFootprint> = first.and_then(|word| match u32::from_le_bytes(*word) {
        CUBIN => cubin(&read),
        BUNDLE => bundle(&read),
        _ => Some(text(data)),
    });
    if let Some(found) = found {
        // Sizes are whole driver blocks, or saturated.
        let is_whole = |bytes: u64| bytes.is_multiple_of(256) || bytes == u64::MAX;
        assert!(found.is_bundled || is_whole(found.variables) && is_whole(found.code));
    }
});
