//! Records the reads of a step: everything that could let a pending machine move.

use super::middleware::Middleware;
use super::nic::{Nic, Post, Transfer};
use super::{Fabric, Fault};
use crate::place::Place;
use crate::units::RankId;
use core::cell::Cell;
use core::fmt;

/// A condition that a pending machine or agent awaits. There may be several: machines that poll their roles in turn wait
/// for several words at once. [`Wait`](super::Wait) names one cause, for people; these are for drivers that sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Awaited {
    /// A change of this word, in any region of this rank's memory.
    Word(Place),
    /// A change in this number of bytes of this rank.
    Bytes(Place, u64),
    /// [`quiet`](Fabric::quiet) returns true.
    Quiet,
    /// The interface has [room](Post::Busy) for another transfer, or the fabric for an [effect](Fault::is_busy).
    Room,
}

/// A fabric or a network interface that reports all reads.
pub(crate) struct Watch<'w, F: ?Sized> {
    inner: &'w mut F,
    tell: Cell<Option<&'w mut dyn FnMut(Awaited)>>,
}

impl<'w, F: ?Sized> Watch<'w, F> {
    pub(crate) fn new(inner: &'w mut F, tell: &'w mut dyn FnMut(Awaited)) -> Self {
        Self { inner, tell: Cell::new(Some(tell)) }
    }

    fn tell(&self, what: Awaited) {
        if let Some(tell) = self.tell.take() {
            tell(what);
            self.tell.set(Some(tell));
        }
    }
}

impl<F: Fabric + ?Sized> Watch<'_, F> {
    /// Makes a call that has an effect.
    fn effect(&mut self, call: impl FnOnce(&mut F) -> Result<(), Fault>) -> Result<(), Fault> {
        let done = call(self.inner);
        if done.is_err_and(|fault| fault.is_busy()) {
            self.tell(Awaited::Room);
        }
        done
    }
}

impl<F: ?Sized> fmt::Debug for Watch<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

impl<F: Fabric + ?Sized> Middleware for Watch<'_, F> {
    crate::around! { inner: F, its capabilities }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.effect(|inner| inner.put(to, at, row, tail))
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.effect(|inner| inner.publish(to, at, word))
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        self.effect(|inner| inner.send(to, at, message))
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.effect(|inner| inner.store(at, word))
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.effect(|inner| inner.write(at, bytes))
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.effect(|inner| inner.deliver(output, from, len))
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        self.tell(Awaited::Quiet);
        self.inner.quiet()
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.tell(Awaited::Word(at));
        self.inner.observe(at)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.tell(Awaited::Bytes(at, len));
        self.inner.bytes(at, len)
    }
}

impl<N: Nic + ?Sized> Nic for Watch<'_, N> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.tell(Awaited::Word(at));
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        self.tell(Awaited::Room);
        self.inner.post(transfer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::Capabilities;
    use crate::place::{Region, Tensor};
    use crate::units::RankId;
    use alloc::vec::Vec;
    use core::cell::RefCell;

    /// Notes what it is asked for, and has nothing.
    #[derive(Default)]
    struct Asked(RefCell<Vec<Awaited>>);

    impl Asked {
        fn note(&self, what: Awaited) -> Fault {
            self.0.borrow_mut().push(what);
            Fault::new(RankId(0), Place::state(0), 0)
        }
    }

    impl Fabric for Asked {
        fn capabilities(&self) -> Capabilities {
            Capabilities::all()
        }

        fn put(&mut self, _: RankId, _: Place, _: &[u8], _: &[u8]) -> Result<(), Fault> {
            Ok(())
        }

        fn publish(&mut self, _: RankId, _: Place, _: u64) -> Result<(), Fault> {
            Ok(())
        }

        fn quiet(&mut self) -> Result<bool, Fault> {
            self.note(Awaited::Quiet);
            Ok(false)
        }

        fn observe(&self, at: Place) -> Result<u64, Fault> {
            self.note(Awaited::Word(at));
            Ok(0)
        }

        fn store(&mut self, _: Place, _: u64) -> Result<(), Fault> {
            Ok(())
        }

        fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
            Err(self.note(Awaited::Bytes(at, len)))
        }

        fn write(&mut self, _: Place, _: &[u8]) -> Result<(), Fault> {
            Ok(())
        }

        fn deliver(&mut self, _: Place, _: Place, _: u64) -> Result<(), Fault> {
            Ok(())
        }
    }

    impl Nic for Asked {
        fn observe(&self, at: Place) -> Result<u64, Fault> {
            self.note(Awaited::Word(at));
            Ok(0)
        }

        fn post(&mut self, _: &Transfer) -> Result<Post, Fault> {
            self.note(Awaited::Room);
            Ok(Post::Busy)
        }
    }

    /// Whatever a pending machine has read could let it move once it changes, so a driver that sleeps must know all of it.
    #[test]
    fn every_read_of_a_core_and_of_an_agent_is_told_in_order_and_nothing_else_is() {
        let (mut asked, mut told) = (Asked::default(), Vec::new());
        let mut tell = |what| told.push(what);
        let (at, output) = (Place { region: Region::TpState, offset: 24 }, Place::output(Tensor::XOut, 8));
        let mut watch = Watch::new(&mut asked, &mut tell);
        let fabric: &mut dyn Fabric = &mut watch;
        for offset in [0, 8, 1 << 40] {
            let _ = fabric.observe(Place { offset, ..at });
            let _ = fabric.bytes(Place::window(offset), offset + 3);
            let _ = fabric.quiet();
            let _ = fabric.put(RankId(1), at, &[1], &[2]);
            let _ = fabric.publish(RankId(1), at, 3);
            let _ = fabric.store(at, 4);
            let _ = fabric.write(output, &[5]);
            let _ = fabric.deliver(output, at, 6);
        }
        let transfer = Transfer { to: RankId(1), from: Place::window_out(0), at: Place::window(0), len: 8 };
        let mut nic = Watch::new(&mut asked, &mut tell);
        let _ = Nic::observe(&nic, at);
        let _ = nic.post(&transfer);
        assert_eq!(told.len(), 11);
        assert_eq!(told, asked.0.into_inner());
    }
}
