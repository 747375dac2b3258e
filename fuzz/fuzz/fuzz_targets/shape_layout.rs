#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = fuzz::shape_layout::run(bytes);
});
