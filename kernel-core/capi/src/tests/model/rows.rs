//! The model's data: for each call its arguments in the order in which they are looked at, with the code for each way in which
//! they may be wrong. `docs/embed/c.md` has it as a table.

use super::Args;
use super::calls;
use super::structures::*;
use super::world::{Outcome, World};
use crate::codes::*;
use Fault::*;
use std::vec::Vec;

pub(super) enum Check {
    One(Argument),
    /// The fields of this structure, to which the argument before leads.
    All(&'static Structure),
    /// Those of a call of that name.
    Same(&'static str, &'static [Self]),
}

/// A function of the interface.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) checks: &'static [Check],
    /// The codes once all arguments hold.
    pub(super) answers: &'static [i32],
    /// The caller's memory that it may then write, besides the text.
    pub(super) writes: &'static [&'static str],
    /// Makes the call, and says what must come of it.
    pub(super) call: fn(&mut World, &mut Args) -> Outcome,
}

const fn one(name: &'static str, faults: &'static [(Fault, i32)]) -> Check {
    Check::One(field(name, faults))
}

/// Of both calls that drive a core.
const STEP: [Check; 20] = [
    one("core", OBJECT),
    one("cx", POINTER),
    one("text", TEXT),
    one("status", OPTIONAL),
    one("cx.fabric and cx.mapped", &[(Wrong, ARGUMENT)]),
    one("core was begun", STATE),
    one("shape", &[(Null, NULL), (Misaligned, ARGUMENT), (NotMade, VERIEP_E_ORDER), (Wrong, OK)]),
    one("inputs", POINTER),
    Check::All(&INPUTS),
    one("operands", &[(Null, NULL), (Misaligned, ARGUMENT)]),
    Check::All(&OPERANDS),
    one("words", LIST),
    one("bytes", BYTES),
    one("fabric", &[(Misaligned, ARGUMENT)]),
    Check::All(&FABRIC),
    one("mapped", POINTER),
    Check::All(&MAPPED),
    one("words_len", ROOM),
    one("bytes_len", ROOM),
    one("vector", OPTIONAL),
];

const STEP_OF_AGENT: [Check; 11] = [
    one("agent", OBJECT),
    one("cx", POINTER),
    one("text", TEXT),
    one("status", OPTIONAL),
    one("cx.nic and cx.mapped", &[(Wrong, ARGUMENT)]),
    one("agent has not failed", STATE),
    one("shape", &[(Null, NULL), (Misaligned, ARGUMENT), (NotMade, VERIEP_E_ORDER), (Wrong, OK)]),
    one("nic", &[(Misaligned, ARGUMENT)]),
    Check::All(&NIC),
    one("mapped", POINTER),
    Check::All(&MAPPED),
];

const STEPPED: &[i32] =
    &[VERIEP_OK, VERIEP_STEPPED, VERIEP_PENDING, VERIEP_E_REFUSED, VERIEP_E_PROTOCOL, VERIEP_E_FABRIC];
const AWAITS: &[i32] = &[
    VERIEP_OK,
    VERIEP_STEPPED,
    VERIEP_PENDING,
    VERIEP_E_SHORT,
    VERIEP_E_REFUSED,
    VERIEP_E_PROTOCOL,
    VERIEP_E_FABRIC,
];
const STEPPED_AGENT: &[i32] =
    &[VERIEP_STEPPED, VERIEP_PENDING, VERIEP_E_REFUSED, VERIEP_E_PROTOCOL, VERIEP_E_FABRIC];
const AWAITS_OF_AGENT: &[i32] =
    &[VERIEP_STEPPED, VERIEP_PENDING, VERIEP_E_SHORT, VERIEP_E_REFUSED, VERIEP_E_PROTOCOL, VERIEP_E_FABRIC];
const SCRATCH: [&str; 2] = ["words", "bytes"];

