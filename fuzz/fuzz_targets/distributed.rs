#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tcast_fuzz::distributed(bytes));
