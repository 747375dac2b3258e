//! Ways in which arguments may be wrong, and the codes that these bring; the fields of structures.

use crate::codes::*;
use Fault::*;

/// A way in which an argument differs from the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    Null,
    /// One byte beyond its place.
    Misaligned,
    OneShort,
    OneBeyond,
    /// As long as no memory is.
    Huge,
    /// A byte less than whole elements.
    Odd,
    /// Words that the library never wrote.
    NotMade,
    /// Well formed, but not what it must be.
    Wrong,
}

/// An argument, or a field of what an argument leads to.
#[derive(Clone, Copy)]
pub(super) struct Argument {
    pub(super) name: &'static str,
    /// Each fault with its code; `VERIEP_OK` where the call goes on.
    pub(super) faults: &'static [(Fault, i32)],
}

/// A structure whose fields are looked at one after the other.
pub(super) struct Structure {
    pub(super) name: &'static str,
    pub(super) fields: &'static [Argument],
}

pub(super) const NULL: i32 = VERIEP_E_NULL;
pub(super) const ARGUMENT: i32 = VERIEP_E_ARGUMENT;
pub(super) const OK: i32 = VERIEP_OK;

pub(super) const POINTER: &[(Fault, i32)] = &[(Null, NULL), (Misaligned, ARGUMENT)];
pub(super) const OPTIONAL: &[(Fault, i32)] = &[(Null, OK), (Misaligned, ARGUMENT)];
pub(super) const OBJECT: &[(Fault, i32)] = &[(Null, NULL), (Misaligned, ARGUMENT), (NotMade, VERIEP_E_ORDER)];
/// A pointer and a length.
pub(super) const LIST: &[(Fault, i32)] = &[(Null, NULL), (Misaligned, ARGUMENT), (Huge, ARGUMENT)];
pub(super) const BYTES: &[(Fault, i32)] = &[(Null, NULL), (Huge, ARGUMENT)];
pub(super) const TEXT: &[(Fault, i32)] = &[(Null, OK), (OneShort, OK), (Huge, ARGUMENT)];
/// The same of bytes that lead to what is checked afterwards.
pub(super) const TENSOR_OF_BYTES: &[(Fault, i32)] =
    &[(Null, NULL), (OneShort, OK), (OneBeyond, OK), (Huge, ARGUMENT)];
pub(super) const TENSOR_OF_WORDS: &[(Fault, i32)] = &[
    (Null, NULL),
    (Misaligned, ARGUMENT),
    (Odd, ARGUMENT),
    (OneShort, OK),
    (OneBeyond, OK),
    (Huge, ARGUMENT),
];
pub(super) const NUMBER: &[(Fault, i32)] = &[(OneBeyond, ARGUMENT)];
/// A number that is the object's to judge.
pub(super) const ANY_NUMBER: &[(Fault, i32)] = &[(OneBeyond, OK)];
pub(super) const ROOM: &[(Fault, i32)] = &[(OneShort, VERIEP_E_SHORT), (OneBeyond, OK)];
pub(super) const FUNCTION: &[(Fault, i32)] = &[(Null, NULL)];
pub(super) const SEGMENT: &[(Fault, i32)] =
    &[(Null, NULL), (Misaligned, ARGUMENT), (OneShort, OK), (OneBeyond, OK), (Huge, ARGUMENT)];
/// Of ranks, of which the last may be missing.
const PEERS: &[(Fault, i32)] = &[(Null, NULL), (Misaligned, ARGUMENT), (OneShort, OK), (Huge, ARGUMENT)];
/// Not an argument, but a state of the object.
pub(super) const STATE: &[(Fault, i32)] = &[(NotMade, VERIEP_E_ORDER)];

pub(super) const fn field(name: &'static str, faults: &'static [(Fault, i32)]) -> Argument {
    Argument { name, faults }
}

pub(super) const CONFIG: Structure = Structure {
    name: "veriep_config",
    fields: &[
        field("config.abi_version", &[(OneShort, VERIEP_E_VERSION), (OneBeyond, VERIEP_E_VERSION)]),
        field("config.comm_alg", NUMBER),
        field("config.op", NUMBER),
        field("config.dtype", NUMBER),
        field(
            "config.bs_per_rank",
            &[(Misaligned, ARGUMENT), (OneShort, OK), (OneBeyond, OK), (Huge, ARGUMENT)],
        ),
        field("config.given", NUMBER),
        field("config.limits", NUMBER),
        field("config.k", &[(Wrong, OK)]),
    ],
};

