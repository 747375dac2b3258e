//! Everything else that `kernel-core` offers: plans, layouts and sizes as a kernel generator reads them, with numbers
//! that the compiler cannot know. What is called has no path to a panic, whatever comes of it. `verify/tests/public_api.rs`
//! demands that no public function is left out.

use core::fmt::Write as _;
use core::hint::black_box;
use core::sync::atomic::AtomicU64;
use veriep_core::conformance::{Actor, Extent, Run, SUITES, Why};
use veriep_core::fabric::completions::BehindCompletions;
use veriep_core::fabric::nic::Transfer;
use veriep_core::fabric::order::{Issued, Kind as Effect};
use veriep_core::fabric::raw::{RawFabric, RawNic, Segment};
use veriep_core::fabric::{Fabric, Fault, Flag, ProtocolError, Terms, Wait};
use veriep_core::inputs::{self, ExpertMap, Inputs, Mask};
use veriep_core::layout::affine::{Index, Map, Named};
use veriep_core::layout::expr::Expr;
use veriep_core::layout::field::When;
use veriep_core::layout::locate::{Spot, locate};
use veriep_core::layout::quantity::{Kind, Memory, Quantity};
use veriep_core::layout::record::Triple;
use veriep_core::layout::state::{Partition, Slots};
use veriep_core::layout::{
    self, a2_message, a2_window, affine, block, data, map, outputs, record, relay, row_table, rules, state,
    tp,
};
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::placement::Home;
use veriep_core::plan::counts::{self, ShareSum};
use veriep_core::plan::experts::ExpertSends;
use veriep_core::plan::order::SendOrder;
use veriep_core::plan::permute::{self, Cumsum, RecvCounts};
use veriep_core::plan::route::{self, Sends};
use veriep_core::plan::{self, returns, split, table};
use veriep_core::protocol::outstanding::{CoreRows, Outstanding};
use veriep_core::protocol::{
    self, Agent, AgentEnv, Choices, CombineInputs, Context, Env, Fingerprints, Flags, Gates, Machine,
    Operator, Ran, Rank, Receive, Scratch, Ticket, a2, a3, a3_v2, direct, hierarchy, received,
};
use veriep_core::shape::{
    Algorithm, BatchSizes, Buffer, Config, Elastic, Given, Limit, Limits, Protocol, Release, RowElement,
    Shape,
};
use veriep_core::sync::call::{Begun, Tag, Untagged};
use veriep_core::sync::event::Order;
use veriep_core::sync::join::{Arrivals, Join};
use veriep_core::sync::{barrier, event, flag, join};
use veriep_core::units::{self, CoreId, ExpertId, Pair, RankId, Token};
#[cfg(target_arch = "x86_64")]
use veriep_core::vector::x86::{Avx2, Avx512};
use veriep_core::vector::{Any, NotFinite, Portable, Term, Value, Vector, cells};

fn keep<T>(value: T) {
    black_box(value);
}

fn keep_all<T>(values: impl IntoIterator<Item = T>) {
    values.into_iter().for_each(keep);
}

/// A table of a length that could be any.
fn slice<T>(table: &mut [T]) -> &mut [T] {
    black_box(table)
}

/// A number that could be any.
fn any() -> u32 {
    black_box(1)
}

/// All of one configuration, seen by one core. Its parts have frames of their own, so that the stack is that of the deepest one.
pub(crate) fn of(config: &Config<'_>, inputs: &Inputs<'_>, fabric: &mut RawFabric<'_>) {
    let (config, inputs, fabric) = black_box((config, inputs, fabric));
    if let Ok(shape) = Shape::new(config, Limits::None) {
        let shape = black_box(&shape);
        sizes(shape);
        places(shape);
        layouts(shape);
        inputs_of(shape, inputs);
        plans(shape, inputs);
        words(shape, fabric);
        litmuses(fabric);
        relayed(shape, inputs);
        machines(shape, inputs, fabric);
        messages();
    }
    keep(Shape::check(config, Limits::Product, &mut |violation| {
        say(violation);
    }));
    for release in Release::ALL {
        keep(Release::check(release, Algorithm::A3Hierarchy, config, &mut |violation| say(violation)));
        keep(release.buffer(Algorithm::A2Hierarchy, config).required_mb);
        keep(release.chosen(Algorithm::A2Hierarchy, config));
        release.notes(Algorithm::A2Fullmesh, config, &mut |note| keep(note));
        keep((release.has(Algorithm::A3Hierarchy), Release::named(release.name())));
    }
    keep(
        Algorithm::WORDS
            .map(|(.., algorithm)| (Algorithm::product(algorithm), Algorithm::protocol(algorithm))),
    );
    let buffer = Buffer::new(config);
    keep((
        Buffer::with(config, Limits::None).fits(),
        Buffer::bytes(&buffer),
        Limit::name(buffer.max_bs_limit),
    ));
    buffer.terms.iter().for_each(|term| keep_all(term.operands()));
    units_and_vector();
}

