#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (tests::fuzz::target("tokens").expect("it is in the list").read)(bytes));
