//! `veriep schedule`

mod story;
mod witness;

use super::record;
use crate::cli::{ModelArg, ProductArg, STATES_MAX, ScheduleArgs};
use veriep_case::config::{Bs, Config};
use veriep_case::error::{Error, shown};
use veriep_trace::events::lines::Lines;
use veriep_trace::events::log::Log;

use crate::report::{Report, SHORT, note, progress};
use indicatif::ProgressBar;
use serde::Serialize;
use std::sync::OnceLock;
use veriep_case::verdict::Judgement;
use veriep_core::protocol::{Choices, Flags, Operator, Receive};
use veriep_core::shape::Protocol;
use veriep_core::sim::order::{Half, Order, Planned};
use veriep_group::interrupt;
use veriep_plan::mode;
use veriep_trace::events::{Sinks, Unit};
use veriep_verify::argument::Argued;
use veriep_verify::orders::Orders;
use veriep_verify::schedule::{Answer, Product, Question, Subject, Timeline, Traffic, Witness, answer};
use witness::Calls;

pub(super) fn run(args: &ScheduleArgs, report: &mut Report) -> Result<(), Error> {
    let question = question(args)?;
    let files = [("--html", args.html.as_deref()), ("--events", args.events.as_deref())];
    super::source::keep_apart(&[], &files)?;
    let files = files.map(|(option, file)| file.map(|file| (option, file)));
    let files: Vec<_> = files.into_iter().flatten().collect();
    if let (Some((option, _)), Subject::Windows) = (files.first(), question.subject) {
        let line = format!("{option}: needs --model machines: windows have no story of cores");
        return Err(Error::Request(line));
    }
    if args.events.is_some() && !question.orders.is_one() {
        let line = "--events: must be left out: a record is of one order, which all ranks take";
        return Err(Error::Request(line.to_owned()));
    }
    let calls = Calls::default();
    let searching = progress(0, "searching states");
    let _ = SEARCH.set(searching.bar());
    let answer = answer(&question, args.events.is_some().then_some(&calls as &dyn Witness));
    drop(searching);
    if answer.safe {
        for (_, file) in files {
            let file = file.display();
            note(&format!("note: {file}: not written: nothing bad was found, so there is no story"));
        }
    } else {
        tell(args, &question, &answer, &calls)?;
    }
    let (judgement, verbose) = (judgement(&question, &answer), report.is_verbose());
    report.judge(&judgement, &searched(&question, &answer), |_| text(&question, &answer, verbose))
}

/// What the answer says, within which bound.
fn judgement(question: &Question, answer: &Answer) -> Judgement {
    let Question { ranks, operators, .. } = question;
    let bound = bound(question, answer);
    if answer.deadlock {
        let waits: Vec<_> = answer.argued.waits.iter().map(ToString::to_string).collect();
        let line = format!("schedule {operators} on {ranks} ranks comes to a deadlock: {}", waits.join("; "));
        return Judgement::no(format!("DEADLOCK for {bound}"), Error::Unsafe(line));
    }
    if !answer.searched {
        let why = "no search has such orders";
        let decides = "an order in which combines follow their dispatches in turn, and on a2 one for all ranks without overlap";
        return Judgement::unknown(format!("{operators} for {bound}: {why}"), [decides.to_owned()]);
    }
    if !answer.safe {
        let last = answer.counterexample.last().map_or("", String::as_str);
        let line = format!("schedule {operators} on {ranks} ranks is unsafe: {last}");
        return Judgement::no(format!("UNSAFE for {bound}"), Error::Unsafe(line));
    }
    // A search without rounds never comes to what the last batches of a loop lack.
    if let (true, None, Some(gap)) = (question.orders.has_loop(), question.rounds, &answer.argued.gap) {
        let why = format!("nothing bad was found while the loop goes on, but {gap}, perhaps where it ends");
        return Judgement::unknown(
            format!("{operators} for {bound}: {why}"),
            ["--rounds 2, where the loop ends".to_owned()],
        );
    }
    if answer.complete {
        return Judgement::yes(format!("SAFE for {bound}"));
    }
    let states = answer.states;
    let (why, decides) = match 10 * question.states_max as u64 {
        _ if interrupt::is_asked() => ("the search was interrupted", "the same search to its end".to_owned()),
        more if more <= STATES_MAX.into() => (
            "the search ended",
            format!("--states {more}, if that is enough; about {} MiB", more.div_ceil(1 << 10)),
        ),
        _ => ("the search ended", "a search of fewer ranks or, by --rounds, of fewer rounds".to_owned()),
    };
    Judgement::unknown(
        format!("{operators} for {bound}: {why} after {states} states, nothing bad in those"),
        [decides],
    )
}