/// The door, for a valid configuration and for one that breaks most rules.
pub(crate) fn door(config: &Config<'_>) {
    let wrong = Config { ep_world_size: 0, bs: BatchSizes::Uniform(0), ..black_box(*config) };
    for config in [black_box(config), &wrong] {
        keep(Shape::check(config, Limits::None, &mut |violation| say(violation)).is_some());
    }
}

/// Anything that decides where things lie.
fn mode() -> affine::Mode {
    black_box(affine::Mode { landings: any(), separate: true, ..affine::Mode::default() })
}

/// All areas of a rank, one after the other.
pub(crate) fn areas(shape: &Shape) {
    let mut areas = map::areas(black_box(shape), mode(), RankId(any()));
    while let Some(area) = black_box(&mut areas).next() {
        keep(area);
    }
}

#[inline(never)]
fn sizes(shape: &Shape) {
    keep((Shape::product(shape), Shape::protocol(shape), Protocol::product(black_box(shape.protocol()))));
    keep((shape.has_add_rms_norm(), shape.dtype(), shape.row_format()));
    let element = shape.row_format().element;
    keep((RowElement::mode(element), RowElement::name(element, shape.dtype())));
    keep((shape.ep_world_size(), shape.tp_world_size(), shape.moe_expert_num()));
    keep((shape.local_expert_num(), shape.shared_expert_num(), shape.shared_expert_rows()));
    keep(shape.expert_rows());
    keep((shape.shared_expert_rank_num(), shape.zero_expert_num(), shape.copy_expert_num()));
    keep((shape.const_expert_num(), shape.expert_ids_end(), shape.k(), shape.h(), shape.bs(RankId(any()))));
    keep((shape.bs_max(), shape.bs_is_uneven(), shape.aiv_num(), shape.hccl_buffsize_mb()));
    keep((shape.port_offset(), shape.may_have_inactive_tokens(), shape.takes(black_box(Given::SCALES))));
    let own = Fingerprints::named(Fingerprints::new(shape, Choices::default()), b"ep", &[]);
    keep((own.first_difference(&Fingerprints([any().into(); _])), own.whole()));
    keep((shape.norm_eps(), shape.row_bytes(), shape.payload_bytes(), shape.result_bytes()));
    keep((shape.local_experts(RankId(any())), shape.rows_max(RankId(any()))));
    keep((shape.combine_columns(), shape.record_pitch(), shape.combine_pitch(), shape.combine_area()));
    keep((shape.dispatch_area(), shape.dispatch_slots(), shape.window_bytes(), shape.window_out_bytes()));
    keep((a2::scratch_words(shape), a2::scratch_bytes(shape), a3::scratch_words(shape)));
    keep(a3::scratch_bytes(shape));
    keep((shape.fingerprint(), shape.rank_window(), shape.window_record()));
    keep(shape.rows_to_peer_max(RankId(any())));
    let info = black_box([1, 1, 0, 2, 0, -1, 0, -1]);
    if let Some(left) = Elastic::check(shape, &info, &mut |violation| say(violation)) {
        keep((Elastic::is_on(&info), left.whole_world_size(), shape.survivors(&left)));
        keep((Elastic::physical(&left, RankId(any())), left.new_id(RankId(any()))));
    }
}

