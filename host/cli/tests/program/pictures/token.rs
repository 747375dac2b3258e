//! The way of one token: to its experts, into a window, into `expand_x`, and back into a sum.

use super::sheet::{Anchor, Sheet};
use super::{is, keep, number};
use crate::common::json;
use serde_json::Value;

const GROUP: [&str; 6] = ["--preset", "tiny", "--set", "aiv_num=1", "--set", "bs=2"];
const BS: u64 = 2;

fn plan(rank: u64) -> Value {
    let rank = rank.to_string();
    json(0, &[&["plan"], &GROUP[..], &["--seed", "1", "--rank", &rank, "--core", "0"]].concat())
}

fn list<'v>(plan: &'v Value, operator: &str, key: &str) -> &'v [Value] {
    plan[operator][key].as_array().unwrap()
}

/// Records or results of partition 0 in a window.
struct Area {
    offset: u64,
    stride: u64,
    count: u64,
}

impl Area {
    fn of(name: &str) -> Self {
        let layout = json(0, &[&["layout"], &GROUP[..]].concat());
        let areas = layout["areas"].as_array().unwrap();
        let is_it =
            |area: &&Value| is(area, "region", "window") && is(area, "name", name) && area["partition"] == 0;
        let area = areas.iter().find(is_it).unwrap_or_else(|| panic!("no area {name}"));
        Self { offset: number(area, "offset"), stride: number(area, "stride"), count: number(area, "count") }
    }

    fn place(&self, offset: u64) -> usize {
        assert_eq!((offset - self.offset) % self.stride, 0, "a place begins there");
        usize::try_from((offset - self.offset) / self.stride).unwrap()
    }
}

const CELL: usize = 20;

/// Draws places in a row, and those that are used in colour.
fn cells(sheet: &mut Sheet, [x, y]: [usize; 2], count: u64, used: &[usize], class: &str) {
    for place in 0..usize::try_from(count).unwrap() {
        sheet.rect([x + place * CELL, y], [CELL, 24], if used.contains(&place) { class } else { "m" });
    }
}

#[test]
fn a_token_goes_to_its_experts_and_comes_back_as_a_sum() {
    const HEIGHT: [usize; 2] = [60, 140];
    const MIDDLE: usize = 100;
    let (records, results) = (Area::of("dispatch records"), Area::of("combine rows"));
    let plans = [0, 1].map(plan);
    let local_experts = records.count / (2 * BS);
    for (source, plan) in (0..).zip(&plans) {
        for send in list(plan, "dispatch", "sends") {
            let [local, slot, offset] = ["local_expert", "slot", "offset"].map(|key| number(send, key));
            let place = (source * local_experts + local) * BS + slot;
            assert_eq!(records.place(offset) as u64, place, "[source][expert][n]");
        }
    }
    let sends = list(&plans[0], "dispatch", "sends").iter().filter(|send| number(send, "token") == 0);
    let sends: Vec<_> = sends.collect();
    assert_eq!(sends.len(), HEIGHT.len(), "K");

    let mut sheet = Sheet::new();
    let heads = [
        (60, "BS tokens of H"),
        (195, "K of E experts"),
        (370, "window[source][expert][n]"),
        (530, "expand_x"),
        (660, "K results"),
        (780, "sum"),
    ];
    for (x, words) in heads {
        sheet.words([x, 28], Anchor::Middle, "h", words);
    }
    for (token, class) in (0..BS).zip(["d", "m"]) {
        let y = MIDDLE + usize::try_from(token).unwrap() * 30;
        sheet.rect([20, y], [80, 24], class);
        sheet.words([60, y + 16], Anchor::Middle, "", format!("token {token}"));
    }
    let mut returned = Vec::new();
    for (y, send) in HEIGHT.into_iter().zip(&sends) {
        let [k, expert, to, local, slot] =
            ["k", "expert", "to", "local_expert", "slot"].map(|key| number(send, key));
        let place = records.place(number(send, "offset"));
        assert_eq!(to, expert / local_experts);
        let there = &plans[usize::try_from(to).unwrap()];
        let received: u64 = list(there, "dispatch", "awaits").iter().map(|flag| number(flag, "count")).sum();
        let result =
            |send: &&Value| number(send, "to") == 0 && number(send, "token") == 0 && number(send, "k") == k;
        let result = list(there, "combine", "sends").iter().find(result).unwrap();
        let row = number(result, "row");
        let back = results.place(number(result, "offset"));
        assert_eq!(back as u64, k, "of token 0");
        returned.push(back);

        sheet.rect([140, y], [110, 24], "o");
        sheet.words([195, y + 16], Anchor::Middle, "", format!("expert {expert}, rank {to}"));
        cells(&mut sheet, [290, y], records.count, &[place], "d");
        sheet.plain(
            [370, y + 40],
            Anchor::Middle,
            "",
            &format!("[0][{local}][{slot}] = +{}", number(send, "offset")),
        );
        cells(&mut sheet, [490, y], received, &[usize::try_from(row).unwrap()], "d");
        sheet.words([530, y + 40], Anchor::Middle, "", format!("row {row}"));
        let (from, middle) = (MIDDLE + 12, y + 12);
        sheet.path(format!("M100 {from}L138 {middle}"), "a");
        sheet.path(format!("M250 {middle}L288 {middle}"), "a");
        sheet.path(format!("M450 {middle}L488 {middle}"), "a");
        let right = 490 + CELL * usize::try_from(received).unwrap();
        sheet.path(format!("M{right} {middle}L618 {from}"), "f");
    }
    cells(&mut sheet, [620, MIDDLE], results.count, &returned, "g");
    sheet.rect([740, MIDDLE], [80, 24], "g");
    sheet.words([780, MIDDLE + 16], Anchor::Middle, "", "token 0");
    sheet.path(
        format!("M{0} {1}L738 {1}", 620 + CELL * usize::try_from(results.count).unwrap(), MIDDLE + 12),
        "f",
    );
    let label = "A token goes to K experts: into a record of the window of each expert's rank, from there into a row of expand_x, and back as \
                 K results, which its rank adds up";
    keep("token", &sheet.finish_for_all([840, 200], label));
}
