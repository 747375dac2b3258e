//! The judge of records, of any implementation: whether one keeps the contract of the fabric and the guards under which memory
//! may be used again.
//!
//! The record is one run. From it follows what each core and agent can know, as vector clocks: what it did itself, and what
//! the actor that published a word had done or known when it was published, once that word is observed. A run that went well by
//! luck is refused, too, if no actor knew that it would.

mod claims;
mod clock;
mod memory;
mod outputs;
mod parts;
mod trace;

pub use trace::{Line, Trace};

use clock::{Actors, Clock};
use core::fmt;
use memory::{Memory, Piece, Word};
use outputs::{By, Outputs};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use veriep_case::dump::REGIONS;
use veriep_case::error::Error;
use veriep_case::global_rank;
use veriep_core::layout::a2_message::doorbell;
use veriep_core::place::{Region, Tensor};
use veriep_core::shape::{Product, Protocol, Shape};
use veriep_core::sim::storage::region_sizes;
use veriep_core::sync::flag;

/// What must hold, and whose number the contract's rule has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Guard {
    /// A core begins an operator or goes on with one after all cores of its rank have ended what they did before.
    Join,
    /// The gates of a rank let it begin an operator; asked of records of halves.
    Gate,
    /// What other ranks await of an operator precedes the word that everything is sent.
    Sent,
    /// A core has effects, and observes words of an operator, between its begin and its end.
    Inside,
    /// The bytes that an event reads or writes are within their region.
    Place,
    /// A byte of an output has one writer in an operator.
    Writer,
    /// A word is observed that an actor has written.
    Flag,
    /// A word is cleared after an actor of its rank has observed it, or when it is known to have landed.
    Taken,
    /// A word that is cleared between its uses is published when the clear has landed; another one differs from the one before.
    Cleared,
    /// What is read is covered by a word that was observed.
    Covered,
    /// What is read was written in the same operator of the same batch.
    Carries,
    /// What is overwritten has been read, and its writer knows it.
    Overwritten,
    /// What is overwritten has landed, and its writer knows it.
    Hush,
    /// A word that is observed can be told from an older one of the same value.
    Round,
}

impl Guard {
    /// What it says.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Join => "a core of the rank has not ended what it did before",
            Self::Gate => "the gates of the rank refuse the operator",
            Self::Sent => "the core has told that everything of the operator is sent",
            Self::Inside => "the core is in no such operator",
            Self::Place => "the region ends before that",
            Self::Writer => "another core of the rank writes there in this operator",
            Self::Flag => "no actor has written that word there",
            Self::Taken => {
                "no actor of the rank is known to have observed the word, nor has it surely landed"
            }
            Self::Cleared => "the word is not known to be clear, so this one may be lost",
            Self::Covered => "no observed word covers what was put there",
            Self::Carries => "what is there was not put in this operator",
            Self::Overwritten => "what is there is not known to be read",
            Self::Hush => "what was put there is not known to have landed, so it may land on top",
            Self::Round => "an older word there has the same value, and the core knows of none between them",
        }
    }

    /// What breaks it, and clashes with the event of that line.
    const fn against(self, line: Option<usize>) -> Refused {
        Refused { guard: self, against: line, because: None }
    }
}

/// The first event that breaks a guard.
#[derive(Clone, Debug, Serialize)]
pub struct Broken {
    /// The number of its line in the file; the header is line 1.
    pub line: usize,
    pub guard: Guard,
    /// The event as it is in the file.
    pub event: String,
    /// The event that it clashes with, if there is one.
    pub against: Option<usize>,
    /// What the gates say.
    pub because: Option<&'static str>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("{:?}", self.guard).to_lowercase();
        write!(f, "line {}: {name}: {}", self.line, self.guard.about())?;
        if let Some(because) = self.because {
            write!(f, ": {because}")?;
        }
        self.against.map_or(Ok(()), |line| write!(f, " (line {line})"))
    }
}

/// What breaks a guard.
#[derive(Clone, Copy, Debug)]
struct Refused {
    guard: Guard,
    /// The line of the event that it clashes with.
    against: Option<usize>,
    /// What the gates say.
    because: Option<&'static str>,
}

/// Clocks take the square of this.
const ACTORS_MAX: usize = 4096;

/// By actor that published and rank: when it published, who of the rank observed that, and when.
type Arrivals = HashMap<(usize, u32), Vec<(u32, usize, u32)>>;