#[inline(never)]
fn places(shape: &Shape) {
    let (rank, at) = (RankId(any()), any());
    keep((shape.expert(any().cast_signed()), shape.moe_home(ExpertId(at)), shape.shared_home(rank, at)));
    keep((shape.shared_expert_of(rank), Shape::rows_from(shape, rank, rank)));
    keep(shape.expert_row(Home { rank, local_expert: at }));
    let region = black_box(Region::Output(Tensor::ExpandX));
    keep((Place::state(0), Place::window(8), Place::window_out(16), Place::output(Tensor::X, at.into())));
    keep((Region::name(region), region.is_of_tp(), Tensor::name(black_box(Tensor::Y))));
    let from = (rank, CoreId(at));
    let issued = Issued { from, to: rank, at: Place::state(at.into()), kind: black_box(Effect::Put) };
    keep(issued.must_follow(&black_box(issued)));
    let transfer = Transfer {
        to: rank,
        from: Place::window_out(at.into()),
        at: Place::window(at.into()),
        len: at.into(),
    };
    keep(Transfer::check(&black_box(transfer), rank));
    let segment = black_box(Segment::EMPTY);
    keep((Segment::len(&segment), Segment::is_empty(&segment)));
    let wait = black_box(Wait::new(Flag::Block, rank, &[at]));
    keep((Wait::source(&wait), Wait::renamed(wait, |rank| RankId(rank.0 + any()))));
    let core = CoreId(any());
    keep((Wait::new(Flag::Tp, rank, &[core.0]), Wait::barrier(core), Wait::details(wait).count()));
    keep((Flag::name(wait.flag), Flag::details(wait.flag)));
    let error = black_box(ProtocolError::Internal(""));
    keep((ProtocolError::source(&error), ProtocolError::renamed(error, |rank| rank)));
}

#[inline(never)]
fn layouts(shape: &Shape) {
    let (rank, core, at, token) = (RankId(any()), CoreId(any()), any(), Token(any()));
    let (half, kind) = (black_box(Partition::P1), black_box(Operator::Combine));
    let home = Home { rank, local_expert: at };
    keep((Partition::index(half), Partition::of(u64::from(at)), data::partition_start(shape, half)));
    let at_record = data::dispatch_record(shape, half, home, rank, at);
    keep((at_record, data::combine_row(shape, half, token, at)));
    keep((block::count(shape), block::stream(at, at.into()), block::block(at_record, at)));
    keep(block::flag(at_record, at));
    keep((record::sent_bytes(shape), record::triple_of(shape, at_record)));
    let triple = Triple { source: rank, token, k: at };
    keep((Triple::from_bytes(shape, black_box(&[0; 12])), triple.may_be_on(shape, rank)));
    keep((state::dispatch_slot(shape, at, rank), state::combine_slot(shape, token, at)));
    for slots in Slots::ALL {
        keep((slots.dispatch_status(half, at), slots.token_flag(half, at), slots.combine_status(half, at)));
        keep((Slots::bytes(slots), slots.name()));
    }
    keep(state::results_ready(half, RankId(at)));
    keep((state::selector(kind, core), state::core_word(core, at)));
    let slot = tp::slot(kind, half, core);
    keep((slot, tp::first_row(slot), tp::window_bytes(shape, rank)));
    keep((tp::partition_start(shape, rank, half), tp::record(shape, rank, half, at)));
    keep(tp::result(shape, rank, half, at));
    for tensor in Tensor::ALL {
        keep((outputs::capacity(shape, rank, tensor), outputs::ep_recv_counts_bytes(shape, rank)));
    }
    keep((outputs::expand_x(shape, at), outputs::x_out(shape, token)));
    keep((Tensor::X.is_of_received_rows(), Tensor::X.is_of_combine(), Tensor::X.is_of_norm()));
    keep_all(map::areas(shape, mode(), rank).map(|area| area.size()));
    keep_all(affine::maps(shape, mode(), rank).map(|map| (map.offset([at; 5]), map.dims().len())));
    keep_all(event::events(shape, mode()));
    keep_all(event::Value::shifts(black_box(event::Value::Mark)));
    keep(event::Value::variables(black_box(event::Value::Mark)));
    keep(event::Order::name(black_box(Order::Puts)));
    keep(event::Value::word(black_box(event::Value::Mark), [at; 3]));
    keep(barrier::word(at, ShareSum::default()));
    let named = black_box(Named::Rows);
    keep((Named::name(named), named.inside(), named.is_area(), affine::Index::name(black_box(Index::Row))));
    keep((Named::map(named, shape, mode(), rank), Named::row(named), Region::room(black_box(Region::State))));
    let memory = Memory { shape, mode: mode(), rank };
    let of_group = Kind::of(shape, mode());
    keep((
        named.is_of(of_group),
        Named::room(named),
        Named::alignment(named),
        Quantity::range(Quantity::Ranks, of_group),
    ));
    keep(rules::required(shape.protocol()));
    keep_all(rules::rules(of_group));
    keep_all(rules::addressable(of_group));
    keep(half.flipped());
    let quantity = black_box(Quantity::Ranks);
    keep((quantity.name(), quantity.definition(of_group), Quantity::value(quantity, &memory)));
    keep(Memory::value(&memory, &black_box(Region::Window).room()));
    for row in Named::field_rows(named) {
        keep((Expr::constant(&row.offset), When::may_hold(row.when, of_group)));
    }
    keep(Expr::value(&black_box(Region::Window).room(), &|quantity| Quantity::value(quantity, &memory)));
    keep(Named::find(named, &memory, any().into()));
    if let Some(spot) = locate(&memory, Place::window(any().into())) {
        keep((
            Map::find(&spot.map, at, any().into()),
            Spot::index(&spot, affine::Index::Row),
            Spot::field(&spot, &memory),
        ));
        say(&spot);
    }
    keep_all(Named::fields(named, shape, mode()));
    keep_all(map::record_fields(shape));
    keep_all(map::combine_fields(shape));
    keep_all(map::outputs(shape, rank));
    let task = a2_message::Task::new(shape, half, kind, rank, RankId(at), at);
    keep(task);
    keep((a2_message::task_word(half, rank, at), a2_message::doorbell()));
    keep((a2_window::half_start(shape, half), a2_window::window(shape, half, rank)));
    keep((a2_window::window_in(shape, half, rank, 0), a2_window::window_out(shape, half, rank, 0)));
    keep((a2_window::buffer_chosen(shape), a2_window::record(shape, at)));
    keep((a2_window::row(shape, at), a2_window::tail_flag(shape, kind, at)));
    keep((a2_window::sent_bytes(shape, kind, at), a2_window::next_flag_place(shape, at.into())));
    landings(shape);
    relays(shape);
}

