//! A run of a few ranks that goes wrong, found by z3 and told as a timeline.
//!
//! Every step of a finite instance happens at most once, and its guard only asks what has happened before, so
//! a run is an assignment of times: one integer per step, `NEVER` if it does not happen. z3 chooses times and
//! traffic; the result is shrunk and replayed by [`Run`], which knows the guards by itself.

use super::model::Step;
use super::obligation::Clears;
use super::schedule::Schedule;
use super::trace::{Event, Expected, Instance, Run, Wrong};
use super::z3::{self, Verdict};
use core::fmt::{self, Write};
use std::collections::BTreeMap;
use veriep_core::protocol::Operator;

/// The time of what does not happen; the harm is done right before it.
const NEVER: i64 = 1000;

/// Who sends to whom in combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// One token per rank with one expert, on any rank or on none: z3 chooses.
    Free,
    /// Every rank expects a row of every rank.
    Full,
}

/// Where to look.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    pub schedule: Schedule,
    pub ranks: usize,
    pub operators: u32,
    pub traffic: Traffic,
    pub clears: Clears,
    /// Guards that are left out, by name: `join`, `clears`, `hush` or `waits`.
    pub dropped: &'static [&'static str],
}

/// A run that goes wrong in its last step.
#[derive(Clone, Debug)]
pub struct Timeline {
    pub instance: Instance,
    /// Steps in order.
    pub events: Vec<Event>,
    pub wrong: Wrong,
}

impl Search {
    /// Looks for a run in which a flag is lost or a row of combine is overwritten.
    ///
    /// # Errors
    /// z3 is missing, or its answer is not a run.
    pub fn run(&self) -> Result<Option<Timeline>, String> {
        let answer = z3::run(&self.script())?;
        match answer.verdicts.as_slice() {
            [Verdict::Unsat] => Ok(None),
            [Verdict::Sat] => self.read(&answer.text).map(Some),
            other => Err(format!("z3 says {other:?}")),
        }
    }