/// The group and the rounds that a search is about.
fn bound(question: &Question, answer: &Answer) -> String {
    let ranks = question.ranks;
    let servers = server_ranks(question).map(|of_one| format!(" in {} servers", ranks / of_one.max(1)));
    let partitions: Vec<_> = partitions(question).iter().map(u32::to_string).collect();
    let plural = if partitions == ["1"] { "" } else { "s" };
    let rounds = match question.rounds {
        None => "any number of rounds".to_owned(),
        Some(1) => "1 round".to_owned(),
        Some(n) => format!("{n} rounds"),
    };
    let narrower = match answer.traffic {
        Traffic::All => String::new(),
        Traffic::Given(_) => ", one given receiver for each token".to_owned(),
        traffic => format!(", {}", traffic.name()),
    };
    let left = unreceived(&question.orders).map_or_else(String::new, |open| {
        format!(", at whose end {} {} is sent and not received", open.operator.name(), open.round)
    });
    let windows = if question.subject == Subject::Windows { ", a model of the windows" } else { "" };
    let flags = if question.flags == Flags::Separate { ", separate flags" } else { "" };
    format!(
        "{ranks} ranks{} x 1 core, 1 token a rank, {rounds}{left}, {} partition{plural}{flags}{narrower}{windows}",
        servers.unwrap_or_default(),
        partitions.join(" and "),
    )
}

/// The first operator that a rank sends and never receives, of an order that cannot be repeated.
fn unreceived(orders: &Orders) -> Option<Planned> {
    let of = |order: &Order| {
        let is_received = |sent: &Planned| {
            let rest = Planned { half: Half::Receive, ..*sent };
            order.body().contains(&rest)
        };
        order.body().iter().filter(|part| !part.ends()).find(|sent| !is_received(sent)).copied()
    };
    orders.iter().filter(|order| !order.is_loop()).find_map(of)
}

/// Writes the story of a counterexample as it is asked for.
fn tell(args: &ScheduleArgs, question: &Question, answer: &Answer, calls: &Calls) -> Result<(), Error> {
    let (Some(Timeline { story, taken, violation, .. }), Some(shape)) = (&answer.timeline, &answer.shape)
    else {
        return Ok(());
    };
    if let Some(html) = &args.html {
        let title = format!("{} on {} ranks, {}", args.operators, args.ranks, question.receive.name());
        story::write(html, &title, story, &violation.to_string())?;
    }
    let Some(events) = &args.events else { return Ok(()) };
    let (product, comm_alg) = match question.product {
        Product::A3 => ("a3", ""),
        Product::A2 => ("a2", "fullmesh"),
        Product::Hierarchy => ("a2", "hierarchy"),
    };
    let config = Config {
        product: product.to_owned(),
        comm_alg: comm_alg.to_owned(),
        ep_world_size: shape.ep_world_size().into(),
        moe_expert_num: shape.moe_expert_num().into(),
        k: shape.k().into(),
        h: shape.h().into(),
        bs: Bs::Uniform(shape.bs_max().into()),
        aiv_num: shape.aiv_num().into(),
        ..Config::default()
    };
    let choices = Choices { receive: question.receive, flags: question.flags, ..Choices::default() };
    let rounds = taken.iter().map(|taken| taken.planned.round + 1).max().unwrap_or(0);
    let schedule = &question.operators;
    let (unit, chain, dead) = (Unit::Events, None, Vec::new());
    let subject = record::Subject { unit, config: &config, shape, choices, schedule, rounds, chain, dead };
    let mut header = subject.header();
    header.options["partitions"] = question.partitions.into();
    header.options["server_ranks"] = shape.server_ranks().into();
    let sinks = Sinks { lines: Some(Lines::create(events, &header)?), timeline: None };
    let log = Log::new(Unit::Events, 1, sinks);
    calls.tell(taken, &log);
    log.finish().lines.map_or(Ok(()), Lines::finish)
}