/// Batch and name of an operator.
type Doing = (u64, String);

/// A core or an agent.
#[derive(Debug, Default)]
struct State {
    clock: Clock,
    /// Whether it is in an operator.
    doing: Option<Doing>,
    /// Whether it has sent everything of that one, and goes on with it.
    has_sent: bool,
    /// The operators that it has sent and not gone on with.
    open: Vec<Doing>,
    begun: usize,
    ended: usize,
    /// Operators and halves that it has ended.
    parts: usize,
    /// When it was quiet, by its own clock.
    quiets: Vec<u32>,
}

/// Reads a record to its end.
#[derive(Debug)]
struct Reader<'t> {
    trace: &'t Trace,
    shape: &'t Shape,
    protocol: Protocol,
    actors: Actors,
    states: Vec<State>,
    memory: Memory,
    outputs: Outputs,
    /// Bytes of each region of [`REGIONS`], by rank.
    sizes: Vec<Vec<u64>>,
    arrivals: Arrivals,
    /// By agent and time of a transfer: who observed its last word, and when. Only then its source has been read.
    delivered: HashMap<(usize, u32), Vec<(usize, u32)>>,
    /// What all cores of a rank knew at their last end.
    joined: Vec<Clock>,
    /// When the experts of a rank ran on a batch, by their own clock.
    experts: HashMap<(u32, u64), u32>,
}

/// What a record says about its run.
#[derive(Clone, Debug, Default)]
pub struct Conformed {
    /// The first event that breaks a guard, if any does.
    pub broken: Option<Broken>,
    /// Operators that cores have ended.
    pub ended: usize,
    /// Why the record is not a whole run; none if it is one.
    pub lacks: Vec<String>,
}

/// Judges a record to its end, or up to the first event that breaks a guard.
///
/// # Errors
/// The record is not one of such a group.
pub fn conform(trace: &Trace, shape: &Shape) -> Result<Conformed, Error> {
    let actors = Actors::of(shape);
    if actors.count() > ACTORS_MAX {
        let seen = actors.count();
        return Err(
            trace.error(1, &format!("{seen} cores, agents and experts: must be at most {ACTORS_MAX}"))
        );
    }
    let mut reader = Reader {
        states: (0..actors.count()).map(|_| State { clock: actors.clock(), ..State::default() }).collect(),
        joined: (0..actors.ranks).map(|_| actors.clock()).collect(),
        memory: Memory::new(trace),
        outputs: Outputs::default(),
        sizes: global_rank::all(shape)
            .map(|rank| region_sizes(shape, Some(global_rank::ep_rank(shape, rank)), 0))
            .collect(),
        protocol: shape.protocol(),
        trace,
        shape,
        actors,
        arrivals: HashMap::new(),
        delivered: HashMap::new(),
        experts: HashMap::new(),
    };
    let forbidden = parts::forbidden(trace, shape);
    for (number, event) in (2..).zip(&trace.events) {
        let actor = reader
            .actors
            .actor(event)
            .ok_or_else(|| trace.error(number, "no such rank, core or peer in this group"))?;
        reader.states[actor].clock.tick(actor);
        let taken = reader.take(number, event, actor);
        let refused = taken.err().or_else(|| forbidden.get(&number).copied());
        if let Some(Refused { guard, against, because }) = refused {
            let event = trace.texts.get(number - 2).cloned().unwrap_or_default();
            let broken = Some(Broken { line: number, guard, event, against, because });
            return Ok(Conformed { broken, ended: reader.ended(), lacks: Vec::new() });
        }
    }
    Ok(Conformed { broken: None, ended: reader.ended(), lacks: reader.lacks() })
}

