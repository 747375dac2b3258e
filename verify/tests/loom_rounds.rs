//! tmp
use verify::loom::group::{Group, Operator::{C, D}, Size};
use verify::loom::search::{Bound, model};
use verify::loom::round::Traffic;

const TWO: Size<'_> = Size { cores: &[1, 1], experts: 2, bs: 1, k: 1 };
const CROSS: Traffic<'_> = &[&[&[1]], &[&[0]]];
const OWN: Traffic<'_> = &[&[&[0]], &[&[1]]];
const IDLE: Traffic<'_> = &[&[&[]], &[&[]]];

#[test]
fn try_dc() {
    for (n, t) in [("cross", CROSS), ("own", OWN), ("idle", IDLE)] {
        model(&format!("d {n}"), Bound::Complete, Group::new(TWO, &[t], &[D(0)]).body());
        model(&format!("dc {n}"), Bound::Complete, Group::new(TWO, &[t], &[D(0), C(0)]).body());
        model(&format!("dcd {n}"), Bound::Complete, Group::new(TWO, &[t; 2], &[D(0), C(0), D(1)]).body());
        model(&format!("cdc {n}"), Bound::Complete, Group::new(TWO, &[t; 2], &[C(0), D(1), C(1)]).body());
        model(&format!("dcdc3 {n}"), Bound::Preemptions(3), Group::new(TWO, &[t; 2], &[D(0), C(0), D(1), C(1)]).body());
    }
}
