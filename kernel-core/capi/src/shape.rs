//! Configurations, and what follows from one: sizes, areas, plans, fingerprints.

use crate::codes::{
    self, Said, VERIEP_ABI_VERSION, VERIEP_E_ARGUMENT, VERIEP_E_CONFIG, VERIEP_E_INPUTS, VERIEP_E_SHORT,
    VERIEP_E_VERSION, VERIEP_NONE, VERIEP_OK, VERIEP_STATE_BYTES, VERIEP_TENSORS, code,
};
use crate::context::List;
use crate::fabric::place;
use crate::given::{self, read, slice, slice_mut};
use crate::objects;
use crate::text::Text;
use crate::types::{
    veriep_area, veriep_bytes, veriep_choices, veriep_config, veriep_expert_map, veriep_fingerprints,
    veriep_inputs, veriep_rows, veriep_send, veriep_shape, veriep_sizes,
};
use core::ffi::{CStr, c_char};
use core::ops::ControlFlow;
use core::ptr;
use kernel_core::inputs::{ExpertMap, Found};
use kernel_core::layout::map::{self, Area};
use kernel_core::layout::state::Partition;
use kernel_core::layout::{outputs, tp};
use kernel_core::place::{Place, Region, Tensor};
use kernel_core::plan::route::{self, Sends};
use kernel_core::plan::split::{self, DispatchShare};
use kernel_core::protocol::{Fingerprints, Operator, scratch_bytes, scratch_words};
use kernel_core::shape::{BatchSizes, Config, Elastic, Given, Shape};
use kernel_core::units::{CoreId, RankId};

/// The version of the library's interface: `VERIEP_ABI_VERSION` of the header that belongs to it.
#[unsafe(no_mangle)]
pub extern "C" fn veriep_abi_version() -> u32 {
    VERIEP_ABI_VERSION
}

/// Makes a configuration of what is given here, and of the numbers that `of` has by the same names.
macro_rules! with_numbers {
    ($of:ident => $config:ident { $($field:ident: $value:expr,)* }) => {
        with_numbers! { $of => $config { $($field: $value,)* }
            ep_world_size server_ranks tp_world_size moe_expert_num shared_expert_num shared_expert_rank_num
            zero_expert_num copy_expert_num const_expert_num k h global_bs quant_mode comm_quant_mode
            expert_token_nums_type hccl_buffsize_mb port_offset aiv_num norm_eps
        }
    };
    ($of:ident => $config:ident { $($field:ident: $value:expr,)* } $($number:ident)*) => {
        $config { $($field: $value,)* $($number: $of.$number,)* }
    };
}

/// Fills in a configuration. `abi_version` is `VERIEP_ABI_VERSION`; with another one nothing is written.
///
/// # Safety
/// A pointer that is not null leads to a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_config_default(out: *mut veriep_config, abi_version: u32) -> i32 {
    if abi_version != VERIEP_ABI_VERSION {
        return VERIEP_E_VERSION;
    }
    let of = Config::default();
    let config = with_numbers! { of => veriep_config {
        abi_version: abi_version,
        limits: codes::VERIEP_LIMITS_PRODUCT,
        comm_alg: codes::VERIEP_FULLMESH_V1,
        op: codes::VERIEP_OP_COMBINE,
        dtype: codes::VERIEP_BF16,
        given: 0,
        bs: if let BatchSizes::Uniform(bs) = of.bs { bs } else { 0 },
        bs_per_rank: ptr::null(),
        bs_per_rank_len: 0,
        bs_rank: VERIEP_NONE,
    } };
    // SAFETY: the caller's.
    code(unsafe { given::fill(out, config) })
}

