//! Prints what the program inside `docs/lab/index.html` must print too.

fn main() {
    println!("{:016x}", lab::digest());
}
