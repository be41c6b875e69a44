#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (tests::fuzz::target("xds").expect("it is in the list").read)(bytes));