    /// All slots with their operators.
    fn slots(&self) -> impl Iterator<Item = (usize, usize, u32)> + '_ {
        let per_rank = move |n| match self.traffic {
            Traffic::Free if !self.schedule.waits_for_all(n) => 1,
            _ => self.ranks,
        };
        (0..self.operators)
            .flat_map(move |n| (0..self.ranks).flat_map(move |s| (0..per_rank(n)).map(move |j| (s, j, n))))
    }

    /// Every step that may happen.
    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for n in 0..self.operators {
            for rank in 0..self.ranks {
                let whole = |step| Event { step, rank, slot: 0, n };
                events.extend([whole(Step::Begin), whole(Step::End)]);
                if self.schedule.waits_for_all(n) {
                    events.push(whole(Step::Quiet));
                }
            }
        }
        for (rank, slot, n) in self.slots() {
            events.extend([Step::Land, Step::Take].map(|step| Event { step, rank, slot, n }));
            if self.clears == Clears::Late {
                events.push(Event { step: Step::Clear, rank, slot, n });
            }
        }
        events
    }

    fn script(&self) -> String {
        let mut text = String::new();
        for event in self.events() {
            let name = time(&event);
            let _ = writeln!(text, "(declare-const {name} Int) (assert (<= 0 {name} {NEVER}))");
        }
        for (s, j, n) in self.slots() {
            let source = if self.is_free(n) {
                let _ = writeln!(text, "(declare-const source_{s}_{j}_{n} Int)");
                let _ = writeln!(text, "(assert (< -1 source_{s}_{j}_{n} {}))", self.ranks);
                "true"
            } else {
                let _ = writeln!(text, "(define-fun source_{s}_{j}_{n} () Int {j})");
                "false"
            };
            let _ = writeln!(text, "(declare-const expects_{s}_{j}_{n} Bool)");
            let _ = writeln!(text, "(assert (or {source} expects_{s}_{j}_{n}))");
        }
        for event in self.events() {
            for (guard, before) in self.guards(&event) {
                if !self.dropped.contains(&guard) {
                    let e = time(&event);
                    let _ = writeln!(text, "(assert (=> (< {e} {NEVER}) {before})) ; {guard}");
                }
            }
        }
        let _ = writeln!(text, "(assert (or{}))\n(check-sat)", self.harms());
        let traffic = self.slots().map(|(s, j, n)| format!("expects_{s}_{j}_{n} source_{s}_{j}_{n}"));
        let times = self.events().into_iter().map(|event| time(&event));
        let wanted: Vec<_> = traffic.chain(times).collect();
        let _ = writeln!(text, "(get-value ({}))", wanted.join(" "));
        text
    }

    fn is_free(&self, n: u32) -> bool {
        self.traffic == Traffic::Free && !self.schedule.waits_for_all(n)
    }

    /// What must have happened before a step.
    fn guards(&self, event: &Event) -> Vec<(&'static str, String)> {
        let Event { step, rank, slot, n } = *event;
        let e = time(event);
        let at = |step, rank, slot, n| time(&Event { step, rank, slot, n });
        let after = |step: Step| format!("(< {} {e})", at(step, rank, slot, n));
        let begun = ("begun", format!("(< {} {e})", at(Step::Begin, rank, 0, n)));
        let inside = ("inside", format!("(< {e} {})", at(Step::End, rank, 0, n)));
        let own = |n| self.slots().filter(move |s| s.0 == rank && s.2 == n);
        let expects = format!("expects_{rank}_{slot}_{n}");
        match step {
            Step::Begin if n == 0 => vec![],
            Step::Begin => {
                let (began, ended) = (at(Step::Begin, rank, 0, n - 1), at(Step::End, rank, 0, n - 1));
                vec![("in order", format!("(< {began} {e})")), ("join", format!("(< {ended} {e})"))]
            }
            Step::Quiet if self.clears != Clears::Late => vec![begun, inside],
            Step::Quiet => {
                let cleared = (0..n).flat_map(own).map(|(s, j, m)| {
                    let (take, clear) = (at(Step::Take, s, j, m), at(Step::Clear, s, j, m));
                    ("clears", format!("(=> (< {take} {e}) (< {clear} {e}))"))
                });
                cleared.chain([begun, inside]).collect()
            }
            Step::Land => {
                let sent = (0..self.ranks).flat_map(|r| {
                    let from = |step| {
                        let sent = at(step, r, 0, n);
                        format!("(=> (= source_{rank}_{slot}_{n} {r}) (< {sent} {e}))")
                    };
                    let hush = self.schedule.waits_for_all(n).then(|| ("hush", from(Step::Quiet)));
                    [Some(("sent", from(Step::Begin))), hush].into_iter().flatten()
                });
                sent.chain([("expected", expects)]).collect()
            }
            Step::Take => vec![begun, inside, ("expected", expects), ("flag", after(Step::Land))],
            Step::Clear => vec![("issued", after(Step::Take))],
            Step::End => {
                let waits = own(n).map(|(s, j, n)| {
                    ("waits", format!("(=> expects_{s}_{j}_{n} (< {} {e}))", at(Step::Take, s, j, n)))
                });
                let quiet = format!("(< {} {e})", at(Step::Quiet, rank, 0, n));
                let speaks = self.schedule.waits_for_all(n).then_some(("speaks", quiet));
                waits.chain(speaks).chain([begun]).collect()
            }
            Step::Write | Step::Read => vec![],
        }
    }

    /// Any flag or row that arrives where the one before it is still in use.
    fn harms(&self) -> String {
        let mut harms = String::new();
        for (s, j, n) in self.slots() {
            let both = |m: u32| format!("expects_{s}_{j}_{m} expects_{s}_{j}_{n}");
            for m in (0..n).filter(|&m| self.schedule.reuse(m, n)) {
                let not_yet = |step, slot| {
                    let name = time(&Event { step, rank: s, slot, n: m });
                    format!("(= {name} {NEVER})")
                };
                let land = time(&Event { step: Step::Land, rank: s, slot: j, n });
                let late = match self.clears {
                    // One core's writes to one word keep their order: a rank's own flag may be safe from its
                    // own late clear. Looking at other ranks' flags only, nothing depends on that.
                    Clears::Late => format!("{} (not (= source_{s}_{j}_{n} {s}))", not_yet(Step::Clear, j)),
                    Clears::Prompt => not_yet(Step::Take, j),
                    Clears::Epochs => not_yet(Step::End, 0),
                };
                let _ = write!(harms, "\n (and {} (< {land} {NEVER}) {late})", both(m));
                if !self.schedule.waits_for_all(n) {
                    let ended = not_yet(Step::End, 0);
                    let _ = write!(harms, "\n (and {} (< {land} {NEVER}) {ended})", both(m));
                }
            }
        }
        harms
    }

    /// Reads z3's values, replays and shrinks them.
    fn read(&self, text: &str) -> Result<Timeline, String> {
        let values = values(text);
        let number = |name: &str| values.get(name).and_then(|v| v.parse::<i64>().ok()).unwrap_or(NEVER);
        let mut expected = vec![vec![vec![None; self.ranks]; self.ranks]; self.operators as usize];
        for (s, j, n) in self.slots() {
            if values.get(&format!("expects_{s}_{j}_{n}")).is_some_and(|v| v == "true") {
                let source = number(&format!("source_{s}_{j}_{n}")) as usize;
                // Rows are only looked at in combine: what is lost in dispatch is a flag.
                let quiets = self.schedule.waits_for_all(n);
                expected[n as usize][s][j] =
                    Some(Expected { source, carries: !quiets, quiets, ..Expected::default() });
            }
        }
        let instance = Instance { schedule: self.schedule, clears: self.clears, expected };
        let mut events: Vec<_> = self.events().into_iter().map(|e| (number(&time(&e)), e)).collect();
        events.retain(|(time, _)| *time < NEVER);
        events.sort();
        // A row may arrive whenever its flag may; so the harm shows at the flag or right before it.
        let events = events.into_iter().flat_map(|(_, e)| {
            let row = Event { step: Step::Write, ..e };
            let carries = instance.expected(e.rank, e.slot, e.n).is_some_and(|e| e.carries);
            (e.step == Step::Land && carries).then_some(row).into_iter().chain([e])
        });
        let events: Vec<_> = events.collect();
        let (events, wrong) = self.goes_wrong(&instance, &events).ok_or_else(|| {
            let wrong = self.replay(&instance, &events);
            format!("z3's timeline is not a harmful run of the model: {wrong:?}")
        })?;
        let events = self.shrink(&instance, events);
        Ok(Timeline { instance, events, wrong })
    }

    fn replay(&self, instance: &Instance, events: &[Event]) -> Option<(usize, Wrong)> {
        let mut run = Run::new(instance);
        run.dropped = self.dropped;
        events.iter().enumerate().find_map(|(i, &event)| Some((i, run.take(event).err()?)))
    }

    /// The events up to the first harm, if the model can take all of them.
    fn goes_wrong(&self, instance: &Instance, events: &[Event]) -> Option<(Vec<Event>, Wrong)> {
        match self.replay(instance, events) {
            Some((i, wrong @ Wrong::Harmful(..))) => Some((events[..=i].to_vec(), wrong)),
            _ => None,
        }
    }

    /// Leaves out whatever the harm does not need.
    fn shrink(&self, instance: &Instance, mut events: Vec<Event>) -> Vec<Event> {
        for i in (0..events.len() - 1).rev() {
            let mut fewer = events.clone();
            fewer.remove(i);
            if let Some((kept, _)) = self.goes_wrong(instance, &fewer)
                && kept.len() == fewer.len()
            {
                events = fewer;
            }
        }
        events
    }
}