/// # Safety
/// `bs_per_rank` has as many entries as it says.
unsafe fn config(given: &veriep_config) -> Said<Config<'_>> {
    Ok(with_numbers! { given => Config {
        comm_alg: codes::protocol(given.comm_alg)?,
        op: codes::op(given.op)?,
        dtype: codes::dtype(given.dtype)?,
        bs: match (given.bs_per_rank.is_null(), given.bs_rank) {
            (true, VERIEP_NONE) => BatchSizes::Uniform(given.bs),
            (true, rank) => BatchSizes::Own { rank: RankId(rank), bs: given.bs },
            (false, VERIEP_NONE) => {
                // SAFETY: the caller's.
                BatchSizes::PerRank(unsafe { slice(given.bs_per_rank, given.bs_per_rank_len) }?)
            }
            (false, _) => return Err(VERIEP_E_ARGUMENT),
        },
        given: Given::from_bits(given.given).ok_or(VERIEP_E_ARGUMENT)?,
    } })
}

/// Checks a configuration and makes a shape of it. The text has a line for each rule that is broken.
///
/// # Safety
/// Pointers that are not null lead to what they say; `text` has `text_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_shape_new(
    out: *mut veriep_shape,
    config: *const veriep_config,
    text: *mut c_char,
    text_len: usize,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let mut text = Text::new(text, text_len)?;
        given::write(out)?;
        let given = read(config)?;
        if given.abi_version != VERIEP_ABI_VERSION {
            return Err(VERIEP_E_VERSION);
        }
        let (config, limits) = (self::config(given)?, codes::limits(given.limits)?);
        objects::forget::<Shape>(out)?;
        let shape = Shape::check(&config, limits, &mut |violation| text.line(violation));
        objects::put(out, shape.ok_or(VERIEP_E_CONFIG)?)
    })())
}

/// Checks `elastic_info` of `len` words and makes the shape of those that are left of `whole`. Ranks are then named by their
/// new ids: rank `i` is the physical rank `elastic_info[4 + R + i]`, and `to` in a fabric is such an `i`. `out` may be `whole`.
///
/// # Safety
/// As of `veriep_shape_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_shape_survivors(
    out: *mut veriep_shape,
    whole: *const veriep_shape,
    elastic_info: *const i32,
    len: usize,
    text: *mut c_char,
    text_len: usize,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let mut text = Text::new(text, text_len)?;
        given::write(out)?;
        let (whole, info) = (objects::get::<Shape>(whole)?, slice(elastic_info, len)?);
        let left = Elastic::check(whole, info, &mut |violation| text.line(violation));
        // Only now, since `out` may be `whole`. Without it the survivors of an earlier call would stay there.
        let Some(left) = left else {
            return objects::forget::<Shape>(out).and(Err(VERIEP_E_CONFIG));
        };
        objects::put(out, whole.survivors(&left))
    })())
}

/// # Safety
/// As of [`objects::get`].
unsafe fn of_rank<'a>(shape: *const veriep_shape, rank: u32) -> Said<(&'a Shape, RankId)> {
    // SAFETY: the caller's.
    let shape = unsafe { objects::get::<Shape>(shape) }?;
    if rank < shape.ep_world_size() { Ok((shape, RankId(rank))) } else { Err(VERIEP_E_ARGUMENT) }
}

/// What the memory of EP rank `rank` must hold.
///
/// # Safety
/// Pointers that are not null lead to what they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_shape_sizes(
    shape: *const veriep_shape,
    rank: u32,
    out: *mut veriep_sizes,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let (shape, rank) = of_rank(shape, rank)?;
        let has_tp = shape.tp_world_size() > 1;
        let mut capacities = [0; VERIEP_TENSORS];
        let all = Tensor::ALL.iter().map(|&tensor| outputs::capacity(shape, rank, tensor));
        capacities.iter_mut().zip(all).for_each(|(to, capacity)| *to = capacity);
        let sizes = veriep_sizes {
            state: VERIEP_STATE_BYTES,
            window: shape.window_bytes(),
            window_out: shape.window_out_bytes(),
            tp_state: if has_tp { VERIEP_STATE_BYTES } else { 0 },
            tp_window: if has_tp { tp::window_bytes(shape, rank) } else { 0 },
            outputs: capacities,
            ep_recv_counts: outputs::ep_recv_counts_bytes(shape, rank),
            rows_max: shape.rows_max(rank),
            row: shape.payload_bytes(),
            scratch_words: scratch_words(shape),
            scratch_bytes: scratch_bytes(shape),
            ep_world_size: shape.ep_world_size(),
            local_experts: shape.local_experts(rank),
            bs: shape.bs(rank),
            aiv_num: shape.aiv_num(),
        };
        given::fill(out, sizes)
    })())
}