#[inline(never)]
fn inputs_of(shape: &Shape, given: &Inputs<'_>) {
    let (rank, token, at) = (RankId(any()), Token(any()), any());
    let masked = Inputs { mask: Mask::Tokens(black_box(&[true, false])), ..*given };
    let abstaining = Inputs::abstaining(Some(at));
    for inputs in [given, &masked, &Inputs::default(), &abstaining] {
        keep(Inputs::check(inputs, shape, rank));
        keep(inputs.check_all(shape, rank, &mut |error| {
            keep(error.tensor());
            say(&error);
            core::ops::ControlFlow::Continue(())
        }));
        keep(inputs.check_dispatch(shape, rank, &mut |_| core::ops::ControlFlow::Break(())));
        keep(inputs.check_combine(shape, rank, &mut |_| core::ops::ControlFlow::Break(())));
        keep((inputs.pair_is_active(shape, token, at), inputs.token_is_active(shape, token)));
        keep((Inputs::abstains(inputs), Inputs::batch(inputs, shape, rank)));
        keep((Inputs::row(inputs, shape, token), inputs.ids(shape, token)));
    }
    keep(inputs::expert_has_row("scales", shape));
    keep(inputs::all_finite(
        "scales",
        black_box(&[0.5; 2]),
        None,
        &mut |_| core::ops::ControlFlow::Break(()),
    ));
    let untagged = Choices::untagged(&Choices::default());
    let (tag, word) = (Tag::of(u64::from(at)), u64::from(at));
    keep((Tag::call(tag), Tag::bits(tag), Tag::operator(tag)));
    keep((Tag::ahead_of(tag, Tag::of(0)), Tag::is_later(tag, Tag::of(0))));
    for begun in [Some(Begun::tagged(tag)), Begun::of_selector(word)].into_iter().flatten() {
        keep((
            Begun::tag(begun),
            Begun::read(begun, word, Wait::IDLE),
            Begun::in_window(begun, word, Wait::IDLE),
        ));
    }
    keep(hierarchy::Begun::is_reached(hierarchy::Begun::of(word, tag, any() > 0), word, Wait::IDLE));
    keep((Untagged::flag(untagged, word), Untagged::selector(untagged, word)));
    let (words, mut physical) = (black_box(&[0, 1, -1, 2]), [0; 4]);
    if let Some(map) = ExpertMap::check(shape, words, at as usize, &mut |violation| say(violation)) {
        keep((map.logical_expert_num(), ExpertMap::physical(&map, shape, rank, token, -1)));
        keep(map.check_ids(shape, given, &mut |_| core::ops::ControlFlow::Continue(())));
        map.translate(shape, rank, given.expert_ids, slice(&mut physical));
        keep(physical);
    }
}

