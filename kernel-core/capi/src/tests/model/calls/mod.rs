//! For each function of the interface: makes the call, and says by the core's own functions what must come of it.

mod agents;
mod came;
mod cores;
mod gates;
mod memories;
mod plans;
mod shapes;

pub(super) use agents::{agent_awaits, agent_new, agent_step};
pub(super) use cores::{core_awaits, core_begin, core_new, core_resume, core_send, core_step};
pub(super) use gates::{gates_begin, gates_end, gates_new};
pub(super) use memories::fabric_can;
pub(super) use plans::{
    expert_map_new, expert_map_translate, has_agents, inputs_batch, inputs_check, plan_sends, received_rows,
};
pub(super) use shapes::{
    config_default, fingerprints_compare, fingerprints_new, shape_areas, shape_new, shape_sizes,
    shape_survivors,
};

use super::Args;
use super::dice::Dice;
use super::structures::Fault;
use super::world::World;
use crate::codes::*;
use crate::types::*;
use core::slice;
use kernel_core::place::Region;
use kernel_core::plan::order::SendOrder;
use kernel_core::shape::Shape;
use std::vec::Vec;

/// By their codes.
const ORDERS: [SendOrder; 4] =
    [SendOrder::Plain, SendOrder::Staggered, SendOrder::Destinations, SendOrder::Stride];

/// The shape that a call is given, and the object.
fn shape_of(world: &mut World, args: &mut Args, name: &'static str) -> (*mut veriep_shape, Shape) {
    let (right, shape) = match &world.of_left {
        Some(left) if args.uses_left => (&raw mut *world.left, left.clone()),
        _ => (&raw mut *world.shape, world.of.clone()),
    };
    (args.object(name, right, &raw const *world.blank), shape)
}

fn rank_of(world: &mut World, args: &mut Args, shape: &Shape) -> u32 {
    let rank = world.seats[args.seat].rank.min(shape.ep_world_size() - 1);
    args.number("rank", rank, shape.ep_world_size())
}

/// The choices of a call: those of the group, or others.
fn choices_of(world: &mut World, args: &mut Args, to: &mut veriep_choices) -> *const veriep_choices {
    *to = world.choices;
    if world.dice.once_in(6) {
        to.receive = world.dice.below(6) as u32;
    }
    to.order = args.number("choices.order", to.order, 4);
    to.flags = args.number("choices.flags", to.flags, 2);
    to.receive = args.number("choices.receive", to.receive, 6);
    let lowest_or_highest = if args.fault("choices.stage") == Some(Fault::OneShort) { 2 } else { to.stage };
    to.stage = args.number("choices.stage", lowest_or_highest, 4);
    to.checked = args.number("choices.checked", to.checked, 2);
    to.slots = args.number("choices.slots", to.slots, 2);
    args.pointer("choices", to)
}

/// A list of the caller's: where, how much room, where its length goes; and what was there.
struct List<T> {
    to: *mut T,
    room: usize,
    count: *mut usize,
    was: Vec<u64>,
}

impl<T> List<T> {
    /// With room for as many as there are, or one less, or one more, or none.
    fn new(world: &mut World, args: &mut Args, entries: usize) -> Self {
        Self::new_in(&mut world.dice, &mut world.list, &raw mut *world.count, args, entries)
    }

    fn new_in(
        dice: &mut Dice,
        list: &mut Vec<u64>,
        count: *mut usize,
        args: &mut Args,
        entries: usize,
    ) -> Self {
        let most = 8 * list.len() / size_of::<T>();
        let mut room = dice.pick(&[0, entries.saturating_sub(1), entries, entries + 1, most]).min(most);
        match args.fault("out") {
            Some(Fault::Huge) => room = usize::MAX,
            Some(_) => room = room.max(1),
            None => {}
        }
        let was = list.clone();
        let to = args.pointer("out", list.as_mut_ptr().cast());
        Self { to, room, count: args.pointer("count", count), was }
    }

    /// Entries for which there is room are these, and nothing else was written. Returns the code.
    fn check(&self, world: &World, all: &[T]) -> i32 {
        let written = all.len().min(self.room) * size_of::<T>();
        // SAFETY: plain structures without gaps.
        let (is, was, must) = unsafe {
            (
                bytes_of(&world.list),
                bytes_of(&self.was),
                slice::from_raw_parts(all.as_ptr().cast::<u8>(), written),
            )
        };
        assert_eq!(&is[..written], must, "entries of the list");
        assert_eq!(is[written..], was[written..], "the list beyond what was to be written");
        assert_eq!(*world.count, all.len(), "the number of entries");
        if all.len() <= self.room { VERIEP_OK } else { VERIEP_E_SHORT }
    }
}

unsafe fn bytes_of<T>(them: &[T]) -> &[u8] {
    // SAFETY: of a plain type.
    unsafe { slice::from_raw_parts(them.as_ptr().cast(), size_of_val(them)) }
}

/// Plain structures have the same bytes.
fn assert_same<T>(is: &T, must: &T, what: &str) {
    // SAFETY: plain structures.
    let (is, must) = unsafe { (bytes_of(slice::from_ref(is)), bytes_of(slice::from_ref(must))) };
    assert_eq!(is, must, "{what}");
}

fn region_code(region: Region) -> u32 {
    match region {
        Region::State => 0,
        Region::Window => 1,
        Region::WindowOut => 2,
        Region::TpState => 3,
        Region::TpWindow => 4,
        Region::Output(tensor) => 16 + tensor as u32,
    }
}