/// Every area of the memory of EP rank `rank` with these choices, or the default ones: writes at most `room` of them, and to `count` how many there are.
///
/// # Safety
/// Pointers that are not null lead to what they say; `out` has `room` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_shape_areas(
    shape: *const veriep_shape,
    choices: *const veriep_choices,
    rank: u32,
    out: *mut veriep_area,
    room: usize,
    count: *mut usize,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let mut list = List::new(out, room, count)?;
        let (shape, rank) = of_rank(shape, rank)?;
        let mode = codes::choices(choices)?.mode();
        map::areas(shape, mode, rank).for_each(|area| list.add(self::area(&area)));
        list.end()
    })())
}

fn area(of: &Area) -> veriep_area {
    let mut name = [0; 32];
    // All are shorter, so that a zero stays.
    let bytes = of.named.name().bytes().take(name.len() - 1);
    name.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte as c_char);
    veriep_area {
        name,
        region: codes::region(of.start.region),
        partition: of.partition.map_or(VERIEP_NONE, Partition::index),
        start: of.start.offset,
        count: of.count,
        stride: of.stride,
        slot: of.slot,
    }
}

/// What all ranks must have alike, as numbers that they can compare before the first operator. `group_ep` and `group_tp` are the
/// names of the two groups, which must be alike, too; null where there is none.
///
/// # Safety
/// Pointers that are not null lead to what they say; names end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_fingerprints_new(
    out: *mut veriep_fingerprints,
    shape: *const veriep_shape,
    choices: *const veriep_choices,
    group_ep: *const c_char,
    group_tp: *const c_char,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let shape = objects::get::<Shape>(shape)?;
        let all = Fingerprints::new(shape, codes::choices(choices)?).named(name(group_ep), name(group_tp));
        given::fill(out, veriep_fingerprints { words: all.0 })
    })())
}

/// # Safety
/// `name` is null or ends with a zero.
unsafe fn name<'a>(name: *const c_char) -> &'a [u8] {
    // SAFETY: the caller's.
    if name.is_null() { &[] } else { unsafe { CStr::from_ptr(name) }.to_bytes() }
}

/// Compares what two ranks have: `VERIEP_OK`, or `VERIEP_E_CONFIG` and in the text the first parameter or area that differs.
/// Writes to `whole`, unless it is null, one number for all of the first.
///
/// # Safety
/// Pointers that are not null lead to what they say; `text` has `text_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_fingerprints_compare(
    own: *const veriep_fingerprints,
    other: *const veriep_fingerprints,
    whole: *mut u64,
    text: *mut c_char,
    text_len: usize,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let mut text = Text::new(text, text_len)?;
        let (own, other) = (Fingerprints(read(own)?.words), Fingerprints(read(other)?.words));
        if !whole.is_null() {
            given::fill(whole, own.whole())?;
        }
        own.first_difference(&other).map_or(Ok(VERIEP_OK), |name| {
            text.say(&name);
            Err(VERIEP_E_CONFIG)
        })
    })())
}

/// Checks what `rank` brings to an operator, `VERIEP_DISPATCH` or `VERIEP_COMBINE`. Tensors that it does not read may be null. The
/// text has a line for each rule that is broken.
///
/// # Safety
/// Pointers that are not null lead to what they say, tensors to as much as they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_inputs_check(
    shape: *const veriep_shape,
    rank: u32,
    which: u32,
    inputs: *const veriep_inputs,
    text: *mut c_char,
    text_len: usize,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let mut text = Text::new(text, text_len)?;
        let (shape, rank) = of_rank(shape, rank)?;
        let operator = codes::operator(which)?;
        let inputs = given::inputs(read(inputs)?)?;
        told(&mut text, |found| match operator {
            Operator::Dispatch => inputs.check_dispatch(shape, rank, found),
            Operator::Combine => inputs.check_combine(shape, rank, found),
        })
    })())
}