/// Tables of a plan are the caller's: whatever their length, nothing is read or written beyond.
#[inline(never)]
fn plans(shape: &Shape, inputs: &Inputs<'_>) {
    let (rank, core, at) = (RankId(any()), CoreId(any()), any());
    let order = black_box(SendOrder::Staggered);
    keep((split::even(at, any(), at), split::even_owner(at, any(), at), split::work(shape, rank, core)));
    keep((split::publish(shape, core), split::slots(shape, rank, core), split::rows(shape, at, core)));
    keep((split::tokens(shape, rank, core), split::ranks(shape, core)));
    let share = split::dispatch(shape, rank, core);
    keep(route::share_len(&share));
    keep_all(order.items(share.moe.clone(), rank));

    keep((route::destinations(shape), route::destination_home(shape, at)));
    keep(route::destination_of(shape, rank, at));
    let pair = Pair { token: Token(at), k: at };
    let home = route::home(shape, rank, inputs, pair);
    let (mut send_status, mut slots, mut sums, mut marks) = ([0u32; 16], [0u32; 16], [0u32; 16], [0u8; 64]);
    let [send_status, slots, sums] = [&mut send_status, &mut slots, &mut sums].map(|table| slice(table));
    let marks = slice(&mut marks);
    route::walk(shape, rank, inputs, &share, send_status, slots);
    keep(table::table_len(shape, rank));
    table::mark(shape, rank, inputs, marks);
    table::add_up(shape, rank, inputs, &share, marks, send_status, slots);
    let sends = Sends::new(shape, rank, order, &share);
    let first = Sends::iter(&sends, inputs, slots).next();
    keep_all(Sends::iter(&sends, inputs, slots));
    keep(first);
    keep((shape.shared_replicas(), shape.sends_to_shared(rank, RankId(at))));
    let by_expert = ExpertSends { sends, slots, experts: &(0..at) };
    keep_all(ExpertSends::iter(&by_expert, inputs));

    keep(counts::expert_of_slot(shape, at));
    counts::transposed_prefix(send_status, at as usize, sums);
    keep(counts::prefix(
        shape,
        rank,
        core,
        [ShareSum::with(ShareSum::default(), shape, at, at, at)].into_iter(),
    ));
    permute::cumulate(send_status);
    let cumsum = Cumsum { shape, sums: send_status };
    keep((Cumsum::rows(&cumsum, ExpertId(at)), cumsum.rows_to(rank), cumsum.status(rank)));
    keep(home.map(|home| Cumsum::position(&cumsum, home, at)));
    let received = RecvCounts { shape, sums };
    keep((received.first_row(at, rank), RecvCounts::rows(&received, at, rank)));
    keep((RecvCounts::rows_from(&received, rank), received.source_of(at)));
    permute::add_gather_adds(slice(&mut [0; 16]), at as usize, sums);

    keep_all(returns::received(shape, rank, |_| *inputs));
    let row = returns::Received { local_expert: at, source: rank, pair: Pair { token: Token(at), k: at } };
    keep_all(returns::returns(shape, rank, core, order, &[row; 3]));
}

/// Where direct placement puts what it sends.
fn landings(shape: &Shape) {
    let (rank, at, half) = (RankId(any()), any(), black_box(Partition::P1));
    let receive = black_box(Receive::Overwrite { areas: 2 });
    let area = receive.area(half);
    let parts = layout::direct::Parts::of(shape, rank, area);
    let info = parts.info(at);
    keep(layout::direct::required_bytes(shape, at, receive.overwrites()));
    keep((layout::direct::Parts::row(&parts, at), info));
    keep(parts.result(at));
    let (grant, word) =
        (state::Direct::Grants, state::Direct::word(state::Direct::TokenFlags, shape, half, rank));
    keep((word, state::Direct::of(shape, word), state::Direct::pitch(shape)));
    keep(grant.entry(shape, half, rank, at));
    keep((state::core_sums(shape, CoreId(at)), row_table::is_possible(shape)));
    let table = black_box(&[0; 64]);
    keep_all(row_table::records(table, at as usize));
    keep((receive.keeps_rows(), receive.is_direct(), receive.areas(), receive.results(table)));
    keep((Receive::name(receive), receive.about(), receive.with_batches(at as usize)));
    keep_all(Receive::rows(receive, shape, at, table));
}

