//! The messages on the wire, generated from `proto/nri.proto`.
//!
//! The generated code is committed, so that building needs no protobuf compiler; a test regenerates it
//! and compares. Only the fields that are used are listed: whatever a newer runtime adds is skipped.

#![expect(
    missing_docs,
    reason = "generated; what can be documented is documented in the contract's file"
)]

include!("gen/apportion.nri.rs");
