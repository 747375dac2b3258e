#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = veriep_fuzz::shape_layout::run(bytes);
});
