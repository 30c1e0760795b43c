#![no_main]

#[allow(dead_code, reason = "each target has one of the entries")]
#[path = "../entry.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entry::packet(bytes));