pub(super) const CHOICES: Structure = Structure {
    name: "veriep_choices",
    fields: &[
        field("choices.order", NUMBER),
        field("choices.flags", NUMBER),
        field("choices.receive", NUMBER),
        field("choices.stage", &[(OneShort, ARGUMENT), (OneBeyond, ARGUMENT)]),
    ],
};

pub(super) const INPUTS: Structure = Structure {
    name: "veriep_inputs",
    fields: &[
        field("inputs.x", TENSOR_OF_BYTES),
        field(
            "inputs.expert_ids",
            &[
                (Null, NULL),
                (Misaligned, ARGUMENT),
                (Odd, ARGUMENT),
                (OneShort, OK),
                (OneBeyond, OK),
                (Huge, ARGUMENT),
                (Wrong, OK),
            ],
        ),
        field("inputs.expert_scales", TENSOR_OF_WORDS),
        // No kind for a mask that is there, or none that there is.
        field("inputs.mask_kind", &[(Wrong, ARGUMENT), (OneBeyond, ARGUMENT)]),
        field(
            "inputs.x_active_mask",
            &[(Null, NULL), (OneShort, OK), (OneBeyond, OK), (Huge, ARGUMENT), (Wrong, ARGUMENT)],
        ),
        field("inputs.scales", TENSOR_OF_WORDS),
        field("inputs.shared_expert_x", TENSOR_OF_BYTES),
        field("inputs.const_expert_alpha_1", TENSOR_OF_BYTES),
        field("inputs.const_expert_alpha_2", TENSOR_OF_BYTES),
        field("inputs.const_expert_v", TENSOR_OF_BYTES),
        field("inputs.residual_x", TENSOR_OF_BYTES),
        field("inputs.gamma", TENSOR_OF_BYTES),
    ],
};

pub(super) const OPERANDS: Structure = Structure {
    name: "veriep_operands",
    fields: &[
        field("operands.y", TENSOR_OF_BYTES),
        field("operands.assist_info", TENSOR_OF_BYTES),
        field("operands.expand_scales", TENSOR_OF_BYTES),
        field("operands.ep_recv_counts", TENSOR_OF_BYTES),
        field("operands.expand_idx", TENSOR_OF_BYTES),
        field("operands.sent_rows", TENSOR_OF_BYTES),
        field("operands.row_table", TENSOR_OF_BYTES),
    ],
};

pub(super) const FABRIC: Structure = Structure {
    name: "veriep_fabric",
    fields: &[
        field("fabric.put", FUNCTION),
        field("fabric.publish", FUNCTION),
        field("fabric.store", FUNCTION),
        field("fabric.write", FUNCTION),
        field("fabric.quiet", FUNCTION),
        field("fabric.observe", FUNCTION),
        field("fabric.bytes", FUNCTION),
        field("fabric.deliver", FUNCTION),
        // Of a core that calls them; the others do without.
        field("fabric.peer_bytes", FUNCTION),
        field("fabric.send", FUNCTION),
        field("fabric.lend", &[(Null, OK)]),
        field("fabric.prefetch", &[(Null, OK)]),
    ],
};

pub(super) const MAPPED: Structure = Structure {
    name: "veriep_mapped",
    fields: &[
        field("mapped.outputs", SEGMENT),
        field("mapped.peers", PEERS),
        field("mapped.peers.state", SEGMENT),
        field("mapped.peers.window", SEGMENT),
        field("mapped.peers.window_out", SEGMENT),
        field("mapped.tp", PEERS),
        field("mapped.tp.state", SEGMENT),
        field("mapped.tp.window", SEGMENT),
        field("mapped.tp.window_out", SEGMENT),
    ],
};

pub(super) const NIC: Structure =
    Structure { name: "veriep_nic", fields: &[field("nic.observe", FUNCTION), field("nic.post", FUNCTION)] };

/// In the order of the page.
pub(super) const STRUCTURES: &[&Structure] = &[&CONFIG, &CHOICES, &INPUTS, &OPERANDS, &FABRIC, &MAPPED, &NIC];
