//! Diagnoses: how far the ranks of a group that hangs are, what they lack, and which rank has not sent it, from dumps of their memory.

mod cann;
mod evidence;
mod memory;
mod options;
mod own;
mod report;

pub use report::{Diagnosis, Rank, Suspect};

use crate::mode::Mode;
use cann::Release;
use evidence::{Evidence, Seen};
use memory::Memory;
use std::fs;
use std::path::{Path, PathBuf};
use veriep_case::case::{self, Case};
use veriep_case::config::Config;
use veriep_case::dump;
use veriep_case::error::Error;
use veriep_case::experts::Experts;
use veriep_case::global_rank;
use veriep_case::hints;
use veriep_case::verdict::Judgement;
use veriep_core::layout::state::{STATE_BYTES, Slots};
use veriep_core::place::Region;
use veriep_core::protocol::{Choices, Flags, Receive};
use veriep_core::shape::{Given, Limits, Product, Protocol, Shape};
use veriep_core::sim::storage::region_sizes;
use veriep_core::units::RankId;

/// The shipped operators' release, if they are not those of this program.
/// The operators that a group ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OperatorSource {
    /// Those of this program, in every protocol.
    #[default]
    Veriep,
    /// The shipped operators of A3 from CANN 9.0.0 on: partitions of 384 KiB.
    CannM,
    /// The shipped operators of A3 up to CANN 8.5.0: partitions of 500 KiB.
    CannH,
}

impl OperatorSource {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Veriep, Self::CannM, Self::CannH];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Veriep => "veriep",
            Self::CannM => "cann-m",
            Self::CannH => "cann-h",
        }
    }

    /// Returns one sentence about it.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Veriep => "Those of this program, in every protocol",
            Self::CannM => "The shipped operators of A3 from CANN 9.0.0 on: partitions of 384 KiB",
            Self::CannH => "The shipped operators of A3 up to CANN 8.5.0: partitions of 500 KiB",
        }
    }
}

/// A question about a folder of dumps.
#[derive(Clone, Debug)]
pub struct Request {
    /// The folder.
    pub folder: PathBuf,
    /// The operators that the group ran.
    pub from: OperatorSource,
    /// The configuration of the group, and its name in errors.
    pub config: Config,
    pub name: String,
    /// A case with the batch that hangs.
    pub case: Option<PathBuf>,
    /// The choices of the group, as far as the request states them.
    pub receive: Option<Receive>,
    pub experts: Option<Experts>,
    pub flags: Option<Flags>,
    pub stage: Option<u32>,
    pub slots: Option<Slots>,
    pub port_offset: Option<i64>,
    /// Batches in flight.
    pub in_flight: Option<u32>,
    /// The group took operators in halves.
    pub halves: bool,
}

/// Reads the dumps under all options that the request and the folder leave open.
///
/// # Errors
/// A file cannot be read, contradicts the request, or cannot be of such a group.
pub fn diagnose(request: &Request) -> Result<(Judgement, Diagnosis), Error> {
    let (options, open) = options(request)?;
    let mut group = group(request, &options)?;
    let readings = readings(request, &mut group, &options::variants(&options, &open))?;
    report::judged(request.from, &group, &readings)
}

const fn release_of(source: OperatorSource) -> Option<&'static Release> {
    match source {
        OperatorSource::Veriep => None,
        OperatorSource::CannM => Some(&cann::M),
        OperatorSource::CannH => Some(&cann::H),
    }
}

/// Keys by which places are computed, and which every job has.
pub const PLACED_BY: [&str; 6] = ["ep_world_size", "moe_expert_num", "k", "h", "bs", "aiv_num"];

/// The group that the dumps are of.
struct Group {
    /// Its configuration by name.
    name: String,
    /// Those who are left of an elastic domain.
    shape: Shape,
    choices: Choices,
    in_flight: u64,
    takes_halves: bool,
    case: Option<Case>,
}

/// The ranks as the dumps show them, and the evidence, if the group had these options.
struct Reading {
    options: dump::Options,
    ranks: Vec<Option<Seen>>,
    evidence: Evidence,
}

