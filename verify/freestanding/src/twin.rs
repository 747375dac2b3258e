//! A program with a path to a panic in it and nothing else: a search for such paths must find this one.
#![no_std]
#![no_main]

#[allow(dead_code)]
mod runtime;

use core::hint::black_box;

fn run() -> i32 {
    let numbers = [0, 1];
    numbers[black_box(2)]
}