/// The name of a step's time.
fn time(event: &Event) -> String {
    let Event { step, rank, slot, n } = event;
    format!("{step}_{rank}_{slot}_{n}")
}

/// The values of a `get-value`: `((name value) ...)`, where a value may be `(- 1)`.
fn values(text: &str) -> BTreeMap<String, String> {
    let words = text.replace(['(', ')'], " ").replace("- ", "-");
    let words: Vec<_> = words.split_whitespace().collect();
    words.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |n| match self.instance.schedule.operator(n) {
            Operator::Dispatch => 'D',
            Operator::Combine => 'C',
        };
        for n in 0..self.instance.operators() {
            write!(f, "operator {n} = {}, partition {}", letter(n), self.instance.schedule.partition(n))?;
            if !self.instance.schedule.waits_for_all(n) {
                for rank in 0..self.instance.ranks() {
                    let sources: Vec<_> = self.instance.slots(rank, n).iter().flatten().collect();
                    write!(f, "; rank {rank} expects rows of")?;
                    match sources.as_slice() {
                        [] => write!(f, " none")?,
                        all => all.iter().try_for_each(|e| write!(f, " {}", e.source))?,
                    }
                }
            }
            writeln!(f)?;
        }
        for (i, event) in self.events.iter().enumerate() {
            writeln!(f, "{:>3}  {event}", i + 1)?;
        }
        write!(f, "  => {}", self.wrong)
    }
}
