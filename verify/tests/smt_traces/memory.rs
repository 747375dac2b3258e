//! Events of a simulated group as events of the model: a chooser observes the landings, a fabric observes the cores.

use crate::windows::Windows;
use core::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use veriep_core::fabric::{Awaited, Capabilities, Fabric, Fault};
use veriep_core::layout::state::{Operator as Of, PARTITION};
use veriep_core::place::{Place, Region};
use veriep_core::protocol::{Choices, Operator};
use veriep_core::shape::Shape;
use veriep_core::sim::chooser::{Actor, Choice, Chooser, Lands, Quiet};
use veriep_core::sim::duty::{Double, Duty};
use veriep_core::sim::flight::{Flight, FlightId, FlightKind};
use veriep_core::sim::seeded::Seeded;
use veriep_core::units::{CoreId, RankId};
use veriep_verify::smt::model::Step;
use veriep_verify::smt::schedule::Schedule;
use veriep_verify::smt::slots;
use veriep_verify::smt::trace::Event;

/// What has happened, and who is where.
pub(crate) struct Log<'s> {
    pub(crate) shape: &'s Shape,
    pub(crate) choices: Choices,
    pub(crate) schedule: Schedule,
    pub(crate) duty: Option<Duty>,
    pub(crate) trace: Vec<Event>,
    /// Operators that each core has ended.
    pub(crate) at: BTreeMap<Actor, u32>,
    /// Cores that are quiet, by rank and operator.
    quiet: BTreeSet<(RankId, u32, CoreId)>,
    pub(crate) windows: Windows,
    /// Flags of windows that were seen.
    pub(crate) seen: BTreeSet<Event>,
}

pub(crate) type Shared<'s> = Rc<RefCell<Log<'s>>>;

impl<'s> Log<'s> {
    pub(crate) fn new(
        shape: &'s Shape,
        choices: Choices,
        schedule: Schedule,
        duty: Option<Duty>,
        windows: Windows,
    ) -> Shared<'s> {
        let (trace, at, quiet, seen) = (Vec::new(), BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Rc::new(RefCell::new(Self { shape, choices, schedule, duty, trace, at, quiet, windows, seen }))
    }

    pub(crate) fn n(&self, core: Actor) -> u32 {
        self.at.get(&core).copied().unwrap_or(0)
    }

    /// Which slot a place of `rank` belongs to: kind, partition, number; `None` for other words.
    fn slot(&self, rank: RankId, at: Place) -> Option<(Operator, u32, usize)> {
        let size = match at.region {
            Region::State if at.offset < 2 * PARTITION => PARTITION,
            Region::Window => self.shape.window_bytes() / 2,
            _ => return None,
        };
        let (kind, slot) = slots::a3(self.shape, self.choices, rank, at.region, at.offset % size)?;
        Some((kind, (at.offset / size) as u32, slot))
    }

    /// The event of touching a slot of `rank` in operator `n`. The machines' own partition must be the model's.
    fn event(&self, step: Step, rank: RankId, at: Place, n: u32) -> Option<Event> {
        let at = self.duty.as_ref().map_or(at, |duty| duty.place(self.shape, at));
        let (kind, partition, slot) = self.slot(rank, at)?;
        let of_model = (self.schedule.operator(n), self.schedule.partition(n));
        let folded = matches!(self.duty, Some(Duty::Second(_)));
        assert!(folded || (kind, partition) == of_model, "{step} in operator {n} at {at}");
        Some(Event { step, rank: rank.index(), slot, n })
    }

    pub(crate) fn whole(&mut self, step: Step, rank: RankId, n: u32) {
        self.trace.push(Event { step, rank: rank.index(), slot: 0, n });
    }

    fn record(&mut self, step: Step, rank: RankId, at: Place, n: u32) {
        let event = self.event(step, rank, at, n);
        self.trace.extend(event);
    }
}

/// Both partitions of a kind as the same memory.
pub(crate) const fn one_partition(kind: Operator) -> Duty {
    Duty::Second(Double::Partition(match kind {
        Operator::Dispatch => Of::Dispatch,
        Operator::Combine => Of::Combine,
    }))
}

