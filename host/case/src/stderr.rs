//! Lines for people on stderr; a closed one is no error.

use crate::error::one_line;
use anstyle::AnsiColor;
use core::sync::atomic::{AtomicBool, Ordering};
use std::io::Write;

/// A word in a colour, which stays on its way to what is no terminal.
pub fn styled(colour: AnsiColor, word: &str) -> String {
    let style = colour.on_default().bold();
    format!("{style}{word}{style:#}")
}

/// An error's line on stderr, printable already; a closed stderr is no error.
pub fn complain(line: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{}: {line}", styled(AnsiColor::Red, "error"));
}

/// Whether the user wants errors alone.
static ARE_NOTES_SILENT: AtomicBool = AtomicBool::new(false);

/// Prints no more notes.
pub fn silence_notes() {
    ARE_NOTES_SILENT.store(true, Ordering::Relaxed);
}

/// A line for people on stderr, whatever names it has in it.
pub fn note(line: &str) {
    if ARE_NOTES_SILENT.load(Ordering::Relaxed) {
        return;
    }
    let _ = writeln!(std::io::stderr().lock(), "{}", one_line(line));
}