/// Every function of the interface that answers a code.
pub(super) const ROWS: &[Row] = &[
    Row {
        name: "veriep_config_default",
        checks: &[
            one("abi_version", &[(OneShort, VERIEP_E_VERSION), (OneBeyond, VERIEP_E_VERSION)]),
            one("out", POINTER),
        ],
        answers: &[OK],
        writes: &["config"],
        call: calls::config_default,
    },
    Row {
        name: "veriep_shape_new",
        checks: &[one("text", TEXT), one("out", POINTER), one("config", POINTER), Check::All(&CONFIG)],
        answers: &[OK, VERIEP_E_CONFIG],
        writes: &["shape"],
        call: calls::shape_new,
    },
    Row {
        name: "veriep_shape_survivors",
        checks: &[
            one("text", TEXT),
            one("out", POINTER),
            one("whole", OBJECT),
            one(
                "elastic_info",
                &[
                    (Null, NULL),
                    (Misaligned, ARGUMENT),
                    (OneShort, OK),
                    (OneBeyond, OK),
                    (Huge, ARGUMENT),
                    (Wrong, OK),
                ],
            ),
        ],
        answers: &[OK, VERIEP_E_CONFIG],
        writes: &["left"],
        call: calls::shape_survivors,
    },
    Row {
        name: "veriep_shape_sizes",
        checks: &[one("shape", OBJECT), one("rank", NUMBER), one("out", POINTER)],
        answers: &[OK],
        writes: &["sizes"],
        call: calls::shape_sizes,
    },
    Row {
        name: "veriep_shape_areas",
        checks: &[
            one("out", LIST),
            one("count", POINTER),
            one("shape", OBJECT),
            one("rank", NUMBER),
            one("choices", OPTIONAL),
            Check::All(&CHOICES),
        ],
        answers: &[OK, VERIEP_E_SHORT],
        writes: &["list", "count"],
        call: calls::shape_areas,
    },
    Row {
        name: "veriep_fingerprints_new",
        checks: &[
            one("shape", OBJECT),
            one("choices", OPTIONAL),
            Check::All(&CHOICES),
            one("group_ep", &[(Null, OK)]),
            one("group_tp", &[(Null, OK)]),
            one("out", POINTER),
        ],
        answers: &[OK],
        writes: &["own"],
        call: calls::fingerprints_new,
    },
    Row {
        name: "veriep_fingerprints_compare",
        checks: &[one("text", TEXT), one("own", POINTER), one("other", POINTER), one("whole", OPTIONAL)],
        answers: &[OK, VERIEP_E_CONFIG],
        writes: &["whole"],
        call: calls::fingerprints_compare,
    },
    Row {
        name: "veriep_inputs_check",
        checks: &[
            one("text", TEXT),
            one("shape", OBJECT),
            one("rank", NUMBER),
            one("which", NUMBER),
            one("inputs", POINTER),
            Check::All(&INPUTS),
        ],
        answers: &[OK, VERIEP_E_INPUTS],
        writes: &[],
        call: calls::inputs_check,
    },
    Row {
        name: "veriep_inputs_batch",
        checks: &[
            one("shape", OBJECT),
            one("rank", NUMBER),
            one("inputs", POINTER),
            Check::All(&INPUTS),
            one("batch", POINTER),
        ],
        answers: &[OK],
        writes: &["batch"],
        call: calls::inputs_batch,
    },
    Row {
        name: "veriep_expert_map_new",
        checks: &[
            one("text", TEXT),
            one("out", POINTER),
            one("shape", OBJECT),
            one(
                "words",
                &[(Null, NULL), (Misaligned, ARGUMENT), (OneShort, OK), (OneBeyond, OK), (Huge, ARGUMENT)],
            ),
            one("rows", ANY_NUMBER),
        ],
        answers: &[OK, VERIEP_E_CONFIG],
        writes: &["map"],
        call: calls::expert_map_new,
    },
    Row {
        name: "veriep_expert_map_translate",
        checks: &[
            one("text", TEXT),
            one("map", OBJECT),
            one("shape", OBJECT),
            one("rank", NUMBER),
            one("inputs", POINTER),
            Check::All(&INPUTS),
            one("physical", LIST),
            one("len", &[(OneShort, ARGUMENT), (OneBeyond, ARGUMENT)]),
        ],
        answers: &[OK, VERIEP_E_INPUTS],
        writes: &["physical"],
        call: calls::expert_map_translate,
    },
    Row {
        name: "veriep_plan_sends",
        checks: &[
            one("out", LIST),
            one("count", POINTER),
            one("shape", OBJECT),
            one("rank", NUMBER),
            one("inputs", POINTER),
            Check::All(&INPUTS),
            one("core", NUMBER),
            one("order", NUMBER),
            one("words", LIST),
            one("words_len", ROOM),
        ],
        answers: &[OK, VERIEP_E_SHORT],
        writes: &["list", "count", "words"],
        call: calls::plan_sends,
    },
    Row {
        name: "veriep_received_rows",
        checks: &[
            one("out", LIST),
            one("count", POINTER),
            one("shape", OBJECT),
            one("choices", OPTIONAL),
            Check::All(&CHOICES),
            one("row_table", BYTES),
            one("results", OPTIONAL),
            one("rows", NUMBER),
        ],
        answers: &[OK, VERIEP_E_ARGUMENT, VERIEP_E_SHORT],
        writes: &["list", "count", "results"],
        call: calls::received_rows,
    },
    Row {
        name: "veriep_has_agents",
        checks: &[one("shape", OBJECT), one("choices", OPTIONAL), Check::All(&CHOICES)],
        answers: &[0, 1],
        writes: &[],
        call: calls::has_agents,
    },
    Row {
        name: "veriep_fabric_can",
        checks: &[one("fabric", POINTER), Check::All(&FABRIC)],
        answers: &[],
        writes: &[],
        call: calls::fabric_can,
    },
    Row {
        name: "veriep_core_new",
        checks: &[
            one("text", TEXT),
            one("out", POINTER),
            one("shape", OBJECT),
            one("tp_rank", NUMBER),
            one("can", NUMBER),
            one("choices", OPTIONAL),
            Check::All(&CHOICES),
            one("rank", ANY_NUMBER),
            one("core", ANY_NUMBER),
        ],
        answers: &[OK, VERIEP_E_REFUSED],
        writes: &["core"],
        call: calls::core_new,
    },
    Row {
        name: "veriep_core_begin",
        checks: &[one("core", OBJECT), one("core is idle or done", STATE), one("which", NUMBER)],
        answers: &[OK],
        writes: &["core"],
        call: calls::core_begin,
    },
    Row {
        name: "veriep_core_send",
        checks: &[one("core", OBJECT), one("core is idle or done", STATE), one("which", NUMBER)],
        answers: &[OK, VERIEP_E_REFUSED],
        writes: &["core"],
        call: calls::core_send,
    },
    Row {
        name: "veriep_core_resume",
        checks: &[one("core", OBJECT), one("core has sent", STATE)],
        answers: &[OK],
        writes: &["core"],
        call: calls::core_resume,
    },
    Row {
        name: "veriep_core_step",
        checks: &STEP,
        answers: STEPPED,
        writes: &["core", "status", SCRATCH[0], SCRATCH[1]],
        call: calls::core_step,
    },
    Row {
        name: "veriep_core_awaits",
        checks: &[one("out", LIST), one("count", POINTER), Check::Same("veriep_core_step", &STEP)],
        answers: AWAITS,
        writes: &["core", "status", "list", "count", SCRATCH[0], SCRATCH[1]],
        call: calls::core_awaits,
    },
    Row {
        name: "veriep_gates_new",
        checks: &[one("out", POINTER), one("shape", OBJECT), one("choices", OPTIONAL), Check::All(&CHOICES)],
        answers: &[OK, VERIEP_E_REFUSED],
        writes: &["gates"],
        call: calls::gates_new,
    },
    Row {
        name: "veriep_gates_begin",
        checks: &[one("text", TEXT), one("ticket", POINTER), one("gates", OBJECT), one("which", NUMBER)],
        answers: &[OK, VERIEP_E_EARLY],
        writes: &["gates", "ticket"],
        call: calls::gates_begin,
    },
    Row {
        name: "veriep_gates_end",
        checks: &[one("gates", OBJECT), one("ticket", OBJECT)],
        answers: &[OK],
        writes: &["gates", "ticket"],
        call: calls::gates_end,
    },
    Row {
        name: "veriep_agent_new",
        checks: &[one("out", POINTER), one("shape", OBJECT), one("rank", NUMBER), one("order", NUMBER)],
        answers: &[OK, VERIEP_E_REFUSED],
        writes: &["agent"],
        call: calls::agent_new,
    },
    Row {
        name: "veriep_agent_step",
        checks: &STEP_OF_AGENT,
        answers: STEPPED_AGENT,
        writes: &["agent", "status"],
        call: calls::agent_step,
    },
    Row {
        name: "veriep_agent_awaits",
        checks: &[one("out", LIST), one("count", POINTER), Check::Same("veriep_agent_step", &STEP_OF_AGENT)],
        answers: AWAITS_OF_AGENT,
        writes: &["agent", "status", "list", "count"],
        call: calls::agent_awaits,
    },
];

/// Functions that take nothing, and so refuse nothing.
pub(super) const WITHOUT_ARGUMENTS: [&str; 2] = ["veriep_abi_version", "veriep_choices_default"];

/// The arguments of these checks, in their order.
fn add_arguments(checks: &'static [Check], all: &mut Vec<Argument>) {
    for check in checks {
        match check {
            Check::One(argument) => all.push(*argument),
            Check::All(structure) => all.extend(structure.fields),
            Check::Same(_, checks) => add_arguments(checks, all),
        }
    }
}

impl Row {
    pub(super) fn arguments(&self) -> Vec<Argument> {
        let mut all = Vec::new();
        add_arguments(self.checks, &mut all);
        all
    }
}
