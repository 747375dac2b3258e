//! The joins of a rank's cores, and the meetings of processes: `veriep_core::sync::join`, which drivers run, over loom's words.

use super::domain::together;
use crate::defects::Defect;
use ::loom::cell::UnsafeCell;
use ::loom::sync::atomic::{AtomicU64, Ordering};
use ::loom::thread;
use std::rc::Rc;
use veriep_core::sync::join::{Arrivals, Atomic, Join, announce, come, has_announced, has_come};
use veriep_core::units::CoreId;

/// A word as the defect has it.
#[derive(Debug)]
struct Word {
    atomic: AtomicU64,
    defect: Defect,
}

impl Word {
    fn new(defect: Defect) -> Self {
        Self { atomic: AtomicU64::new(0), defect }
    }

    fn bent(&self, by: Defect, ordering: Ordering) -> Ordering {
        if self.defect == by { Ordering::Relaxed } else { ordering }
    }
}

impl Atomic for Word {
    fn load(&self, ordering: Ordering) -> u64 {
        self.atomic.load(self.bent(Defect::RelaxedLook, ordering))
    }

    fn store(&self, word: u64, ordering: Ordering) {
        self.atomic.store(word, self.bent(Defect::RelaxedOpen, ordering));
    }

    fn count(&self, ordering: Ordering) -> u64 {
        self.atomic.fetch_add(1, self.bent(Defect::RelaxedArrival, ordering))
    }
}

/// The joins of a rank, one after each of its operators. To be made inside a model.
#[derive(Debug)]
pub(super) struct Joins {
    defect: Defect,
    cores: u32,
    /// By operator.
    joins: Vec<Join<Word>>,
}

impl Joins {
    pub(super) fn new(defect: Defect, cores: u32, operators: usize) -> Self {
        let joins = (0..operators).map(|_| Join::new(Word::new(defect), Word::new(defect))).collect();
        Self { defect, cores, joins }
    }

    /// `core` has ended operator number `n`. The last one runs the `experts`, who read what all cores have put out; the others
    /// wait for that.
    pub(super) fn after(&self, n: usize, core: CoreId, experts: impl FnOnce()) {
        if self.defect == Defect::NoJoin {
            if core.0 == 0 {
                experts();
            }
            return;
        }
        let join = &self.joins[n];
        if join.arrive(self.cores) {
            experts();
            join.open();
            return;
        }
        while !join.is_open() {
            thread::yield_now();
        }
    }
}

/// How those who meet again and again do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meet {
    /// Each says in a word of its own how often it has come, as processes do.
    Words,
    /// A count of all arrivals, as threads of one process do.
    Count,
}

/// A row for each meeting whose number is even, and for each that is odd.
type Rows = [UnsafeCell<u64>; 2];

/// What those who meet share.
struct Place {
    own: Vec<Word>,
    all: Arrivals<Word>,
    rows: Vec<Rows>,
}

/// The body of a model: so many meet so often. Before each meeting each writes a row, which the others read after it; after the
/// next one it may be written again.
pub fn meetings(
    meet: Meet,
    members: usize,
    meetings: u64,
    defect: Defect,
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let place = Rc::new(Place {
            own: (0..members).map(|_| Word::new(defect)).collect(),
            all: Arrivals::new(Word::new(defect)),
            rows: (0..members).map(|_| [UnsafeCell::new(0), UnsafeCell::new(0)]).collect(),
        });
        let mut runs = (0..members).map(|me| {
            let place = Rc::clone(&place);
            move || (1..=meetings).for_each(|nth| place.meet(meet, me, nth))
        });
        let here = runs.next();
        together(here, runs);
    }
}

impl Place {
    fn meet(&self, meet: Meet, me: usize, nth: u64) {
        let members = self.own.len() as u64;
        self.row(me, nth).with_mut(|_| ());
        match meet {
            Meet::Words => come(&self.own[me], nth),
            Meet::Count => _ = self.all.arrive(),
        }
        let have_come = || match meet {
            Meet::Words => self.own.iter().all(|of| has_come(of, nth)),
            Meet::Count => self.all.have_come(nth * members),
        };
        while !have_come() {
            thread::yield_now();
        }
        (0..self.own.len()).for_each(|member| self.row(member, nth).with(|_| ()));
    }

    fn row(&self, member: usize, nth: u64) -> &UnsafeCell<u64> {
        &self.rows[member][usize::from(nth % 2 == 1)]
    }
}

/// What those share who announce calls.
struct Board {
    numbers: [Word; 2],
    calls: Word,
    /// What each writes about its call.
    about: [UnsafeCell<u64>; 2],
    /// How many have seen the other one's call before they began.
    seen: AtomicU64,
}

/// The body of a model: two processes announce a call each and look at the other one's. At least one sees it, and what was
/// written about it.
pub fn announcements(defect: Defect) -> impl Fn() + Send + Sync + 'static {
    move || {
        let board = Rc::new(Board {
            numbers: [(); 2].map(|()| Word::new(defect)),
            calls: Word::new(defect),
            about: [(); 2].map(|()| UnsafeCell::new(0)),
            seen: AtomicU64::new(0),
        });
        let mut runs = (0..2).map(|me: usize| {
            let board = Rc::clone(&board);
            move || {
                board.about[me].with_mut(|_| ());
                announce(&board.numbers[me], &board.calls, 1);
                if has_announced(&board.numbers[1 - me], 1) {
                    board.about[1 - me].with(|_| ());
                    board.seen.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let here = runs.next();
        together(here, runs);
        assert!(board.seen.load(Ordering::Relaxed) > 0, "both began without the other's call");
    }
}
