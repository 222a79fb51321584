//! Object files that `apportion-scheduler simulate` reads.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../../scheduler-shim/src/simulate/read/documents.rs"]
mod documents;
#[path = "../../../scheduler-shim/src/simulate/read/nesting.rs"]
mod nesting;

fuzz_target!(|text: &str| {
    let read = documents::unchecked(text);
    if nesting::is_too_deep(text) {
        assert!(read.is_err(), "it is refused, and was readable");
    }
    if let Ok(documents) = documents::documents(text) {
        let mut objects = Vec::new();
        for document in documents {
            documents::flatten(document, &mut objects);
        }
    }
});