impl Reader<'_> {
    fn ended(&self) -> usize {
        self.states.iter().map(|state| state.ended).sum()
    }

    /// What shows that the record ends before its run does: every core of a whole one has ended as many operators, and the
    /// header may say how many.
    fn lacks(&self) -> Vec<String> {
        let mut lacks = Vec::new();
        if self.trace.is_cut {
            lacks.push("the file ends within a line".to_owned());
        }
        let ranks = (0..self.actors.ranks).filter(|rank| !self.trace.dead.contains(rank));
        let cores = ranks.flat_map(|rank| (0..).zip(self.actors.cores(rank)).map(move |core| (rank, core)));
        let states: Vec<_> = cores.map(|(rank, (core, at))| (rank, core, &self.states[at])).collect();
        let whole = states.iter().map(|(_, _, state)| state.begun).max().unwrap_or(0);
        let whole = self.trace.operators.unwrap_or(whole);
        let short: Vec<_> = states.into_iter().filter(|(_, _, state)| state.ended < whole).collect();
        if whole == 0 {
            lacks.push("no core has begun an operator".to_owned());
        } else if let Some((rank, core, state)) = short.first() {
            let open = state.open.first().map(|open| (open, "has sent"));
            let inside = state.doing.as_ref().map(|doing| (doing, "is in")).or(open);
            let inside = inside.map_or_else(String::new, |((batch, operator), is)| {
                format!(" and {is} {operator} of batch {batch}")
            });
            lacks.push(format!(
                "{} cores have not ended all {whole} operators: rank {rank} core {core} has ended {}{inside}",
                short.len(),
                state.ended
            ));
        }
        if let Some((rank, batch)) = self.unobserved() {
            lacks.push(format!("no core of rank {rank} observes a word in dispatch of batch {batch}"));
        }
        lacks.extend(self.unseen());
        lacks.extend(claims::unfounded(self.trace, self.shape));
        if let Some(line) = self.memory.unread(self.trace.receive.keeps_rows(), self.protocol) {
            lacks.push(format!("no core reads what line {line} puts"));
        }
        lacks
    }

    /// What no core does in any operator of a kind that it begins: of rows that the record leaves out nothing is known.
    fn unseen(&self) -> Vec<String> {
        let has = |operator: &str, is_so: &dyn Fn(&Line) -> bool| {
            // Agents, which are in no operator, carry rows of any.
            let is_own = |event: &&Line| event.core.is_none() || event.operator.as_deref() == Some(operator);
            self.trace.events.iter().filter(is_own).any(is_so)
        };
        let mut unseen = Vec::new();
        for operator in ["dispatch", "combine"] {
            if !has(operator, &|event| event.kind == "begin") {
                continue;
            }
            // Owners of tokens fetch results that stay with the experts.
            let is_fetched = operator == "combine" && self.trace.receive.is_direct();
            if !is_fetched && !has(operator, &Line::is_sent) {
                unseen.push(format!("no core puts a row in any {operator}"));
            }
            if !has(operator, &|event| event.kind == "deliver") {
                unseen.push(format!("no core reads a row in any {operator}"));
            }
        }
        unseen
    }

    /// The first dispatch of a rank in which nothing was observed: it ends with words of all ranks, its own included.
    fn unobserved(&self) -> Option<(u32, u64)> {
        let (mut doing, mut begun, mut observed) = (HashMap::new(), BTreeSet::new(), BTreeSet::new());
        for event in &self.trace.events {
            let actor = (event.rank, event.core);
            if let (true, Some(batch), Some(operator)) = (event.takes_up(), event.batch, &event.operator) {
                doing.insert(actor, (batch, operator));
                if operator == "dispatch" {
                    begun.insert((event.rank, batch));
                }
            } else if event.kind == "observe" {
                let own = event.batch.zip(event.operator.as_ref());
                let operator = doing.get(&actor).copied().or(own);
                let of_dispatch = operator.filter(|(_, operator)| *operator == "dispatch");
                observed.extend(of_dispatch.map(|(batch, _)| (event.rank, batch)));
            }
        }
        begun.difference(&observed).next().copied()
    }

    fn now(&self, actor: usize) -> u32 {
        self.states[actor].clock.of(actor)
    }

    fn take(&mut self, number: usize, event: &Line, actor: usize) -> Result<(), Refused> {
        let is_core = event.core.is_some();
        let is_inside = event.is_of(self.states[actor].doing.as_ref());
        if is_core && !is_inside && event.is_of_operator() {
            return Err(Guard::Inside.against(None));
        }
        let to = event.peer.unwrap_or(event.rank);
        if is_core && self.states[actor].has_sent && self.is_awaited(event) {
            return Err(Guard::Sent.against(None));
        }
        if !self.is_in_region(to, event)
            || event.source().is_some_and(|from| !self.is_in_region(event.rank, &from))
        {
            return Err(Guard::Place.against(None));
        }
        match event.kind.as_str() {
            "begin" if is_core => self.begin(event, actor),
            "resume" if is_core => self.resume(event, actor),
            "sent" | "end" if is_core => {
                let State { clock, doing, has_sent, open, ended, parts, .. } = &mut self.states[actor];
                let left = doing.take();
                if event.kind == "sent" {
                    open.extend(left);
                } else {
                    *ended += 1;
                    let cores = self.actors.cores(event.rank).len();
                    left.into_iter().for_each(|left| self.outputs.end(event.rank, left, cores));
                }
                (*has_sent, *parts) = (false, *parts + 1);
                self.joined[event.rank as usize].join(clock);
                Ok(())
            }
            "quiet" => {
                let now = self.now(actor);
                self.states[actor].quiets.push(now);
                Ok(())
            }
            "put" => self.put(number, event, actor),
            "post" => {
                let carried = self.read_source(event, actor)?;
                self.place(number, event, actor, carried)
            }
            "send" if event.length != Some(8) || event.word.is_none() => self.put(number, event, actor),
            "publish" | "send" | "store" => self.word(number, event, actor),
            "observe" => self.observe(number, event, actor),
            "deliver" => self.read(event, actor),
            "write" if Memory::is_shared(&event.region) => self.put(number, event, actor),
            "write" => self.write_output(number, event, actor),
            _ => Ok(()),
        }
    }

    /// Whether other ranks may await what a core does: it reaches one, or the agent of its own rank.
    fn is_awaited(&self, event: &Line) -> bool {
        let is_far = event.peer.is_some_and(|peer| peer != event.rank) && event.kind != "deliver";
        let at = (event.region.as_str(), event.offset);
        let is_rung = event.kind == "publish" && at == (doorbell().region.name(), doorbell().offset);
        let is_carried = event.kind == "write" && event.region == Region::WindowOut.name();
        is_far && event.is_effect() || self.shape.product() == Product::A2 && (is_rung || is_carried)
    }

    /// Whether a place is within its region. Outputs are not asked for: only their rank reaches them.
    fn is_in_region(&self, rank: u32, event: &Line) -> bool {
        let region = REGIONS.iter().position(|region| region.name() == event.region);
        let region = region.filter(|_| !self.trace.has_more_partitions);
        let end = event.offset.checked_add(event.length.unwrap_or(8));
        region.is_none_or(|nth| end.is_some_and(|end| end <= self.sizes[rank as usize][nth]))
    }

    /// A core begins an operator, or only another phase of it.
    fn begin(&mut self, event: &Line, actor: usize) -> Result<(), Refused> {
        let (Some(batch), Some(operator)) = (event.batch, event.operator.clone()) else { return Ok(()) };
        let planned = (batch, operator);
        let State { doing, open, .. } = &self.states[actor];
        if doing.as_ref() == Some(&planned) {
            return Ok(());
        }
        let dispatch = (batch, "dispatch".to_owned());
        // An operator begins once, and a combine after its dispatch has ended.
        if open.contains(&planned) || open.contains(&dispatch) {
            return Err(Guard::Join.against(None));
        }
        self.states[actor].begun += 1;
        self.take_up(event.rank, actor, planned)?;
        if event.operator.as_deref() == Some("combine") && !self.experts.contains_key(&(event.rank, batch)) {
            self.run_experts(event.rank, batch)?;
        }
        self.states[actor].clock.join(&self.joined[event.rank as usize]);
        Ok(())
    }

    /// A core goes on with an operator of which it has sent everything.
    fn resume(&mut self, event: &Line, actor: usize) -> Result<(), Refused> {
        let (Some(batch), Some(operator)) = (event.batch, event.operator.clone()) else { return Ok(()) };
        let planned = (batch, operator);
        let open = &mut self.states[actor].open;
        let Some(found) = open.iter().position(|other| *other == planned) else {
            return Err(Guard::Inside.against(None));
        };
        open.remove(found);
        self.take_up(event.rank, actor, planned)?;
        self.states[actor].has_sent = true;
        self.states[actor].clock.join(&self.joined[event.rank as usize]);
        Ok(())
    }

    /// A core is in an operator from now on, after the join.
    fn take_up(&mut self, rank: u32, actor: usize, planned: Doing) -> Result<(), Refused> {
        let State { doing, parts, .. } = &mut self.states[actor];
        if doing.is_some() {
            return Err(Guard::Join.against(None));
        }
        let before = *parts;
        *doing = Some(planned);
        if self.actors.cores(rank).any(|core| self.states[core].parts < before) {
            return Err(Guard::Join.against(None));
        }
        Ok(())
    }

    /// The experts of a rank have run since its last core ended its dispatch, before its first core begins its combine.
    fn run_experts(&mut self, rank: u32, batch: u64) -> Result<(), Refused> {
        let experts = self.actors.experts(rank);
        let mut clock = self.joined[rank as usize].clone();
        clock.join(&self.states[experts].clock);
        clock.tick(experts);
        let now = clock.of(experts);
        self.experts.insert((rank, batch), now);
        if self.trace.receive.keeps_rows() {
            for piece in self.memory.of_batch(rank, batch) {
                if !landed(&self.states, &self.arrivals, piece, &clock) {
                    return Err(Guard::Covered.against(Some(piece.line)));
                }
                piece.readers.push((experts, now));
            }
        }
        self.joined[rank as usize].join(&clock);
        self.states[experts].clock = clock;
        Ok(())
    }

    /// Bytes of what a core is doing go somewhere.
    fn put(&mut self, number: usize, event: &Line, actor: usize) -> Result<(), Refused> {
        let doing = self.states[actor].doing.clone();
        self.place(number, event, actor, doing)
    }

    /// Bytes of an operator go somewhere.
    fn place(
        &mut self,
        number: usize,
        event: &Line,
        actor: usize,
        doing: Option<Doing>,
    ) -> Result<(), Refused> {
        let state = &self.states[actor];
        let to = event.peer.unwrap_or(event.rank);
        let piece = Piece {
            line: number,
            actor,
            tick: state.clock.of(actor),
            to,
            doing,
            kind: event.kind.clone(),
            clock: Rc::new(state.clock.clone()),
            readers: Vec::new(),
            read: Vec::new(),
            extent: (event.offset, event.offset.saturating_add(event.length.unwrap_or(8))),
        };
        let experts = self.actors.experts(to);
        for old in self.memory.overlapping(to, event) {
            let knows = |&(reader, tick): &(usize, u32)| match self.actors.is_agent(reader) {
                // A transfer reads its source when it is delivered, not when it is posted.
                true => self
                    .delivered
                    .get(&(reader, tick))
                    .is_some_and(|seen| seen.iter().any(|&(who, when)| state.clock.of(who) >= when)),
                false => state.clock.of(reader) >= tick,
            };
            if !old.readers.iter().all(knows) {
                return Err(Guard::Overwritten.against(Some(old.line)));
            }
            // What a core writes again into its own memory lands in its order. A row that it sends to a slot again may come first.
            if event.kind == "write" && old.actor == actor && old.doing == piece.doing {
                continue;
            }
            // Cores read what is beside a row, and experts the row.
            let stays = self.trace.receive.keeps_rows()
                && event.region == "window"
                && old.doing.as_ref().is_some_and(|(_, operator)| operator == "dispatch");
            let is_read = match stays {
                true => old.readers.iter().any(|&(reader, _)| reader == experts),
                false => old.is_read(self.protocol),
            };
            if !is_read && old.is_data(&event.region) {
                return Err(Guard::Overwritten.against(Some(old.line)));
            }
            if !landed(&self.states, &self.arrivals, old, &state.clock) {
                return Err(Guard::Hush.against(Some(old.line)));
            }
        }
        self.memory.put(to, event, piece);
        Ok(())
    }

    /// A core writes a part of an output of its operator.
    fn write_output(&mut self, number: usize, event: &Line, actor: usize) -> Result<(), Refused> {
        let Some(doing) = self.states[actor].doing.clone() else { return Ok(()) };
        let tensor = Tensor::ALL.into_iter().find(|tensor| Region::Output(*tensor).name() == event.region);
        if tensor.is_some_and(|tensor| tensor.is_of_combine() != (doing.1 == "combine")) {
            return Err(Guard::Inside.against(None));
        }
        let other = self.outputs.write(event, doing, By { actor, line: number });
        other.map_or(Ok(()), |line| Err(Guard::Writer.against(Some(line))))
    }

    /// An agent reads what it carries: it knows that all of it has landed. Returns the operator that a task of the hierarchy is of,
    /// if the record tells: cores have written all of it in that one.
    fn read_source(&mut self, event: &Line, actor: usize) -> Result<Option<Doing>, Refused> {
        let Some(source) = event.source() else { return Ok(None) };
        let clock = &self.states[actor].clock;
        // Words that no operator writes are before the last flag of the full mesh, not in streams of the hierarchy.
        let length = event.length.unwrap_or(8);
        let skipped = if self.protocol == Protocol::Fullmesh { length.saturating_sub(8) } else { 0 };
        let new = Line { offset: source.offset + skipped, length: Some(length - skipped), ..source.clone() };
        if self.memory.covered(event.rank, &new) < length - skipped {
            return Err(Guard::Carries.against(None));
        }
        for piece in self.memory.overlapping(event.rank, &new) {
            if piece.readers.iter().any(|&(reader, _)| reader == actor) {
                return Err(Guard::Carries.against(Some(piece.line)));
            }
        }
        let mut carried = None;
        for piece in self.memory.overlapping(event.rank, &source) {
            if !was_quiet(&self.states, (piece.actor, piece.tick), clock) {
                return Err(Guard::Covered.against(Some(piece.line)));
            }
            piece.readers.push((actor, clock.of(actor)));
            // Flags of the full mesh do not tell their operator, so that one of any other operator is taken for its own.
            if self.protocol == Protocol::Hierarchy
                && *carried.get_or_insert_with(|| piece.doing.clone()) != piece.doing
            {
                return Err(Guard::Carries.against(Some(piece.line)));
            }
        }
        Ok(carried.flatten())
    }

    fn word(&mut self, number: usize, event: &Line, actor: usize) -> Result<(), Refused> {
        let to = event.peer.unwrap_or(event.rank);
        let value = event.word.unwrap_or(0);
        let (state, is_store) = (&self.states[actor], event.kind == "store");
        let key = event.place(to);
        let last = self.memory.last(&key);
        if is_store && value == 0 {
            // What arrives in transfers has no value here; what the rank has stored itself it knows.
            let known = last.filter(|word| word.value != 0 && !word.is_store);
            // Who needs no answer clears it when it must have come.
            let is_seen = |word: &Word| {
                is_there(&self.states, word, (actor, &state.clock))
                    || was_quiet(&self.states, (word.actor, word.tick), &state.clock)
            };
            if let Some(word) = known.filter(|word| !is_seen(word)) {
                return Err(Guard::Taken.against(Some(word.line)));
            }
        } else if let Some(word) = last.filter(|_| !is_store) {
            let landed = || was_quiet(&self.states, (word.actor, word.tick), &state.clock);
            // Where no rank clears, a word that does not differ from the one before tells nothing.
            let is_lost = match self.memory.is_cleared(event) {
                true => word.value != 0 || !landed(),
                false => word.value == value,
            };
            if is_lost {
                return Err(Guard::Cleared.against(Some(word.line)));
            }
            // Publishes are not ordered, not even to one word. Messages are.
            if event.kind == "publish" && !landed() && !is_there(&self.states, word, (actor, &state.clock)) {
                return Err(Guard::Hush.against(Some(word.line)));
            }
        }
        let word = Word {
            line: number,
            actor,
            tick: state.clock.of(actor),
            value,
            is_store,
            clock: Rc::new(state.clock.clone()),
            observers: Vec::new(),
        };
        self.memory.publish(key, word);
        Ok(())
    }

    fn observe(&mut self, number: usize, event: &Line, actor: usize) -> Result<(), Refused> {
        let value = event.word.unwrap_or(0);
        let (now, rank) = (self.now(actor), event.rank);
        let key = event.place(rank);
        let state = &self.states[actor];
        let (mut found, mut newer) = (None, None);
        for word in self.memory.words(&key) {
            let is_known = is_there(&self.states, word, (actor, &state.clock));
            if word.value == value {
                if found.is_some() && value != 0 {
                    return Err(Guard::Round.against(Some(word.line)));
                }
                found = found.or(Some(word));
            } else if is_known && found.is_none() {
                newer = Some(word.line);
            }
            // No actor sees an older word than one that is known to be there.
            if is_known {
                break;
            }
        }
        if let Some(word) = found {
            // A clear tells nothing; a 0 that was published does: epochs of a barrier pass it.
            if value == 0 && word.is_store {
                return Ok(());
            }
            word.observers.push((actor, now));
            self.states[actor].clock.join(&word.clock);
            if !word.is_store {
                self.arrivals.entry((word.actor, rank)).or_default().push((word.tick, actor, now));
            }
            return Ok(());
        }
        if value == 0 && newer.is_none() {
            return Ok(());
        }
        // A word inside a transfer or a message, whose value is not in the record.
        let pieces = self.memory.overlapping(rank, event);
        let Some(piece) = pieces.filter(|piece| newer.is_none_or(|line| piece.line > line)).last() else {
            return Err(Guard::Flag.against(newer));
        };
        // A core that polls for a word of its operator may meet one of an operator before, which it does not use.
        if piece.doing.is_none() || piece.doing == self.states[actor].doing {
            piece.readers.push((actor, now));
        }
        self.states[actor].clock.join(&piece.clock);
        self.arrivals.entry((piece.actor, rank)).or_default().push((piece.tick, actor, now));
        if piece.kind == "post" && piece.extent.1 == event.offset + 8 {
            self.delivered.entry((piece.actor, piece.tick)).or_default().push((actor, now));
        }
        let (task, sent) = (piece.line, Rc::clone(&piece.clock));
        if self.is_cleared_flag(value)
            && let Some(before) = self.memory.flag(&key, (number, task))
        {
            // The same flag came here before: it must have been cleared since, as the sender knows.
            let states = &self.states;
            let is_clear = |word: &&mut Word| word.is_store && word.value == 0 && word.line > before;
            let clear = self.memory.words(&key).filter(is_clear).last();
            if !clear.is_some_and(|clear| was_quiet(states, (clear.actor, clear.tick), &sent)) {
                return Err(Guard::Cleared.against(Some(before)));
            }
        }
        Ok(())
    }

    /// Whether a word inside a task is a flag that must be cleared after its use. Those of a hierarchy are epochs, which no rank clears.
    const fn is_cleared_flag(&self, value: u64) -> bool {
        matches!(self.protocol, Protocol::Fullmesh) && flag::is_window_flag(value)
    }

    fn read(&mut self, event: &Line, actor: usize) -> Result<(), Refused> {
        let (now, owner) = (self.now(actor), event.peer.unwrap_or(event.rank));
        let state = &self.states[actor];
        // Experts leave what they return in the window, too, and owners of tokens read it there.
        let is_result = self.trace.receive.keeps_rows() && event.peer.is_some();
        if is_result && let Some((batch, _)) = &state.doing {
            let ran = self.experts.get(&(owner, *batch));
            let experts = self.actors.experts(owner);
            if ran.is_none_or(|&tick| state.clock.of(experts) < tick) {
                return Err(Guard::Covered.against(None));
            }
        }
        if !is_result && self.memory.covered(owner, event) < event.length.unwrap_or(8) {
            return Err(Guard::Carries.against(None));
        }
        for piece in self.memory.overlapping(owner, event) {
            if !landed(&self.states, &self.arrivals, piece, &state.clock) {
                return Err(Guard::Covered.against(Some(piece.line)));
            }
            let is_other =
                piece.doing.is_some() && piece.doing != state.doing && !self.trace.receive.keeps_rows();
            if is_other {
                return Err(Guard::Carries.against(Some(piece.line)));
            }
            piece.readers.push((actor, now));
            piece.read.push((event.offset, event.offset.saturating_add(event.length.unwrap_or(8))));
        }
        Ok(())
    }
}