fn question(args: &ScheduleArgs) -> Result<Question, Error> {
    let refuse = |why: String| Err(Error::Request(format!("schedule {}: {why}", shown(&args.operators))));
    if (args.product, args.model) == (ProductArg::A3, Some(ModelArg::Windows)) {
        return refuse("--model windows: only --product a2 has this model".to_owned());
    }
    if let Some(why) = refuse_servers(args) {
        return refuse(why);
    }
    let orders = match Orders::parse(&args.operators) {
        Ok(orders) => orders,
        Err(why) => return refuse(why),
    };
    if let Some(why) = refuse_orders(&orders, args) {
        return refuse(why);
    }
    let way = args.experts.of(args.receive)?;
    let receive = way.name();
    if args.product == ProductArg::A2 && args.receive.keeps_rows() {
        return refuse(format!("--receive {receive}: product = a2 has copy alone"));
    }
    let protocol = match (args.product, args.hierarchy) {
        (ProductArg::A3, _) => Protocol::FullmeshV1,
        (ProductArg::A2, false) => Protocol::Fullmesh,
        (ProductArg::A2, true) => Protocol::Hierarchy,
    };
    let flags = mode::flags_of(protocol, args.flags, way)?;
    let ask = |way, partitions, orders| Question { flags, ..ask(args, way, partitions, orders) };
    if let [_, _, _, ..] = args.partitions[..] {
        let all: Vec<_> = args.partitions.iter().map(u32::to_string).collect();
        let all = all.join(",");
        return refuse(format!("--partitions {all}: must be P, or P,Q of dispatch and combine"));
    }
    if args.receive.is_direct() && !matches!(args.partitions[..], [1 | 2] | [1 | 2, 2]) {
        return refuse(format!(
            "--receive {receive}: --partitions must be 1 or 2, the areas of rows and results; flags have 2"
        ));
    }
    let [first, last] = args.partitions[..] else {
        let each = args.partitions.first().copied().unwrap_or(2);
        return Ok(ask(way, [each, each], orders));
    };
    if args.product == ProductArg::A2 {
        return refuse(format!("--partitions {first},{last}: a2 has one number for both operators"));
    }
    Ok(ask(way, [first, last], orders))
}

/// Most batches that an order may begin in one time round, or have in flight.
const BATCHES_MAX: usize = 32;

/// What is wrong with orders, but for their text.
fn refuse_orders(orders: &Orders, args: &ScheduleArgs) -> Option<String> {
    let Some(each) =
        orders.iter().map(Order::batches).max().filter(|_| orders.iter().all(|order| order.batches() > 0))
    else {
        return Some("missing: a D".to_owned());
    };
    let (number, ranks) = (orders.given(), args.ranks);
    if number > 1 && number != ranks as usize {
        return Some(format!(
            "{number} orders for {ranks} ranks: must be one, or one for each rank; --ep {number}"
        ));
    }
    let most = each.max(orders.depth() as usize);
    if most > BATCHES_MAX {
        return Some(format!(
            "{most} batches: must be at most {BATCHES_MAX} in one time round and in flight"
        ));
    }
    if orders.repeat() || args.rounds.is_none_or(|rounds| rounds == 1) {
        return None;
    }
    let [dispatched, combined] = [Operator::Dispatch, Operator::Combine].map(|operator| {
        let ends = orders.of(0).body().iter().filter(|part| part.operator == operator && part.ends());
        ends.count()
    });
    Some(if orders.is_one() {
        format!("{dispatched} D and {combined} C: must have as many C as D to run more than once")
    } else {
        "must have as many C as D on all ranks to run more than once".to_owned()
    })
}

