//! `fuzzchecks::image_layers` on inputs of the fuzzer.
//!
//! Invariant: none beyond those of the check.
//! Failure: the fuzzer keeps the input in `artifacts`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzchecks::image_layers(input));