/// Reads the dumps under each of these options, in this order. Options that contradict the dumps are left out.
///
/// # Errors
/// All of them contradict the dumps; the error is that of the first.
fn readings(request: &Request, group: &mut Group, variants: &[dump::Options]) -> Result<Vec<Reading>, Error> {
    let (mut readings, mut refused, mut seen) = (Vec::new(), None, Vec::new());
    for options in variants {
        let read = choices(request, &group.shape, options).and_then(|choices| {
            let of = (choices, options.in_flight.into());
            if seen.contains(&of) {
                return Ok(None);
            }
            seen.push(of);
            (group.choices, group.in_flight) = of;
            reading(request, group, options).map(Some)
        });
        match read {
            Ok(read) => readings.extend(read),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let is_sound = |reading: &Reading| reading.evidence.contradictions.is_empty();
    // On A2 a word with the number of its call is a word without one, too: that only one of both readings fits does not show it.
    let may_tell =
        group.shape.product() == Product::A3 || variants.iter().all(|one| one.checked == variants[0].checked);
    if may_tell && readings.iter().any(is_sound) {
        readings.retain(is_sound);
    }
    match (readings.first(), refused) {
        (None, Some(error)) => Err(error),
        _ => Ok(readings),
    }
}

fn reading(request: &Request, group: &Group, options: &dump::Options) -> Result<Reading, Error> {
    let mut ranks = match release_of(request.from) {
        Some(release) => shipped(request, group, release)?,
        None => own(request, group)?,
    };
    let evidence = match group.takes_halves {
        true => Evidence::of_halves(&ranks),
        false => evidence::weigh(&mut ranks, group.in_flight, group.shape.combine_columns() > 1),
    };
    Ok(Reading { options: options.clone(), ranks, evidence })
}

/// The group, from the folder's own configuration unless another one is named.
fn group(request: &Request, options: &dump::Options) -> Result<Group, Error> {
    let (mut config, name) = (request.config.clone(), request.name.clone());
    config.port_offset = options.port_offset;
    let case = request.case.as_deref().map(|folder| {
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
    Ok(Group {
        name,
        shape,
        choices: Choices::default(),
        in_flight: options.in_flight.into(),
        takes_halves: options.halves,
        case,
    })
}

/// The options of the folder, with what the arguments say of those that it leaves out, and the names of those that neither
/// says and that decide what words mean.
fn options(request: &Request) -> Result<(dump::Options, Vec<&'static str>), Error> {
    let stated = dump::Options::stated(&request.folder)?;
    let mut options = dump::Options::of(&request.folder, stated.clone())?;
    let words = [
        (request.receive.map(|receive| receive.name().to_owned()), &mut options.receive),
        (request.experts.map(|experts| experts.name().to_owned()), &mut options.experts),
        (request.flags.map(|flags| flags.name().to_owned()), &mut options.flags),
    ];
    for (word, option) in words.into_iter().filter_map(|(word, option)| Some((word?, option))) {
        *option = word;
    }
    options.stage = request.stage.unwrap_or(options.stage);
    options.slots = request.slots.map_or(options.slots, Slots::bytes);
    options.port_offset = request.port_offset.unwrap_or(options.port_offset);
    options.in_flight = request.in_flight.unwrap_or(options.in_flight);
    options.halves |= request.halves;
    must_agree(&request.folder.join(dump::OPTIONS_NAME), &stated, &options.table()?)?;
    let asked = [
        (options::RECEIVE, request.receive.is_some()),
        (options::EXPERTS, request.experts.is_some()),
        (options::FLAGS, request.flags.is_some()),
        (options::STAGE, request.stage.is_some()),
        (options::SLOTS, request.slots.is_some()),
        (options::CHECKED, false),
        (options::IN_FLIGHT, request.in_flight.is_some()),
    ];
    // The shipped operators leave no choice but that of batches in flight.
    let decides = |name: &str| request.from == OperatorSource::Veriep || name == options::IN_FLIGHT;
    let is_open = |(name, is_asked): &(&str, bool)| decides(name) && !is_asked && !stated.contains_key(*name);
    Ok((options, asked.into_iter().filter(is_open).map(|(name, _)| name).collect()))
}

/// Refuses arguments that contradict a file beside the dumps: read as those of another group, the dumps may lack no word.
///
/// # Errors
/// A key that the file states has another value among the arguments.
pub fn must_agree(file: &Path, stated: &toml::Table, asked: &toml::Table) -> Result<(), Error> {
    let Some((key, value)) = stated.iter().find(|(key, value)| asked.get(*key) != Some(value)) else {
        return Ok(());
    };
    let asked = asked.get(key).map_or_else(|| "nothing".to_owned(), toml::Value::to_string);
    let what = format_args!("{key} = {value}: the arguments say {asked}: must agree with the dumps");
    Err(Error::file(file, what))
}

/// The choices of the group. A file of options also names what is no choice in this group.
fn choices(request: &Request, shape: &Shape, options: &dump::Options) -> Result<Choices, Error> {
    let refused = |what: &str| Error::file(&request.folder.join(dump::OPTIONS_NAME), what);
    if options.in_flight == 0 {
        return Err(refused("in_flight = 0: must be at least 1"));
    }
    let receive = Receive::MODES.into_iter().find(|mode| mode.name() == options.receive);
    let mode = Mode {
        receive: receive.ok_or_else(|| refused("receive: no such way to receive"))?,
        experts: Experts::named(&options.experts)
            .ok_or_else(|| refused("experts: must be apart or overwrite"))?,
        flags: match options.flags.as_str() {
            "joint" => request.flags,
            "separate" => Some(Flags::Separate),
            _ => return Err(refused("flags: must be joint or separate")),
        },
        stage: match options.stage {
            2 => Some(2),
            3 => request.stage,
            _ => return Err(refused("stage: must be 2 or 3")),
        },
        slots: Slots::ALL
            .into_iter()
            .find(|slots| slots.bytes() == options.slots)
            .ok_or_else(|| refused("slots: must be 32 or 64"))?,
        checked: options.checked,
        port_offset: options.port_offset,
    };
    let receive = mode.experts.of(mode.receive)?.with_batches(options.in_flight as usize);
    mode.receiving(shape, receive)
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
        request: &Request,
        needed: &[Region],
        sizes: impl Fn(RankId) -> Vec<u64>,
    ) -> Result<Vec<Option<Memory>>, Error> {
        self.refuse_others(&request.folder)?;
        let open = |member: RankId| {
            let memory = Memory::open(&request.folder, self.number(member.0), &sizes(member))?;
            Ok(needed.iter().all(|region| memory.has(*region)).then_some(memory))
        };
        let memories = global_rank::all(&self.shape).map(open).collect::<Result<Vec<_>, Error>>()?;
        if memories.iter().all(Option::is_none) {
            let all: Vec<_> = needed.iter().map(|region| format!("rank0.{}", region.name())).collect();
            let files = all.join(" and ");
            return Err(Error::file(
                &request.folder,
                format_args!("has no dump: must have {files} and so on"),
            ));
        }
        Ok(memories)
    }
}

/// What the shipped operators have left.
fn shipped(request: &Request, group: &Group, release: &'static Release) -> Result<Vec<Option<Seen>>, Error> {
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
    let memories = group.memories(request, &[Region::State], |_| vec![STATE_BYTES])?;
    let seen = |(member, memory): (u32, &Option<Memory>)| {
        let Some(memory) = memory else { return Ok(None) };
        if group.takes_halves {
            return Ok(Some(Seen::somewhere()));
        }
        let of = (shape, RankId(member));
        cann::read(memory.whole(Region::State), of, release, group.in_flight, group.case.as_ref())
            .map(Some)
            .map_err(|why| {
                Error::file(&dump::file(&request.folder, group.number(member), Region::State), why)
            })
    };
    (0..).zip(&memories).map(seen).collect()
}

/// What our own have left.
fn own(request: &Request, group: &Group) -> Result<Vec<Option<Seen>>, Error> {
    let shape = &group.shape;
    let sizes = |member| region_sizes(shape, Some(global_rank::ep_rank(shape, member)), 0);
    let of = own::Group {
        shape,
        choices: group.choices,
        in_flight: group.in_flight,
        takes_halves: group.takes_halves,
        case: group.case.as_ref(),
        members: group.memories(request, own::needed(shape), sizes)?,
    };
    own::read(&of).map_err(|(place, why)| match place {
        None => Error::file(&request.folder, why),
        Some((member, region)) => {
            let path = dump::file(&request.folder, group.number(member), region);
            let others = [OperatorSource::CannM, OperatorSource::CannH].into_iter().filter(|from| {
                let bytes = of.members[member as usize].as_ref().map(|memory| memory.whole(Region::State));
                let read = |(bytes, release)| cann::read(bytes, (shape, RankId(member)), release, 2, None);
                bytes
                    .zip(release_of(*from))
                    .is_some_and(|all| read(all).is_ok_and(|seen| seen.begun != [0, 0]))
            });
            let hint = others.map(|from| format!("; hint: --from {}", from.name())).next();
            Error::file(&path, format_args!("{why}{}", hint.unwrap_or_default()))
        }
    })
}