/// What is wrong with what is asked of servers.
fn refuse_servers(args: &ScheduleArgs) -> Option<String> {
    let ranks = args.ranks;
    match (args.hierarchy, args.server_ranks) {
        (true, _) if args.product != ProductArg::A2 => Some("--hierarchy: needs --product a2".to_owned()),
        (true, _) if args.model == Some(ModelArg::Windows) => {
            Some("--model windows: --hierarchy has no such model".to_owned())
        }
        (false, Some(servers)) => {
            Some(format!("--server-ranks {servers}: must be left out without --hierarchy"))
        }
        (true, Some(servers)) if !ranks.is_multiple_of(servers) => {
            Some(format!("--server-ranks {servers}: must divide --ep {ranks}"))
        }
        _ => None,
    }
}

fn ask(args: &ScheduleArgs, way: Receive, partitions: [u32; 2], orders: Orders) -> Question {
    let product = match (args.product, args.hierarchy) {
        (ProductArg::A3, _) => Product::A3,
        (ProductArg::A2, false) => Product::A2,
        (ProductArg::A2, true) => Product::Hierarchy,
    };
    let half = if args.ranks.is_multiple_of(2) { args.ranks / 2 } else { 1 };
    Question {
        receive: way.with_batches(partitions[0] as usize),
        flags: Flags::default(),
        product,
        subject: match args.model {
            Some(ModelArg::Machines) => Subject::Machines,
            Some(ModelArg::Windows) => Subject::Windows,
            None => Subject::quick(product, args.ranks),
        },
        operators: args.operators.clone(),
        partitions,
        ranks: args.ranks,
        server_ranks: args.server_ranks.unwrap_or(half),
        rounds: if orders.repeat() { args.rounds } else { Some(1) },
        orders,
        states_max: args.states as usize,
        stop: count_and_ask,
    }
}

/// The search of this process.
static SEARCH: OnceLock<ProgressBar> = OnceLock::new();

/// Counts a state that was searched, and asks whether the caller wants the end.
fn count_and_ask() -> bool {
    if let Some(bar) = SEARCH.get() {
        bar.inc(1);
    }
    interrupt::is_asked()
}

/// What was searched, and what was found.
#[derive(Debug, Serialize)]
struct Searched<'a> {
    ok: bool,
    /// Whether ranks wait for each other without end.
    deadlock: bool,
    /// Whether there is a search of such orders.
    searched: bool,
    argument: Argument,
    states: usize,
    traffic_matrices: usize,
    /// The traffic that the search allowed, in the words of CLAIMS.md.
    traffic: &'static str,
    complete: bool,
    counterexample: &'a [String],
    operators: &'a str,
    product: &'static str,
    model: &'static str,
    receive: &'static str,
    flags: &'static str,
    /// Whether experts overwrite.
    overwrite: bool,
    partitions: &'a [u32],
    ranks: u32,
    /// Of each rank.
    cores: u32,
    tokens: u32,
    experts: u32,
    /// The ranks of a server in the hierarchy; null if there are no servers.
    server_ranks: Option<u32>,
    /// Null if rounds repeat without end.
    rounds: Option<u32>,
}

/// What the argument of gates says.
#[derive(Debug, Serialize)]
struct Argument {
    /// What may be lost with these partitions; null if nothing is.
    gap: Option<String>,
    /// The partitions that each region needs.
    needs: Vec<Need>,
    /// Who waits for whom in the end.
    waits: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Need {
    region: &'static str,
    /// Null if no number is enough.
    partitions: Option<u32>,
}

impl Argument {
    fn of(argued: &Argued) -> Self {
        let need = |need: &veriep_verify::argument::Need| Need {
            region: need.region.name(),
            partitions: need.partitions,
        };
        Self {
            gap: argued.gap.map(|gap| gap.to_string()),
            needs: argued.needs.iter().map(need).collect(),
            waits: argued.waits.iter().map(ToString::to_string).collect(),
        }
    }

