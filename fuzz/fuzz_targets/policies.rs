#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (tests::fuzz::target("policies").expect("it is in the list").read)(bytes));
