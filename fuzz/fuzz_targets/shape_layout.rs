#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = fuzz_harness::shape_layout::run(bytes);
});