/// Writes a number of the active pairs that `rank` brings to dispatch, and of their experts. Combine must have the same pairs: keep
/// the number with the batch, and give it to the check of combine in `veriep_inputs.dispatched`. It is never 0.
///
/// # Safety
/// Pointers that are not null lead to what they say, tensors to as much as they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_inputs_batch(
    shape: *const veriep_shape,
    rank: u32,
    inputs: *const veriep_inputs,
    batch: *mut u64,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let (shape, rank) = of_rank(shape, rank)?;
        let inputs = given::inputs(read(inputs)?)?;
        given::fill(batch, inputs.batch(shape, rank).0)
    })())
}

/// Writes a line for all that `check` finds.
fn told(text: &mut Text<'_>, check: impl FnOnce(&mut Found<'_>) -> ControlFlow<()>) -> Said {
    let mut said = Ok(VERIEP_OK);
    let _ = check(&mut |error| {
        text.line(&error);
        said = Err(VERIEP_E_INPUTS);
        ControlFlow::Continue(())
    });
    said
}

/// Checks an `expert_map` of `len` words in `rows` rows, one for each logical expert: its physical experts, and -1 after them.
/// The text has a line for each rule that is broken.
///
/// # Safety
/// Pointers that are not null lead to what they say, and to as much. The words stay for as long as the map is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_expert_map_new(
    out: *mut veriep_expert_map,
    shape: *const veriep_shape,
    words: *const i32,
    len: usize,
    rows: usize,
    text: *mut c_char,
    text_len: usize,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let mut text = Text::new(text, text_len)?;
        given::write(out)?;
        let (shape, words) = (objects::get::<Shape>(shape)?, slice(words, len)?);
        objects::forget::<ExpertMap<'static>>(out)?;
        let map = ExpertMap::check(shape, words, rows, &mut |violation| text.line(violation));
        objects::put(out, map.ok_or(VERIEP_E_CONFIG)?)
    })())
}

/// Makes of logical ids, the `expert_ids` that a router gave the tokens of `rank`, physical ones for `veriep_inputs`: `len` of
/// both. Each token has its replica of an expert; a token that follows it, or of the next rank, has the next replica. Of `logical`,
/// the rank's inputs with logical ids, only these and the mask are read. `physical` is other memory than they. The text has a line
/// for each active pair whose id is wrong.
///
/// # Safety
/// Pointers that are not null lead to what they say; `physical` has `len` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_expert_map_translate(
    map: *const veriep_expert_map,
    shape: *const veriep_shape,
    rank: u32,
    logical: *const veriep_inputs,
    physical: *mut i32,
    len: usize,
    text: *mut c_char,
    text_len: usize,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let mut text = Text::new(text, text_len)?;
        let map = objects::get::<ExpertMap<'static>>(map)?;
        let (shape, rank) = of_rank(shape, rank)?;
        let (logical, physical) = (given::inputs(read(logical)?)?, slice_mut(physical, len)?);
        if logical.expert_ids.len() != len {
            return Err(VERIEP_E_ARGUMENT);
        }
        let said = told(&mut text, |found| map.check_ids(shape, &logical, found));
        map.translate(shape, rank, logical.expert_ids, physical);
        said
    })())
}