/// Each protocol's machines by themselves, and what all of them offer beside a step.
#[inline(never)]
fn machines(shape: &Shape, inputs: &Inputs<'_>, fabric: &mut RawFabric<'_>) {
    keep((a3::Dispatch::phase(&a3::Dispatch::new()), a3_v2::Dispatch::phase(&a3_v2::Dispatch::new())));
    keep(direct::Dispatch::phase(&direct::Dispatch::new()));
    keep(a2::Dispatch::phase(&a2::Dispatch::new()));
    keep(hierarchy::Dispatch::phase(&hierarchy::Dispatch::new()));
    keep((a3::Combine::phase(&a3::Combine::new()), direct::Combine::phase(&direct::Combine::new())));
    keep((a2::Combine::phase(&a2::Combine::new()), hierarchy::Combine::phase(&hierarchy::Combine::new())));
    let (rank, core) = (RankId(any()), CoreId(any()));
    let (mut words, mut row) = ([0; 128], [0; 1024]);
    for choices in Choices::all(shape) {
        keep((choices.receive.suits(shape), choices.needs(shape), Flags::name(choices.flags)));
        choices.receive.excluded_by(shape).for_each(keep);
        keep((
            Choices::check(choices, shape, fabric.terms()),
            Choices::keeps_apart(choices, shape),
            fabric.line(),
        ));
        keep(Terms::new(fabric.capabilities()));
        let rows = [CoreRows::most(shape, rank, core), CoreRows::of(shape, rank, core, inputs, any())];
        for rows in rows {
            keep(Outstanding::of(shape, choices, rank, core, rows).map(Outstanding::most));
        }
        keep(Outstanding::most_of_any(shape, choices));
        let Ok(mut env) = Env::new(shape, rank, core, choices, fabric.terms(), Portable) else {
            continue;
        };
        Env::set_vector(&mut env, black_box(Portable));
        let env = if any() == 0 { Env::telling_apart(Env::one_by_one(env), any()) } else { env };
        keep((
            env.effects_max(),
            env.choices(),
            protocol::scratch_words(shape),
            protocol::scratch_bytes(shape),
        ));
        let Ok(core) = env.on(shape) else { continue };
        for operator in [Operator::Dispatch, Operator::Combine] {
            let mut machine = Machine::begin(operator, &env);
            keep(Machine::phase(&machine));
            // Not to be stepped here, where the group has its own.
            if any() == 0 {
                let scratch = Scratch { words: slice(&mut words), row: slice(&mut row) };
                let mut cx = Context { core, fabric, inputs, combine_inputs: &CombineInputs::NONE, scratch };
                keep(Machine::run(&mut machine, &mut cx, any()));
                keep(Machine::awaits(&mut machine, &mut cx, &mut keep));
                keep((Machine::send(&mut machine, &mut cx, any()), Machine::has_sent(&machine, cx.core)));
                keep(Machine::resume(&mut machine, cx.core, &*cx.fabric));
            }
        }
    }
    // SAFETY: there is no memory behind it, so it reaches none.
    let nowhere = unsafe { RawFabric::new(black_box(&[]), rank, [Segment::EMPTY; Tensor::ALL.len()]) };
    keep(BehindCompletions::new(nowhere).publish(rank, Place::window(any().into()), any().into()));
    let mut gates = Gates::new(shape, &Choices::default());
    if let Ok(ticket) = Gates::begin(&mut gates, black_box(Operator::Dispatch), None) {
        keep(Ticket::operator(ticket));
        Gates::end(&mut gates, ticket);
        keep(Gates::begin(&mut gates, black_box(Operator::Combine), Some(ticket)));
    }
    keep(Ran::failed(ProtocolError::OtherMachine));
    let counts = black_box(&[0; 16][..]);
    keep((received::received_rows(shape, rank, counts), received::expert_rows(shape, rank, any(), counts)));
    if let Ok(mut cores) = Rank::<_, 2>::new(shape, rank, Choices::default(), fabric.terms(), Portable)
        && Rank::begin(&mut cores, black_box(Operator::Dispatch)).is_ok()
        && any() == 0
    {
        let scratch = Scratch { words: slice(&mut words), row: slice(&mut row) };
        keep((Rank::run(&mut cores, fabric, inputs, &CombineInputs::NONE, scratch, any()), cores.is_done()));
        keep(Rank::send(&mut cores, black_box(Operator::Combine)));
        keep(Rank::set_aside(&mut cores).and_then(|sent| Rank::resume(&mut cores, sent, fabric)));
    }
    let env = AgentEnv::new(shape, rank, SendOrder::Staggered);
    // SAFETY: there is no memory behind it, so it reaches none.
    let mut nic = unsafe { RawNic::new(black_box(&[]), rank) };
    let mut agent = Agent::new();
    keep(Agent::run(&mut agent, shape, &env, &mut nic, any()));
    keep(Agent::awaits(&mut agent, shape, &env, &mut nic, &mut keep));
}

