//! Ranks of a group that hangs: an arrow goes from a rank that waits to the one whose words it lacks.

use super::keep;
use super::sheet::{Anchor, Sheet};
use crate::common::{json, text, veriep};

/// The middle of a rank's box.
const PLACES: [[usize; 2]; 4] = [[120, 60], [460, 60], [460, 240], [120, 240]];
const BOX: [usize; 2] = [200, 60];
/// From a box to the end of its arrows.
const GAP: f64 = 8.0;
const SILENT: usize = 2;

#[test]
fn the_ranks_that_wait_point_at_the_one_that_is_silent() {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("dump");
    let fault = format!("silent={SILENT}");
    let group =
        ["run", "--preset", "tiny", "--set", "ep_world_size=4", "--inject", &fault, "--deadline", "1"];
    let output = veriep(&[&group[..], &["--dump", text(&dump)]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let said = json(3, &["diagnose", text(&dump)]);
    assert_eq!(said["culprits"], serde_json::json!([SILENT]));
    let mut sheet = Sheet::new();
    let ranks = said["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), PLACES.len());
    for rank in ranks {
        let number = rank["rank"].as_u64().unwrap() as usize;
        let awaited = |source: usize| {
            let waits = rank["waits_for"].as_array().unwrap();
            waits.iter().any(|wait| wait["source"] == source)
        };
        for source in (0..PLACES.len()).filter(|&source| source != number && awaited(source)) {
            sheet.path(arrow(PLACES[number], PLACES[source]), if source == SILENT { "w" } else { "c" });
        }
        let [x, y] = PLACES[number];
        sheet.rect([x - BOX[0] / 2, y - BOX[1] / 2], BOX, if number == SILENT { "b" } else { "d" });
        sheet.words([x, y - 6], Anchor::Middle, "h", format!("rank {number}"));
        let operator = rank["operator"].as_str().unwrap();
        let does = match number == SILENT {
            true => "has not sent its flags".to_owned(),
            false => format!("{operator}: {}", rank["phase"].as_str().unwrap()),
        };
        sheet.words([x, y + 14], Anchor::Middle, "", does);
    }
    let label = format!("Three ranks wait in dispatch for flags of rank {SILENT}, which has not sent them");
    keep("waits", &sheet.finish_for_all([580, 300], &label));
}

/// From the edge of one box to that of another.
fn arrow(from: [usize; 2], to: [usize; 2]) -> String {
    let [from, to] = [from, to].map(|place| place.map(|part| part as f64));
    let way = [to[0] - from[0], to[1] - from[1]];
    // The share of the way that is inside a box.
    let inside = (BOX[0] as f64 / 2.0 + GAP) / way[0].abs().max(1.0);
    let inside = inside.min((BOX[1] as f64 / 2.0 + GAP) / way[1].abs().max(1.0));
    let at = |share: f64| [0, 1].map(|axis| from[axis] + share * way[axis]);
    let ([x, y], [to_x, to_y]) = (at(inside), at(1.0 - inside));
    format!("M{x:.0} {y:.0}L{to_x:.0} {to_y:.0}")
}
