#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (tests::fuzz::target("mesh").expect("it is in the list").read)(bytes));
