//! Times that sources measured, over those that `simulate` predicts.

use super::keep;
use super::sheet::{Anchor, Sheet};
use crate::simulate_measured::lines_of_the_page;

/// A line of the table on the page about `simulate`.
struct Measured {
    group: String,
    is_dispatch: bool,
    /// In hundredths: measured over predicted.
    ratio: usize,
    is_fitted: bool,
}

fn measured(line: &str) -> Option<Measured> {
    let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [source, ranks, tokens, operator, _, _, ratio, time] = cells[..] else {
        panic!("eight cells: {line}");
    };
    // Not the head of the table and the line below it.
    let ratio: f64 = ratio.parse().ok()?;
    Some(Measured {
        group: format!("{source} {ranks}×{tokens}"),
        is_dispatch: operator == "dispatch",
        ratio: (100.0 * ratio).round() as usize,
        is_fitted: time.starts_with("calibrated"),
    })
}

#[test]
fn measured_times_are_drawn_over_predicted_ones() {
    const LEFT: usize = 280;
    const PIXELS: usize = 3;
    let page = lines_of_the_page();
    let times: Vec<_> = page.lines().filter_map(measured).collect();
    let mut sheet = Sheet::new();
    let x = |ratio: usize| LEFT + PIXELS * ratio;
    let bottom = 66 + times.len() / 2 * 42;
    sheet.words([LEFT, 24], Anchor::Start, "h", "measured / predicted");
    sheet.words([20, 24], Anchor::Start, "h", "ranks×tokens");
    for (number, pair) in times.chunks(2).enumerate() {
        assert_eq!([pair[0].is_dispatch, pair[1].is_dispatch], [true, false], "{}", pair[0].group);
        assert_eq!(pair[0].group, pair[1].group);
        let top = 56 + number * 42;
        sheet.words([20, top + 22], Anchor::Start, "", &pair[0].group);
        for (y, time) in [top, top + 17].into_iter().zip(pair) {
            let class = match (time.is_fitted, time.is_dispatch) {
                (true, _) => "y",
                (false, true) => "d",
                (false, false) => "g",
            };
            sheet.rect([LEFT, y], [x(time.ratio) - LEFT, 15], class);
            sheet.plain([LEFT + 6, y + 12], Anchor::Start, "", &format!("{:.2}", time.ratio as f64 / 100.0));
        }
    }
    sheet.path(format!("M{0} 50L{0} {bottom}", x(100)), "z");
    sheet.label([x(100), 44], Anchor::Middle, "", "1.00");
    for (left, class, words) in
        [(LEFT, "d", "dispatch"), (LEFT + 100, "g", "combine"), (LEFT + 200, "y", "fitted")]
    {
        sheet.rect([left, bottom + 8], [14, 14], class);
        sheet.words([left + 20, bottom + 20], Anchor::Start, "", words);
    }
    let ratios = || times.iter().filter(|time| !time.is_fitted).map(|time| time.ratio as f64 / 100.0);
    let (least, most) = (ratios().fold(f64::MAX, f64::min), ratios().fold(0.0, f64::max));
    let label = format!(
        "Where nothing was fitted, operators took {least:.2} to {most:.2} times as long as predicted"
    );
    keep("predicted", &sheet.finish_for_all([x(130), bottom + 36], &label));
}
