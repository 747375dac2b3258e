//! `veriep diagnose`: how far the ranks of a group that hangs are, what they lack, and who owes it, from dumps of their memory.

mod cann;
mod memory;
mod options;
mod owes;
mod own;
mod report;

use super::source::{Source, choices_of, resolve};
use crate::case::{self, Case};
use crate::cli::{ConfigArgs, DiagnoseArgs, ExpertsArg, FlagsArg, ModeArgs, OperatorSource, name_of};
use crate::config::FILE_NAME;
use crate::dump;
use crate::error::Error;
use crate::global_rank;
use crate::hints;
use crate::report::Report;
use cann::Release;
use memory::Memory;
use owes::{Evidence, Seen};
use std::fs;
use std::path::Path;
use veriep_core::layout::state::STATE_BYTES;
use veriep_core::place::Region;
use veriep_core::protocol::{Choices, Receive};
use veriep_core::shape::{Given, Limits, Protocol, Shape};
use veriep_core::sim::storage::region_sizes;
use veriep_core::units::RankId;

/// The shipped operators' release, if they are not those of this program.
const fn release_of(source: OperatorSource) -> Option<&'static Release> {
    match source {
        OperatorSource::Veriep => None,
        OperatorSource::CannM => Some(&cann::M),
        OperatorSource::CannH => Some(&cann::H),
    }
}

/// Keys by which places are computed, and which every job has.
const PLACED_BY: [&str; 6] = ["ep_world_size", "moe_expert_num", "k", "h", "bs", "aiv_num"];

/// The group that the dumps are of.
struct Group {
    /// Its configuration by name.
    name: String,
    /// Those who are left of an elastic domain.
    shape: Shape,
    choices: Choices,
    in_flight: u64,
    case: Option<Case>,
}

/// The ranks as the dumps show them, and the evidence, if the group had these options.
struct Reading {
    options: dump::Options,
    ranks: Vec<Option<Seen>>,
    evidence: Evidence,
}

pub(super) fn run(args: &DiagnoseArgs, report: &mut Report) -> Result<(), Error> {
    if !args.folder.is_dir() {
        return Err(Error::file(&args.folder, "is no folder: must have rank0.state and so on"));
    }
    let (options, open) = options(args)?;
    let mut group = group(args, &options)?;
    let readings = readings(args, &mut group, &options::variants(&options, &open))?;
    report::emit(report, args.from, &group, &readings)
}