/// The windows of a hierarchy.
fn relays(shape: &Shape) {
    let (rank, core, at, token) = (RankId(any()), CoreId(any()), any(), Token(any()));
    let half = black_box(Partition::P1);
    keep((relay::mark(at.into(), at), relay::unmark(at.into()), relay::epoch(core), relay::entered(at)));
    keep((relay::rows_done(at, core), relay::end_flag(half, at), relay::count(shape, half, at, rank)));
    let record = relay::record(shape, half, at, at);
    keep((relay::behind(record, relay::ROW), relay::record_pitch(shape)));
    keep((relay::token_bytes(shape), relay::pairs_max(shape)));
    keep((relay::near_area(), relay::dispatch_slot(shape, at, rank, at)));
    keep((relay::combine_slot(shape, at, token, at), relay::returned_at(shape, record)));
    keep((relay::gathered(shape, (half, Operator::Combine), at, at), relay::gathered_end(shape, half, at)));
    keep((relay::gathered_bytes(shape, Operator::Dispatch, at), relay::gathered_for(shape, record)));
    keep(relay::record_bytes(shape, Operator::Combine));
    keep(a2_message::Task::stream(shape, (half, Operator::Dispatch), rank, at, at));
    keep(relay::read_triple(shape, black_box(&[0; 12])));
    keep((relay::stream_start(shape, half, at), Choices::mode(&Choices::default())));
}

/// Who needs a token in a hierarchy.
#[inline(never)]
fn relayed(shape: &Shape, inputs: &Inputs<'_>) {
    let (rank, core, at, ids) = (RankId(any()), CoreId(any()), any(), inputs.expert_ids);
    keep((shape.server_ranks(), shape.servers(), shape.server_of(rank), shape.rank_on(at, at)));
    keep((plan::relay::pairs(shape, ids, at), plan::relay::streams(shape, core), shape.relay(rank, at)));
    keep(plan::relay::forwarder(shape, at, Home { rank, local_expert: at }));
    keep_all(plan::relay::across(shape, rank, ids));
    keep_all(plan::relay::inside(shape, ids));

    keep((hierarchy::scratch_words(shape), hierarchy::scratch_bytes(shape)));
}

/// Litmus programs, each over this one core's view.
#[inline(never)]
fn litmuses(fabric: &mut RawFabric<'_>) {
    for litmus in SUITES.into_iter().flat_map(|(suite, _)| suite) {
        keep(litmus.calls());
        let extent = Extent::new(any().into(), any().into(), any().into()).unwrap_or_default();
        let extent = extent.with_line(any().into());
        keep((extent.stride(), extent.state_stride()));
        keep(litmus.by_turns(any().into(), any(), |run| run.step(&mut Actor::Core(fabric))).is_ok());
        let ended = litmus.by_turns_in(extent, any().into(), any(), |run| run.step(&mut Actor::Core(fabric)));
        if let (Err(failure), [program, ..]) = (black_box(ended), litmus.programs) {
            say(&failure);
            let run = Run::new(*program, any().into()).in_extent(extent);
            say(&Run::failed(&run, black_box(Why::Unfit)));
            keep(run.to_end(&mut Actor::Core(fabric), || false).is_ok());
        }
    }
}