/// Whether a core or agent with that clock knows that a word has landed.
fn is_there(states: &[State], word: &Word, (actor, clock): (usize, &Clock)) -> bool {
    if !word.is_store {
        return word.observers.iter().any(|&(who, when)| clock.of(who) >= when);
    }
    word.actor == actor || was_quiet(states, (word.actor, word.tick), clock)
}

/// Whether the actor with that clock knows that an actor was quiet after it did something.
fn was_quiet(states: &[State], (actor, tick): (usize, u32), clock: &Clock) -> bool {
    let quiets = &states[actor].quiets;
    let next = quiets.partition_point(|&quiet| quiet <= tick);
    quiets.get(next).is_some_and(|&quiet| clock.of(actor) >= quiet)
}

/// Whether the actor with that clock knows that a piece has landed.
fn landed(states: &[State], arrivals: &Arrivals, piece: &Piece, clock: &Clock) -> bool {
    let (from, tick) = (piece.actor, piece.tick);
    let by_quiet = piece.kind != "send" && was_quiet(states, (from, tick), clock);
    // The last word of a task covers the task itself; a core sees at once what it has written itself.
    let own = u32::from(piece.kind == "post");
    by_quiet
        || (piece.kind == "write" && clock.of(from) >= tick)
        || arrivals.get(&(from, piece.to)).is_some_and(|all| {
            all.iter().any(|&(word, who, when)| word + own > tick && clock.of(who) >= when)
        })
}