    /// The lines of a report.
    fn lines(&self) -> Vec<String> {
        let need = |Need { region, partitions }: &Need| match partitions {
            Some(partitions) => format!("{region} {partitions}"),
            None => format!("{region} more than there can be"),
        };
        let needs: Vec<_> = self.needs.iter().map(need).collect();
        let needs = format!("needs    partitions by the argument of gates: {}", needs.join(", "));
        let gap = self.gap.as_ref().map(|gap| format!("gap      {gap}"));
        let waits = self.waits.iter().map(|waits| format!("waits    {waits}"));
        [needs].into_iter().chain(gap).chain(waits).collect()
    }
}

fn searched<'a>(question: &'a Question, answer: &'a Answer) -> Searched<'a> {
    Searched {
        ok: answer.safe && answer.complete,
        deadlock: answer.deadlock,
        searched: answer.searched,
        argument: Argument::of(&answer.argued),
        states: answer.states,
        traffic_matrices: answer.traffic_matrices,
        traffic: answer.traffic.name(),
        complete: answer.complete,
        counterexample: &answer.counterexample,
        operators: &question.operators,
        product: match question.product {
            Product::A3 => "a3",
            Product::A2 | Product::Hierarchy => "a2",
        },
        model: match question.subject {
            Subject::Machines => "machines",
            Subject::Windows => "windows",
        },
        receive: question.receive.name(),
        flags: question.flags.name(),
        overwrite: question.receive.overwrites(),
        partitions: partitions(question),
        ranks: question.ranks,
        cores: 1,
        tokens: 1,
        experts: 1,
        server_ranks: server_ranks(question),
        rounds: question.rounds,
    }
}

/// Returns the numbers of partitions of dispatch and of combine, or one number if both are equal.
fn partitions(question: &Question) -> &[u32] {
    let [dispatch, combine] = question.partitions;
    &question.partitions[usize::from(dispatch == combine)..]
}

fn server_ranks(question: &Question) -> Option<u32> {
    (question.product == Product::Hierarchy).then_some(question.server_ranks)
}

/// What was searched and how far, then the counterexample; in ten lines its end, which says what goes wrong.
fn text(question: &Question, answer: &Answer, verbose: bool) -> String {
    let searched = match (question.subject, question.product) {
        (Subject::Machines, Product::A3) => "the real machines over weak memory",
        (Subject::Machines, Product::Hierarchy) => {
            "the real machines, near words and far messages over weak memory"
        }
        (Subject::Machines, Product::A2) => "the real machines, agents and transfers over weak memory",
        (Subject::Windows, _) => "an abstract model of the windows, not of the machines",
    };
    let extent = match (answer.safe, answer.complete) {
        (true, true) => "all states",
        (true, false) => "a part of the states",
        (false, _) => "states until a bad one",
    };
    let Answer { states, traffic_matrices, counterexample, .. } = answer;
    let head = format!(
        "searched {}, {extent}: {searched}, {states} states, {traffic_matrices} traffic matrices",
        question.operators
    );
    let argued = Argument::of(&answer.argued).lines();
    let heads: Vec<_> = answer.searched.then_some(head).into_iter().chain(argued).collect();
    // The lines of the verdict and of the heads, and perhaps that some are left out.
    let room = if verbose { counterexample.len() } else { SHORT.saturating_sub(1 + heads.len()) };
    let skipped = if counterexample.len() > room { counterexample.len() + 1 - room } else { 0 };
    let more = (skipped > 0).then(|| format!("  ..  {skipped} events before: -v prints them"));
    let events = (1..).zip(counterexample).skip(skipped).map(|(i, line)| format!("{i:>4}  {line}"));
    heads.into_iter().chain(more).chain(events).collect::<Vec<_>>().join("\n")
}
