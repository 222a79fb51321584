//! Amounts as people write them: Kubernetes quantities, shares, memory, durations, GPU UUIDs.
#![no_main]

use apportion_abi::units::parse_memory;
use apportion_abi::{CardUuid, GpuFraction, GpuRequest};
use apportion_kubernetes::{Quantity, parse_duration, show_duration};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(read) = text.parse::<Quantity>() {
        assert_eq!(read.to_string().parse(), Ok(read), "printed and read back");
        for times in [0, 1, 3, u64::MAX] {
            let product = read.times(times);
            assert_eq!(product.to_string().parse(), Ok(product));
        }
        let _ = read.whole();
    }
    if let Ok(fraction) = text.parse::<GpuFraction>() {
        assert!((1..1_000_000_000).contains(&fraction.parts_per_billion()));
        assert_eq!(fraction.to_string().parse(), Ok(fraction));
    }
    if let Some(bytes) = parse_memory(text) {
        assert!(bytes.0 > 0);
    }
    if let Some(duration) = parse_duration(text) {
        assert_eq!(parse_duration(&show_duration(duration)), Some(duration));
    }
    if let Ok(card) = text.parse::<CardUuid>() {
        assert_eq!(card.to_string().parse(), Ok(card));
    }
    let [memory, fraction, devices] = {
        let mut lines = text
            .splitn(3, '\n')
            .map(|line| Some(line).filter(|line| !line.is_empty()));
        [(); 3].map(|()| lines.next().flatten())
    };
    let _ = GpuRequest::parse(memory, fraction, devices);
});
