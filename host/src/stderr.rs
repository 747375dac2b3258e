//! Lines for people on stderr; a closed one is no error.

use crate::error::one_line;
use anstyle::AnsiColor;
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

/// A line for people on stderr, whatever names it has in it.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", one_line(line));
}