/// What protocols share, over a memory.
#[inline(never)]
fn words(shape: &Shape, fabric: &mut RawFabric<'_>) {
    let (rank, core) = (RankId(0), CoreId(any()));
    keep((flag::status(any()), flag::dispatch(any().into())));
    keep(flag::is_window_flag(any().into()));
    let mut epoch = any();
    keep(barrier::arrive(fabric, rank, core, &mut epoch, ShareSum::default()));
    keep((barrier::missing(fabric, shape.aiv_num(), core, epoch), barrier::sum_of(fabric, core, epoch)));
    keep((barrier::last_of(any().into(), any().into()), barrier::sum_in(any().into())));
    let word = || AtomicU64::new(any().into());
    let (arrivals, of_core) = (Arrivals::new(word()), Join::new(word(), word()));
    keep((Arrivals::arrive(&arrivals), arrivals.have_come(any().into())));
    keep((Join::arrive(&of_core, any()), of_core.is_open()));
    of_core.open();
    join::come(&word(), any().into());
    keep(join::has_come(&word(), any().into()));
    join::announce(&word(), &word(), any().into());
    keep(join::has_announced(&word(), any().into()));
    keep((fabric.quiet(), fabric.observe(Place::state(u64::from(any())))));
    black_box(fabric.cells());
}

#[inline(never)]
fn units_and_vector() {
    let (n, step) = (u64::from(any()), u64::from(any()));
    keep((units::align_up(n, step), units::div_ceil(n, step)));
    keep(units::div_rem(any(), any()));
    rows_of(&Portable);
    rows_of(&black_box(Any::default()));
    keep(Any::name(black_box(Any::default())));
    #[cfg(target_arch = "x86_64")]
    if black_box(false) {
        // SAFETY: never run, only linked.
        let (avx2, avx512) = unsafe { (Avx2::new(), Avx512::new()) };
        rows_of(&avx2);
        rows_of(&avx512);
    }
}

/// What a vector unit does, whatever the lengths are.
fn rows_of(unit: &impl Vector) {
    let (mut out, mut sums, mut scales, row) = ([0u8; 16], [0u8; 32], [0u8; 2], [0u8; 16]);
    let [out, sums, scales] = [&mut out[..], &mut sums, &mut scales].map(slice);
    let row = black_box(&row[..]);
    let (dtype, eps) = (black_box(veriep_core::shape::Dtype::F16), black_box(1e-6));
    let terms = [Term { weight: black_box(0.5), value: black_box(Value::Row(row)) }; 2];
    let terms = black_box(&terms[..]);
    keep(unit.quantise(dtype, row, None, out));
    keep(unit.quantise(dtype, row, Some(black_box(&[1.0; 8])), out));
    unit.quantise_blocks(dtype, row, out, sums);
    unit.quantise_sums(dtype, sums, out, scales);
    unit.weighted_sum(dtype, terms, true, cells(out));
    unit.accumulate(dtype, terms, true, sums);
    unit.narrow(dtype, sums, out);
    unit.normalise(dtype, sums, unit.rstd(sums, eps), row, out);
    unit.add(dtype, row, row, out);
}

/// A message that goes nowhere.
fn say(what: &dyn core::fmt::Display) {
    struct Nowhere;
    impl core::fmt::Write for Nowhere {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            keep(text);
            Ok(())
        }
    }
    keep(write!(Nowhere, "{what}"));
}

/// Every message that nothing else here says.
#[inline(never)]
fn messages() {
    let (rank, core, at) = (RankId(any()), CoreId(any()), any());
    let wait = black_box(Wait::new(Flag::Block, rank, &[at]));
    say(&black_box(ProtocolError::Internal("")));
    say(&wait);
    say(&black_box(Place::state(at.into())));
    say(&black_box(NotFinite { element: at }));
    say(&black_box(Fault::new(rank, Place::state(0), at.into()).with_code(at.cast_signed())));
    let busy = black_box(Fault::busy(rank, Place::state(0), at.into()));
    say(&busy);
    black_box(busy.is_busy());
    for id in [&rank as &dyn core::fmt::Display, &core, &ExpertId(at), &Token(at)] {
        say(id);
    }
}
