//! The messages on the wire, generated from `proto/nri.proto`.
//!
//! The generated code is committed, so a build needs no protobuf compiler. A test regenerates and compares it. Only
//! the fields in use are listed; other fields of newer runtimes are skipped.

#![expect(
    missing_docs,
    reason = "generated; what can be documented is documented in the contract's file"
)]

include!("gen/apportion.nri.rs");