/// The rows that core `core` of `rank` sends in dispatch of the plain layout, in its order, or with `VERIEP_NONE` those that
/// the rank sends, in any protocol. Takes `scratch_words` words as scratch, with `VERIEP_NONE` `bs * (K + S)` more; writes at most `room` rows, and to `count` how
/// many there are.
///
/// # Safety
/// Pointers that are not null lead to what they say, and to as much as they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_plan_sends(
    shape: *const veriep_shape,
    rank: u32,
    core: u32,
    order: u32,
    inputs: *const veriep_inputs,
    words: *mut u32,
    words_len: usize,
    out: *mut veriep_send,
    room: usize,
    count: *mut usize,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let mut list = List::new(out, room, count)?;
        let (shape, rank) = of_rank(shape, rank)?;
        let inputs = given::inputs(read(inputs)?)?;
        let share = match core {
            VERIEP_NONE => {
                let tokens = shape.bs(rank);
                DispatchShare { moe: 0..tokens * shape.k(), shared: 0..tokens * shape.shared_expert_num() }
            }
            core if core < shape.aiv_num() => split::dispatch(shape, rank, CoreId(core)),
            _ => return Err(VERIEP_E_ARGUMENT),
        };
        let order = codes::order(order)?;
        let words = slice_mut(words, words_len)?;
        let (status, rest) =
            words.split_at_mut_checked(route::destinations(shape) as usize).ok_or(VERIEP_E_SHORT)?;
        let slots = rest.get_mut(..route::share_len(&share) as usize).ok_or(VERIEP_E_SHORT)?;
        route::walk(shape, rank, &inputs, &share, status, slots);
        for send in Sends::new(shape, rank, order, &share).iter(&inputs, slots) {
            list.add(veriep_send {
                token: send.pair.token.0,
                k: send.pair.k,
                rank: send.home.rank.0,
                local_expert: send.home.local_expert,
                slot: send.slot,
            });
        }
        list.end()
    })())
}

/// Where the first `rows` received rows are under these choices: stretches in the order of the rows, of which at most `room`
/// are written. `row_table` is that output, where rows stay in the window; one that is too short is `VERIEP_E_SHORT`, and one
/// that names places outside of the window `VERIEP_E_ARGUMENT`, as are more rows than any rank can receive. With direct
/// placement `results`, unless it is null, becomes where experts leave what they return, and a table that does not name that is
/// too short; else it is left as it is.
///
/// # Safety
/// Pointers that are not null lead to what they say, and to as much as they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_received_rows(
    shape: *const veriep_shape,
    choices: *const veriep_choices,
    rows: u32,
    row_table: veriep_bytes,
    out: *mut veriep_rows,
    room: usize,
    count: *mut usize,
    results: *mut veriep_rows,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let mut list = List::new(out, room, count)?;
        let shape = objects::get::<Shape>(shape)?;
        let receive = codes::choices(choices)?.receive;
        let table = slice(row_table.data.cast::<u8>(), row_table.len)?;
        if !results.is_null() {
            given::write(results)?;
        }
        let rows_max = (0..shape.ep_world_size()).map(|rank| shape.rows_max(RankId(rank))).max();
        // A rank of a TP domain has its peer's rows, too.
        if u64::from(rows) > rows_max.unwrap_or(0) * u64::from(shape.tp_world_size()) {
            return Err(VERIEP_E_ARGUMENT);
        }
        let is_held = |at: Place, len: u64| {
            at.region != Region::Window
                || at.offset.checked_add(len).is_some_and(|end| end <= shape.window_bytes())
        };
        let stretches = || receive.rows(shape, rows, table);
        // All of them before anything is written.
        let mut found = 0;
        for (at, len) in stretches() {
            if !is_held(at, len) {
                return Err(VERIEP_E_ARGUMENT);
            }
            found += len;
        }
        if found < u64::from(rows) * shape.payload_bytes() {
            return Err(VERIEP_E_SHORT);
        }
        if receive.is_direct() && !results.is_null() {
            let at = receive.results(table).ok_or(VERIEP_E_SHORT)?;
            let len = u64::from(rows) * shape.row_bytes();
            if !is_held(at, len) {
                return Err(VERIEP_E_ARGUMENT);
            }
            given::fill(results, veriep_rows { at: place(at), len })?;
        }
        stretches().for_each(|(at, len)| list.add(veriep_rows { at: place(at), len }));
        list.end()
    })())
}
