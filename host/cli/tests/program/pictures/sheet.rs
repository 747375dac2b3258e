//! Lines, boxes and words of an SVG.

use core::fmt::{Display, Write};

const STYLE: &str = "text{font:12px sans-serif;fill:#222}.h{font-weight:bold;font-size:13px}.q{fill:#777}\
.m{fill:#f4f4f4;stroke:#bbb}.d{fill:#cfe3f7;stroke:#4a86c0}.g{fill:#fbe2b8;stroke:#c98a1b}path{fill:none}\
.l{stroke:#ccc;stroke-width:2}.a{stroke:#4a86c0;stroke-width:1.6;marker-end:url(#a)}\
.f{stroke:#c98a1b;stroke-width:1.6;marker-end:url(#f)}.c{stroke:#999;stroke-width:1.6;marker-end:url(#c)}\
.o{fill:#e4e4e4;stroke:#888}.b{fill:#fbd5d5;stroke:#c62828}.k{fill:#fff}.r{fill:#b71c1c;font-weight:bold}.v{fill:#1b5e20}.p{fill:#d7ecd9;stroke:#2e7d32}.x{fill:#fff;stroke:#777;stroke-dasharray:5 4}.y{fill:#e4e4e4;stroke:#888}.z{stroke:#222;stroke-width:1.5}\
.w{stroke:#c62828;stroke-width:3;marker-end:url(#w)}.s{stroke:#2e7d32;stroke-width:2;marker-end:url(#s)}";

/// Which end of a text its place is.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
}

/// The most words that a picture for first readers has.
const WORDS_MAX: usize = 40;

/// A drawing that grows.
pub(super) struct Sheet {
    body: String,
    /// The words that [`Sheet::words`] wrote.
    words: usize,
}

impl Sheet {
    pub(super) const fn new() -> Self {
        Self { body: String::new(), words: 0 }
    }

    /// A text on a plain ground.
    pub(super) fn words(&mut self, place: [usize; 2], anchor: Anchor, class: &str, words: impl Display) {
        let words = words.to_string();
        self.words += words.split_whitespace().count();
        self.plain(place, anchor, class, &words);
    }

    /// A text on lines, with a white rectangle of its own.
    pub(super) fn label(&mut self, [x, y]: [usize; 2], anchor: Anchor, class: &str, words: impl Display) {
        let words = words.to_string();
        let width = words.chars().count() * 13 / 2 + 6;
        let left = match anchor {
            Anchor::Start => x - 3,
            Anchor::Middle => x - width / 2,
        };
        self.rect([left, y - 12], [width, 16], "k");
        self.words([x, y], anchor, class, words);
    }

    /// A sign, or a number: not a word.
    pub(super) fn plain(&mut self, [x, y]: [usize; 2], anchor: Anchor, class: &str, words: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
        };
        let words = words.replace('&', "&amp;").replace('<', "&lt;");
        writeln!(
            self.body,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" class=\"{class}\">{words}</text>"
        )
        .unwrap();
    }

    pub(super) fn rect(&mut self, [x, y]: [usize; 2], [width, height]: [usize; 2], class: &str) {
        writeln!(
            self.body,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"3\" class=\"{class}\"/>"
        )
        .unwrap();
    }

    pub(super) fn path(&mut self, points: impl Display, class: &str) {
        writeln!(self.body, "<path d=\"{points}\" class=\"{class}\"/>").unwrap();
    }

    /// A picture for readers who meet the project first: it has few words.
    pub(super) fn finish_for_all(self, size: [usize; 2], label: &str) -> String {
        assert!(self.words <= WORDS_MAX, "{} words: {label}", self.words);
        self.finish(size, label)
    }

    pub(super) fn finish(self, [width, height]: [usize; 2], label: &str) -> String {
        let markers = [("a", "#4a86c0"), ("f", "#c98a1b"), ("c", "#999"), ("w", "#c62828"), ("s", "#2e7d32")].map(|(id, colour)| {
            format!(
                "<marker id=\"{id}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" \
                 orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" style=\"fill:{colour}\"/></marker>"
            )
        });
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" aria-label=\"{label}\"><style>{STYLE}</style><defs>{}</defs>\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n{}</svg>\n",
            markers.concat(),
            self.body
        )
    }
}

/// What happens in one line of a sequence, from lane to lane; in one lane it is only said.
pub(super) struct Line {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Of an arrow: `a` rows, `f` flags, `c` what is read or cleared.
    pub(super) class: &'static str,
    pub(super) words: String,
}

/// Draws events one below the other; every lane has a name, and those that are memory are boxes.
pub(super) fn sequence(label: &str, lanes: &[(&str, bool)], lines: &[Line]) -> String {
    const WIDTH: usize = 190;
    let mut sheet = Sheet::new();
    let x = |lane: usize| WIDTH / 2 + lane * WIDTH;
    let bottom = 60 + lines.len() * 30;
    for (lane, (name, is_memory)) in lanes.iter().enumerate() {
        sheet.words([x(lane), 24], Anchor::Middle, "h", name);
        if *is_memory {
            sheet.rect([x(lane) - 40, 40], [80, bottom - 40], "m");
        } else {
            sheet.path(format!("M{0} 40L{0} {bottom}", x(lane)), "l");
        }
    }
    for (row, line) in lines.iter().enumerate() {
        let y = 70 + row * 30;
        if line.from == line.to {
            sheet.label([x(line.from), y + 4], Anchor::Middle, "", &line.words);
            continue;
        }
        sheet.path(format!("M{} {y}L{} {y}", x(line.from), x(line.to)), line.class);
        // Over the first gap on the way, where no other lane crosses the words.
        let next = if line.from < line.to { line.from + 1 } else { line.from - 1 };
        let middle = x(line.from).midpoint(x(next));
        sheet.words([middle, y - 5], Anchor::Middle, "", &line.words);
    }
    sheet.finish([lanes.len() * WIDTH, bottom + 20], label)
}
