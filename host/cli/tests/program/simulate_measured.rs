//! `simulate` beside public measurements: the table of `docs/operate/simulate.md`, and the bias that reports tell.
//!
//! `SNAPSHOTS=overwrite` writes the lines of the table whose times were simulated.

use crate::simulate::{simulate, slowest_of};
use std::fs;
use std::sync::{Mutex, PoisonError};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/simulate.md");
const FROM: &str = "<!-- measured: made of simulations, SNAPSHOTS=overwrite writes them -->\n";
const TO: &str = "<!-- end of measured -->\n";

/// What a source says of one size, and which costs of the cluster were fitted to its times.
struct Row {
    source: &'static str,
    product: Product,
    ranks: u32,
    tokens: u32,
    /// By operator, in microseconds.
    measured: [f64; 2],
    fitted: [Option<&'static str>; 2],
}

#[derive(Clone, Copy, PartialEq)]
enum Product {
    A2,
    A3,
}

const fn predicted(source: &'static str, ranks: u32, tokens: u32, measured: [f64; 2]) -> Row {
    Row { source, product: Product::A3, ranks, tokens, measured, fitted: [None; 2] }
}

const ROWS: [Row; 8] = [
    Row {
        fitted: [Some("quant_gbs"), Some("vector_gbs")],
        ..predicted("DeepEP-Ascend", 8, 128, [132.0, 126.0])
    },
    predicted("DeepEP-Ascend", 16, 128, [139.0, 135.0]),
    predicted("DeepEP-Ascend", 32, 128, [153.0, 151.0]),
    predicted("CloudMatrix384", 8, 128, [116.0, 118.0]),
    predicted("CloudMatrix384", 256, 128, [152.0, 149.0]),
    Row { fitted: [Some("start_ns"), None], ..predicted("XCCL", 128, 4, [20.0, 25.0]) },
    predicted("XCCL", 128, 128, [100.0, 120.0]),
    Row { product: Product::A2, ..predicted("DeepEP-Ascend on A2, full mesh", 16, 256, [865.0, 1305.0]) },
];

/// A time of a row.
struct Time<'r> {
    row: &'r Row,
    operator: usize,
    predicted: f64,
}

impl Row {
    fn times(&self) -> [Time<'_>; 2] {
        let (preset, cluster) = match self.product {
            Product::A2 => ("a2-64", "a2"),
            Product::A3 => ("deepseek-v3-decode", "a3"),
        };
        let Self { ranks, tokens, .. } = self;
        let said = simulate(&format!(
            "--preset {preset} --cluster {cluster} --set ep_world_size={ranks} --set bs={tokens} --set moe_expert_num=256 \
             --set h=7168 --set k=8 --set quant_mode=2 --set aiv_num=48 --set hccl_buffsize_mb=8000 --rows timing"
        ));
        let predicted = slowest_of(&said);
        [0, 1].map(|operator| Time { row: self, operator, predicted: predicted[operator] })
    }
}

impl Time<'_> {
    fn ratio(&self) -> f64 {
        self.row.measured[self.operator] / self.predicted
    }

    fn fitted(&self) -> Option<&'static str> {
        self.row.fitted[self.operator]
    }

    /// What a line of the table begins with, which tells it from all others.
    fn begin(&self) -> String {
        let Row { source, ranks, tokens, .. } = self.row;
        format!("| {source} | {ranks} | {tokens} | {} |", ["dispatch", "combine"][self.operator])
    }

    fn line(&self) -> String {
        let (begin, measured) = (self.begin(), self.row.measured[self.operator]);
        let is = self.fitted().map_or("predicted".to_owned(), |key| format!("calibrated: `{key}`"));
        format!("{begin} {measured} | {:.1} | {:.2} | {is} |", self.predicted, self.ratio())
    }
}

/// The part of the page between the marks, and what is before and after it.
fn parts(page: &str) -> [String; 3] {
    let (before, rest) = page.split_once(FROM).expect("the first mark");
    let (table, behind) = rest.split_once(TO).expect("the second mark");
    [before, table, behind].map(str::to_owned)
}

/// The table of the page.
pub(crate) fn lines_of_the_page() -> String {
    let [_, table, _] = parts(&fs::read_to_string(PAGE).unwrap());
    table
}

/// Both tests write the page.
static WRITER: Mutex<()> = Mutex::new(());

/// Holds the lines of these times against the page, or writes them.
fn keep(times: &[Time<'_>]) {
    let _guard = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    let [before, table, behind] = parts(&fs::read_to_string(PAGE).unwrap());
    let mut lines: Vec<_> = table.lines().map(str::to_owned).collect();
    let mut stale = Vec::new();
    for time in times {
        let (begin, line) = (time.begin(), time.line());
        let found = lines.iter_mut().find(|found| found.starts_with(&begin));
        let found = found.unwrap_or_else(|| panic!("no line of the page begins with {begin}"));
        if *found != line {
            stale.push(format!("{found}\n{line}"));
            *found = line;
        }
    }
    if std::env::var_os("SNAPSHOTS").is_some_and(|action| action == "overwrite") {
        let table: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(PAGE, [before, FROM.to_owned(), table, TO.to_owned(), behind].concat()).unwrap();
        return;
    }
    assert!(stale.is_empty(), "stale, SNAPSHOTS=overwrite writes them:\n{}", stale.join("\n"));
}

#[test]
fn a_page_has_the_predictions_of_few_ranks() {
    let few = ROWS.iter().filter(|row| row.ranks <= 16 && row.product == Product::A3);
    keep(&few.flat_map(Row::times).collect::<Vec<_>>());
}

#[test]
#[ignore = "thorough: .ci/prove runs it"]
fn a_page_has_all_predictions_and_reports_their_bias() {
    let times: Vec<_> = ROWS.iter().flat_map(Row::times).collect();
    keep(&times);
    assert_eq!(lines_of_the_page().lines().count(), 2 + times.len(), "the table has other lines, too");
    for time in &times {
        let is_calibrated = time.fitted().is_some();
        assert!(!is_calibrated || (0.99..=1.01).contains(&time.ratio()), "not reproduced: {}", time.line());
    }
    // What was predicted for A3, two digits.
    let of_a3 = times.iter().filter(|time| time.fitted().is_none() && time.row.product == Product::A3);
    let bias = &simulate("--preset tiny --cluster a3 --rows timing")["bias"]["measured_over_predicted"];
    for (operator, name) in ["dispatch", "combine"].into_iter().enumerate() {
        let ratios = of_a3.clone().filter(|time| time.operator == operator).map(Time::ratio);
        let (least, most) =
            ratios.fold((f64::MAX, 0.0), |(least, most), ratio| (ratio.min(least), ratio.max(most)));
        let range = [least, most].map(|ratio: f64| (100.0 * ratio).round() / 100.0);
        assert_eq!(bias[name], serde_json::json!(range), "{name}");
    }
    let (fitted, free) =
        times.iter().filter(|time| time.row.product == Product::A3).fold((0, 0), |(fitted, free), time| {
            if time.fitted().is_some() { (fitted + 1, free) } else { (fitted, free + 1) }
        });
    assert!(free >= 2 * fitted, "{fitted} times are calibrated, {free} predicted");
}