/// A seeded chooser whose landings are events.
pub(crate) struct Traced<'s> {
    pub(crate) inner: Seeded,
    pub(crate) log: Shared<'s>,
    /// In which operator flights were issued.
    pub(crate) issued: BTreeMap<FlightId, u32>,
}

impl Chooser for Traced<'_> {
    fn next(&mut self) -> Option<Choice> {
        self.inner.next()
    }

    fn issued(&mut self, flight: FlightId, what: &Flight) -> Lands {
        let n = match what.kind {
            FlightKind::Transfer(_) => self.log.borrow_mut().posts(what.from.member),
            _ => self.log.borrow().n(what.from),
        };
        self.issued.insert(flight, n);
        self.inner.issued(flight, what)
    }

    fn cut(&mut self, kind: FlightKind, len: u64, cuts: &mut Vec<u64>) {
        self.inner.cut(kind, len, cuts);
    }

    fn may_land(&mut self, flight: FlightId, what: &Flight) {
        self.inner.may_land(flight, what);
    }

    fn landed(&mut self, flight: FlightId, what: &Flight, at: Place, bytes: u64, _: bool) {
        let n = self.issued.get(&flight).copied().unwrap_or(0);
        let mut log = self.log.borrow_mut();
        if log.is_a2() {
            match what.kind {
                FlightKind::Transfer(_) => log.arrived(what.to, at, bytes, n),
                FlightKind::Store => log.stores(what.from, at, n, -1),
                _ => {}
            }
            return;
        }
        let step = match what.kind {
            FlightKind::Put => Step::Write,
            FlightKind::Publish => Step::Land,
            _ => Step::Clear,
        };
        log.record(step, what.to, at, n);
    }

    fn quiet(&mut self, core: Actor, all: bool) -> Quiet {
        self.inner.quiet(core, all)
    }

    fn may_step(&mut self, actor: Actor) {
        self.inner.may_step(actor);
    }

    fn sleeps(&mut self, actor: Actor, on: &[Awaited]) {
        self.inner.sleeps(actor, on);
    }
}

/// A core's fabric whose calls are events.
pub(crate) struct Logged<'f, 's> {
    pub(crate) inner: &'f mut dyn Fabric,
    pub(crate) log: &'f Shared<'s>,
    pub(crate) core: Actor,
}

impl Logged<'_, '_> {
    fn record(&self, step: Step, at: Place) {
        let log = &mut *self.log.borrow_mut();
        let n = log.n(self.core);
        match (log.is_a2(), step) {
            (false, _) => log.record(step, self.core.member, at, n),
            (true, Step::Read) => log.read(self.core, at),
            (true, _) => log.stores(self.core, at, n, 1),
        }
    }
}

impl Fabric for Logged<'_, '_> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn line(&self) -> u64 {
        self.inner.line()
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.inner.put(to, at, row, tail)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.inner.publish(to, at, word)
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let quiet = self.inner.quiet()?;
        if quiet {
            let log = &mut *self.log.borrow_mut();
            let (rank, n) = (self.core.member, log.n(self.core));
            if log.quiet.insert((rank, n, self.core.core)) {
                if log.is_a2() {
                    log.clears(self.core, &*self.inner);
                }
                let cores = (0..log.shape.aiv_num()).map(CoreId);
                if cores.into_iter().all(|core| log.quiet.contains(&(rank, n, core))) {
                    log.whole(Step::Quiet, rank, n);
                    if log.is_a2() {
                        log.own_window(rank, n);
                    }
                }
            }
        }
        Ok(quiet)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let word = self.inner.observe(at)?;
        let log = &mut *self.log.borrow_mut();
        if log.is_a2() {
            log.observed(self.core, at, word);
        }
        Ok(word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.record(Step::Take, at);
        self.inner.store(at, word)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.record(Step::Read, at);
        self.inner.bytes(at, len)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.inner.write(at, bytes)
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.record(Step::Read, from);
        self.inner.deliver(output, from, len)
    }
}