/// Reads the dumps under each of these options, in this order. Options that contradict the dumps are left out.
///
/// # Errors
/// All of them contradict the dumps; the error is that of the first.
fn readings(
    args: &DiagnoseArgs,
    group: &mut Group,
    variants: &[dump::Options],
) -> Result<Vec<Reading>, Error> {
    let (mut readings, mut refused, mut seen) = (Vec::new(), None, Vec::new());
    for options in variants {
        let read = choices(args, &group.shape, options).and_then(|choices| {
            let of = (choices, options.in_flight.into());
            if seen.contains(&of) {
                return Ok(None);
            }
            seen.push(of);
            (group.choices, group.in_flight) = of;
            reading(args, group, options).map(Some)
        });
        match read {
            Ok(read) => readings.extend(read),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let is_sound = |reading: &Reading| reading.evidence.contradictions.is_empty();
    if readings.iter().any(is_sound) {
        readings.retain(is_sound);
    }
    match (readings.first(), refused) {
        (None, Some(error)) => Err(error),
        _ => Ok(readings),
    }
}

fn reading(args: &DiagnoseArgs, group: &Group, options: &dump::Options) -> Result<Reading, Error> {
    let mut ranks = match release_of(args.from) {
        Some(release) => shipped(args, group, release)?,
        None => own(args, group)?,
    };
    let evidence = owes::weigh(&mut ranks, group.in_flight, group.shape.combine_columns() > 1);
    Ok(Reading { options: options.clone(), ranks, evidence })
}

/// The group, from the folder's own configuration unless another one is named.
fn group(args: &DiagnoseArgs, options: &dump::Options) -> Result<Group, Error> {
    let Source { mut config, name, .. } = configuration(args)?;
    config.port_offset = options.port_offset;
    let case = args.case.as_deref().map(|folder| {
        let mut opened = case::open(folder)?;
        opened.config.port_offset = config.port_offset;
        opened.load(folder)
    });
    let case = case.transpose()?;
    let elastic = case.as_ref().is_some_and(|case| case.elastic.is_some());
    let mut given = Given::empty();
    given.set(Given::ELASTIC_INFO, elastic);
    let whole = hints::shape(&config, given, Limits::None, &name)?;
    if case.as_ref().is_some_and(|case| case.whole() != &whole) {
        return Err(Error::Request("--case: is of another configuration than the dumps".to_owned()));
    }
    let shape = case.as_ref().map_or(whole, |case| case.shape.clone());
    Ok(Group { name, shape, choices: Choices::default(), in_flight: options.in_flight.into(), case })
}

/// The configuration of the folder, and what the arguments say of keys that it leaves out.
fn configuration(args: &DiagnoseArgs) -> Result<Source, Error> {
    let file = args.folder.join(FILE_NAME);
    let of_folder = ConfigArgs {
        release: None,
        path: None,
        preset: None,
        config: file.exists().then(|| file.clone()),
        set: Vec::new(),
    };
    let is_named = args.config.is_some() || args.preset.is_some();
    let source = resolve(&ConfigArgs {
        preset: args.preset.clone(),
        config: args.config.clone().or_else(|| (!is_named).then(|| file.clone())),
        set: args.set.clone(),
        ..of_folder.clone()
    })?;
    // A preset states every key. By a default that is not the job's, words are looked for where there are none.
    if args.preset.is_none()
        && let Some(key) = PLACED_BY.into_iter().find(|key| !source.config.origin.has(key))
    {
        let what = format_args!(
            "{key}: missing: must be stated, since places depend on it; hint: --set {key}=VALUE"
        );
        return Err(Error::file(args.config.as_deref().unwrap_or(&file), what));
    }
    if of_folder.config.is_some() && (is_named || !args.set.is_empty()) {
        must_agree(&file, &resolve(&of_folder)?.config.stated()?, &source.config.table()?)?;
    }
    Ok(source)
}

/// The options of the folder, with what the arguments say of those that it leaves out, and the names of those that neither
/// says and that decide what words mean.
fn options(args: &DiagnoseArgs) -> Result<(dump::Options, Vec<&'static str>), Error> {
    let stated = dump::Options::stated(&args.folder)?;
    let mut options = dump::Options::of(&args.folder, stated.clone())?;
    let words = [
        (args.receive.map(|receive| receive.name().to_owned()), &mut options.receive),
        (args.experts.map(name_of), &mut options.experts),
        (args.flags.map(name_of), &mut options.flags),
    ];
    for (word, option) in words.into_iter().filter_map(|(word, option)| Some((word?, option))) {
        *option = word;
    }
    options.stage = args.stage.unwrap_or(options.stage);
    options.port_offset = args.port_offset.unwrap_or(options.port_offset);
    options.in_flight = args.in_flight.unwrap_or(options.in_flight);
    must_agree(&args.folder.join(dump::OPTIONS_NAME), &stated, &options.table()?)?;
    let asked = [
        (options::RECEIVE, args.receive.is_some()),
        (options::EXPERTS, args.experts.is_some()),
        (options::FLAGS, args.flags.is_some()),
        (options::STAGE, args.stage.is_some()),
        (options::IN_FLIGHT, args.in_flight.is_some()),
    ];
    // The shipped operators leave no choice but that of batches in flight.
    let decides = |name: &str| args.from == OperatorSource::Veriep || name == options::IN_FLIGHT;
    let is_open = |(name, is_asked): &(&str, bool)| decides(name) && !is_asked && !stated.contains_key(*name);
    Ok((options, asked.into_iter().filter(is_open).map(|(name, _)| name).collect()))
}

/// Refuses arguments that contradict a file beside the dumps: read as those of another group, the dumps may lack no word.
fn must_agree(file: &Path, stated: &toml::Table, asked: &toml::Table) -> Result<(), Error> {
    let Some((key, value)) = stated.iter().find(|(key, value)| asked.get(*key) != Some(value)) else {
        return Ok(());
    };
    let asked = asked.get(key).map_or_else(|| "nothing".to_owned(), toml::Value::to_string);
    let what = format_args!("{key} = {value}: the arguments say {asked}: must agree with the dumps");
    Err(Error::file(file, what))
}

/// The choices of the group. A file of options also names what is no choice in this group.
fn choices(args: &DiagnoseArgs, shape: &Shape, options: &dump::Options) -> Result<Choices, Error> {
    let refused = |what: &str| Error::file(&args.folder.join(dump::OPTIONS_NAME), what);
    if options.in_flight == 0 {
        return Err(refused("in_flight = 0: must be at least 1"));
    }
    let receive = Receive::MODES.into_iter().find(|mode| mode.name() == options.receive);
    let mode = ModeArgs {
        receive: receive.ok_or_else(|| refused("receive: no such way to receive"))?,
        experts: match options.experts.as_str() {
            "apart" => ExpertsArg::Apart,
            "overwrite" => ExpertsArg::Overwrite,
            _ => return Err(refused("experts: must be apart or overwrite")),
        },
        flags: match options.flags.as_str() {
            "joint" => args.flags,
            "separate" => Some(FlagsArg::Separate),
            _ => return Err(refused("flags: must be joint or separate")),
        },
        stage: match options.stage {
            2 => Some(2),
            3 => args.stage,
            _ => return Err(refused("stage: must be 2 or 3")),
        },
        port_offset: options.port_offset,
    };
    let receive = mode.experts.of(mode.receive)?.with_batches(options.in_flight as usize);
    choices_of(shape, &mode, receive)
}

impl Group {
    /// The number that a member has in files.
    fn number(&self, member: u32) -> u32 {
        self.case.as_ref().map_or(member, |case| case.name(RankId(member)).0)
    }

    /// Refuses files of ranks that the group does not have.
    fn refuse_others(&self, folder: &Path) -> Result<(), Error> {
        let ranks = global_rank::count(self.case.as_ref().map_or(&self.shape, Case::whole));
        let entries = fs::read_dir(folder).map_err(|e| Error::io(folder, "list", &e))?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let rank_of = |name: &String| dump::rank_of(name).filter(|rank| *rank >= ranks);
        match names.filter(|name| rank_of(name).is_some()).min() {
            Some(name) => {
                let why =
                    format_args!("is of no rank of this configuration: {} has {ranks} ranks", self.name);
                Err(Error::file(&folder.join(name), why))
            }
            None => Ok(()),
        }
    }

    /// The dumps of all members, none of those without a file for one of the `needed` regions. `sizes` has the sizes of all
    /// regions that are looked at.
    fn memories(
        &self,
        args: &DiagnoseArgs,
        needed: &[Region],
        sizes: impl Fn(RankId) -> Vec<u64>,
    ) -> Result<Vec<Option<Memory>>, Error> {
        self.refuse_others(&args.folder)?;
        let open = |member: RankId| {
            let memory = Memory::open(&args.folder, self.number(member.0), &sizes(member))?;
            Ok(needed.iter().all(|region| memory.has(*region)).then_some(memory))
        };
        let memories = global_rank::all(&self.shape).map(open).collect::<Result<Vec<_>, Error>>()?;
        if memories.iter().all(Option::is_none) {
            let all: Vec<_> = needed.iter().map(|region| format!("rank0.{}", region.name())).collect();
            let files = all.join(" and ");
            return Err(Error::file(&args.folder, format_args!("has no dump: must have {files} and so on")));
        }
        Ok(memories)
    }
}

/// What the shipped operators have left.
fn shipped(
    args: &DiagnoseArgs,
    group: &Group,
    release: &'static Release,
) -> Result<Vec<Option<Seen>>, Error> {
    let shape = &group.shape;
    let why = match shape.protocol() {
        Protocol::FullmeshV1 if shape.tp_world_size() < 2 => None,
        Protocol::FullmeshV1 => Some("tp_world_size = 2: flags of a TP domain are not read: must be 0 or 1"),
        Protocol::FullmeshV2 => Some(
            "comm_alg = fullmesh_v2: its flags lie among the rows, in no dump of a state region: must be \"\"",
        ),
        _ => Some("product = a2: these operators are of A3: must be a3"),
    };
    if let Some(why) = why {
        return Err(Error::Request(format!("{}: {why}", group.name)));
    }
    let memories = group.memories(args, &[Region::State], |_| vec![STATE_BYTES])?;
    let seen = |(member, memory): (u32, &Option<Memory>)| {
        let Some(memory) = memory else { return Ok(None) };
        let of = (shape, RankId(member));
        cann::read(memory.whole(Region::State), of, release, group.in_flight, group.case.as_ref())
            .map(Some)
            .map_err(|why| Error::file(&dump::file(&args.folder, group.number(member), Region::State), why))
    };
    (0..).zip(&memories).map(seen).collect()
}

/// What our own have left.
fn own(args: &DiagnoseArgs, group: &Group) -> Result<Vec<Option<Seen>>, Error> {
    let shape = &group.shape;
    let sizes = |member| region_sizes(shape, Some(global_rank::ep_rank(shape, member)), 0);
    let of = own::Group {
        shape,
        choices: group.choices,
        in_flight: group.in_flight,
        case: group.case.as_ref(),
        members: group.memories(args, own::needed(shape), sizes)?,
    };
    own::read(&of).map_err(|(place, why)| match place {
        None => Error::file(&args.folder, why),
        Some((member, region)) => {
            let path = dump::file(&args.folder, group.number(member), region);
            let others = [OperatorSource::CannM, OperatorSource::CannH].into_iter().filter(|from| {
                let bytes = of.members[member as usize].as_ref().map(|memory| memory.whole(Region::State));
                let read = |(bytes, release)| cann::read(bytes, (shape, RankId(member)), release, 2, None);
                bytes
                    .zip(release_of(*from))
                    .is_some_and(|all| read(all).is_ok_and(|seen| seen.begun != [0, 0]))
            });
            let hint = others.map(|from| format!("; hint: --from {}", name_of(from))).next();
            Error::file(&path, format_args!("{why}{}", hint.unwrap_or_default()))
        }
    })
}
