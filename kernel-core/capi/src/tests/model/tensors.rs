//! Tensors of a rank: what it brings to a round, and what combine is given.

use super::Args;
use super::dice::Dice;
use super::structures::Fault;
use super::world::World;
use crate::codes::*;
use crate::types::*;
use core::ffi::c_void;
use core::ptr::null;
use core::slice;
use kernel_core::inputs::{AddRmsNorm, Inputs, Mask};
use kernel_core::layout::outputs;
use kernel_core::place::Tensor;
use kernel_core::protocol::CombineInputs;
use kernel_core::shape::{Given, Shape};
use kernel_core::units::RankId;
use std::vec::Vec;

/// A tensor with an element of room after it.
pub(super) struct Data {
    words: Vec<u64>,
    pub(super) bytes: usize,
    element: usize,
}

impl Data {
    pub(super) fn new(elements: u64, element: usize, mut word: impl FnMut() -> u64) -> Self {
        let bytes = elements as usize * element;
        let words = (0..bytes / 8 + 2).map(|_| word()).collect();
        Self { words, bytes, element }
    }

    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: bytes of words.
        unsafe { slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.bytes + self.element) }
    }
}

/// The tensors of a rank by the names of their arguments.
pub(super) struct Tensors {
    pub(super) data: [(&'static str, Data); 11],
    pub(super) mask_kind: u32,
    /// The mask with a byte that is no bool.
    bad_mask: Data,
    /// Of each token an expert that there is not.
    bad_ids: Data,
}

impl Tensors {
    pub(super) fn new(shape: &Shape, rank: RankId, given: Given, dice: &mut Dice) -> Self {
        let (bs, k, h) = (u64::from(shape.bs(rank)), u64::from(shape.k()), u64::from(shape.h()));
        let consts = u64::from(shape.const_expert_num());
        let if_given = |which, elements: u64| if given.contains(which) { elements } else { 0 };
        let norm = u64::from(shape.has_add_rms_norm() && dice.once_in(4));
        // Rows of finite numbers about 1, weights likewise.
        let mut row = |elements: u64| {
            Data::new(elements, 1, || (dice.next() & 0x00FF_00FF_00FF_00FF) | 0x3C00_3C00_3C00_3C00)
        };
        let (x, shared_x, residual, gamma) = (
            row(2 * bs * h),
            row(if_given(Given::SHARED_EXPERT_X, 2 * bs * h)),
            row(norm * 2 * bs * h),
            row(norm * 2 * h),
        );
        let (alpha_1, alpha_2, v) = (row(2 * consts), row(2 * consts), row(2 * consts * h));
        let float = |elements| Data::new(elements, 4, || 0x3F40_0000_3F80_0000);
        let mut ids = Data::new(bs * k, 4, || 0);
        let end = shape.expert_ids_end() as usize;
        for token in 0..bs as usize {
            let first = dice.below(end);
            for i in 0..k as usize {
                let at = 4 * (token * k as usize + i);
                ids.bytes_mut()[at..at + 4].copy_from_slice(&(((first + i) % end) as i32).to_le_bytes());
            }
        }
        let (mask_kind, entries) = if given.contains(Given::MASK_1D) {
            (VERIEP_MASK_TOKENS, bs)
        } else {
            (VERIEP_MASK_PAIRS, if_given(Given::MASK_2D, bs * k))
        };
        let active = if mask_kind == VERIEP_MASK_TOKENS { dice.below(entries as usize + 1) } else { 0 };
        let mask = |with: Option<u8>, dice: &mut Dice| {
            let mut mask = Data::new(entries, 1, || 0);
            for (token, byte) in mask.bytes_mut().iter_mut().enumerate() {
                *byte =
                    u8::from(if mask_kind == VERIEP_MASK_TOKENS { token < active } else { dice.once_in(2) });
            }
            if let (Some(with), true) = (with, entries > 0) {
                mask.bytes_mut()[dice.below(entries as usize)] = with;
            }
            mask
        };
        let (good, bad_mask) = (mask(None, dice), mask(Some(2), dice));
        let scales = if_given(Given::SCALES, u64::from(shape.expert_rows()) * h);
        let data = [
            ("inputs.x", x),
            ("inputs.expert_ids", ids),
            ("inputs.expert_scales", float(bs * k)),
            ("inputs.x_active_mask", good),
            ("inputs.scales", float(scales)),
            ("inputs.shared_expert_x", shared_x),
            ("inputs.const_expert_alpha_1", alpha_1),
            ("inputs.const_expert_alpha_2", alpha_2),
            ("inputs.const_expert_v", v),
            ("inputs.residual_x", residual),
            ("inputs.gamma", gamma),
        ];
        Self {
            data,
            mask_kind: if entries == 0 { VERIEP_MASK_NONE } else { mask_kind },
            bad_mask,
            bad_ids: Data::new(bs * k, 4, || 0x7FFF_FFFF_FFFF_FFFF),
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Data> {
        self.data.iter().map(|(_, data)| data).chain([&self.bad_mask, &self.bad_ids])
    }

    pub(super) fn of(&self, name: &str) -> &Data {
        self.data.iter().find(|(of, _)| *of == name).map(|(_, data)| data).unwrap()
    }
}

impl World {
    /// Inputs of a rank as C has them, with the slips of a call.
    pub(super) fn inputs(&self, rank: u32, args: &mut Args) -> veriep_inputs {
        let tensors = &self.tensors[rank as usize];
        let mut of = |name| args.tensor(name, tensors.of(name));
        let (x, mut expert_ids, expert_scales) =
            (of("inputs.x"), of("inputs.expert_ids"), of("inputs.expert_scales"));
        let (mut x_active_mask, scales) = (of("inputs.x_active_mask"), of("inputs.scales"));
        let shared_expert_x = of("inputs.shared_expert_x");
        let (const_expert_alpha_1, const_expert_alpha_2, const_expert_v) = (
            of("inputs.const_expert_alpha_1"),
            of("inputs.const_expert_alpha_2"),
            of("inputs.const_expert_v"),
        );
        let (residual_x, gamma) = (of("inputs.residual_x"), of("inputs.gamma"));
        if args.fault("inputs.expert_ids") == Some(Fault::Wrong) {
            expert_ids.data = tensors.bad_ids.words.as_ptr().cast();
        }
        if args.fault("inputs.x_active_mask") == Some(Fault::Wrong) {
            x_active_mask.data = tensors.bad_mask.words.as_ptr().cast();
        }
        let mask_kind = match args.fault("inputs.mask_kind") {
            Some(Fault::OneBeyond) => VERIEP_MASK_ABSTAINS + 1,
            Some(Fault::Wrong) => VERIEP_MASK_NONE,
            _ => tensors.mask_kind,
        };
        veriep_inputs {
            x,
            expert_ids,
            expert_scales,
            x_active_mask,
            scales,
            shared_expert_x,
            const_expert_alpha_1,
            const_expert_alpha_2,
            const_expert_v,
            residual_x,
            gamma,
            mask_kind,
            call: 7,
            dispatched: 0,
        }
    }

    /// CombineInputs of a rank, of which outputs are in one of both memories.
    pub(super) fn operands(&self, memory: usize, rank: u32, args: &mut Args) -> veriep_operands {
        let rank_index = rank as usize;
        let y = args.tensor("operands.y", &self.y[rank_index]);
        let mut of = |name, tensor| {
            let (data, capacity) = self.memories[memory].output(rank_index, tensor);
            let counts = outputs::ep_recv_counts_bytes(&self.of, RankId(rank)) as usize;
            args.bytes(name, data.cast(), if tensor == Tensor::EpRecvCounts { counts } else { capacity }, 1)
        };
        veriep_operands {
            y,
            assist_info: of("operands.assist_info", Tensor::AssistInfo),
            expand_scales: of("operands.expand_scales", Tensor::ExpandScales),
            ep_recv_counts: of("operands.ep_recv_counts", Tensor::EpRecvCounts),
            expand_idx: of("operands.expand_idx", Tensor::ExpandIdx),
            sent_rows: of("operands.sent_rows", Tensor::SentRows),
            row_table: of("operands.row_table", Tensor::RowTable),
        }
    }

    /// A length of the operands that the argument has when nothing is wrong.
    pub(super) fn operand_bytes(&self, rank: u32, name: &str) -> usize {
        let (rank_index, counts) = (rank as usize, outputs::ep_recv_counts_bytes(&self.of, RankId(rank)));
        let of = |tensor| self.memories[0].output(rank_index, tensor).1;
        match name {
            "operands.y" => self.y[rank_index].bytes,
            "operands.assist_info" => of(Tensor::AssistInfo),
            "operands.expand_scales" => of(Tensor::ExpandScales),
            "operands.ep_recv_counts" => counts as usize,
            "operands.expand_idx" => of(Tensor::ExpandIdx),
            "operands.sent_rows" => of(Tensor::SentRows),
            _ => of(Tensor::RowTable),
        }
    }
}

/// What bytes are, once they are found to be well formed.
unsafe fn elements<'a, T>(bytes: &veriep_bytes) -> &'a [T] {
    if bytes.len == 0 {
        return &[];
    }
    // SAFETY: the world's own.
    unsafe { slice::from_raw_parts(bytes.data.cast(), bytes.len / size_of::<T>()) }
}

/// The inputs that C was given.
pub(super) fn rust_inputs<'a>(given: &veriep_inputs) -> Inputs<'a> {
    let is_there = |bytes: &veriep_bytes| !bytes.data.is_null() || bytes.len > 0;
    // SAFETY: the world's own, and the mask has bytes of 0 and 1.
    unsafe {
        Inputs {
            x: elements(&given.x),
            expert_ids: elements(&given.expert_ids),
            expert_scales: elements(&given.expert_scales),
            mask: match given.mask_kind {
                VERIEP_MASK_TOKENS => Mask::Tokens(elements(&given.x_active_mask)),
                VERIEP_MASK_PAIRS => Mask::Pairs(elements(&given.x_active_mask)),
                _ => Mask::None,
            },
            scales: is_there(&given.scales).then(|| elements(&given.scales)),
            shared_expert_x: is_there(&given.shared_expert_x).then(|| elements(&given.shared_expert_x)),
            const_expert_alpha_1: elements(&given.const_expert_alpha_1),
            const_expert_alpha_2: elements(&given.const_expert_alpha_2),
            const_expert_v: elements(&given.const_expert_v),
            add_rms_norm: (is_there(&given.residual_x) || is_there(&given.gamma)).then(|| AddRmsNorm {
                residual_x: elements(&given.residual_x),
                gamma: elements(&given.gamma),
            }),
            call: (given.call != VERIEP_CALL_COUNTED).then_some(given.call),
            dispatched: None,
        }
    }
}

pub(super) fn rust_operands<'a>(given: &veriep_operands) -> CombineInputs<'a> {
    // SAFETY: the world's own.
    unsafe {
        CombineInputs {
            y: elements(&given.y),
            assist_info: elements(&given.assist_info),
            expand_scales: elements(&given.expand_scales),
            ep_recv_counts: elements(&given.ep_recv_counts),
            expand_idx: elements(&given.expand_idx),
            sent_rows: elements(&given.sent_rows),
            row_table: elements(&given.row_table),
        }
    }
}

impl Args {
    /// Bytes with the slip of that name.
    pub(super) fn bytes(
        &mut self,
        name: &'static str,
        data: *const c_void,
        len: usize,
        element: usize,
    ) -> veriep_bytes {
        let is_absent = len == 0;
        let right = veriep_bytes { data: if is_absent { null() } else { data }, len };
        match self.fault(name) {
            Some(Fault::Null) => veriep_bytes { data: null(), len },
            Some(Fault::Misaligned) => veriep_bytes { data: data.wrapping_byte_add(1), len },
            Some(Fault::Odd) => veriep_bytes { data, len: len - 1 },
            Some(Fault::OneShort) => veriep_bytes { data, len: len - element },
            Some(Fault::OneBeyond) => veriep_bytes { data, len: len + element },
            Some(Fault::Huge) => veriep_bytes { data, len: usize::MAX - (element - 1) },
            _ => right,
        }
    }

    fn tensor(&mut self, name: &'static str, of: &Data) -> veriep_bytes {
        self.bytes(name, of.words.as_ptr().cast(), of.bytes, of.element)
    }
}
