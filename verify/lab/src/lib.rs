//! A small group whose steps and landings are chosen one by one, for the page `docs/lab/index.html`.
//!
//! Two ranks each send two tokens per round to two experts, one on each rank. [`Lab`] lists what can happen
//! next, does it, and describes the group as JSON. A duty can be left out; what comes of it is compared with the reference.
#![no_std]
extern crate alloc;
// The tests' machine has it; a page has not.
#[cfg(not(target_arch = "wasm32"))]
extern crate std;

mod by_hand;
mod judge;
mod layouts;
#[cfg(target_arch = "wasm32")]
mod page;
mod report;

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use by_hand::ByHand;
use core::fmt::Write as _;
use judge::Judge;
use veriep_core::fabric::Progress;
use veriep_core::layout::state::Operator;
use veriep_core::place::Region;
use veriep_core::protocol::Choices;
use veriep_core::shape::{BatchSizes, Config, Limits, Protocol, Shape};
use veriep_core::sim::chooser::Dice;
use veriep_core::sim::cluster::{Cluster, Failure, schedule};
use veriep_core::sim::duty::{Double, Duty, Words};
use veriep_core::sim::storage::{Sparse, group_sizes};
use veriep_core::sim::{Choice, Memory};

/// Rounds of a lab, each a dispatch and its combine.
pub const ROUNDS: usize = 4;

/// Elements of a token's row.
const H: i64 = 8;

/// No message is longer, and nothing longer is read at once.
const MESSAGE: usize = 4096;

/// Choices after which a run that nothing stops is given up.
const CHOICES_MAX: usize = 20_000;

/// A duty that can be left out.
#[derive(Clone, Copy, Debug)]
pub struct LeftOut {
    /// What the page calls it.
    pub name: &'static str,
    pub about: &'static str,
    /// Where it was seen in another system, or nothing.
    pub seen: &'static str,
    pub duty: fn() -> Duty,
}

/// A group, with the duties that can be left out.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// The name that the page shows.
    pub name: &'static str,
    pub protocol: Protocol,
    /// The least that its areas fit in.
    pub hccl_buffsize_mb: i64,
    /// Cores of each rank.
    pub cores: i64,
    /// Operators that are played again and again.
    pub schedule: &'static str,
    pub duties: &'static [LeftOut],
}

pub const SCENES: [Scene; 5] = [
    Scene {
        name: "A3 full mesh",
        protocol: Protocol::FullmeshV1,
        hccl_buffsize_mb: 5,
        cores: 1,
        schedule: "DC",
        duties: &[
            LeftOut {
                name: "one dispatch partition instead of two",
                about: "A rank that has ended a round begins the next dispatch in memory that a slower rank still reads.",
                seen: "https://github.com/deepseek-ai/DeepEP/issues/166",
                duty: || Duty::Second(Double::Partition(Operator::Dispatch)),
            },
            LeftOut {
                name: "flags are not cleared",
                about: "A flag of an earlier round passes for the one of this round, and a rank reads rows that are not there yet.",
                seen: "https://github.com/NVIDIA/nccl/pull/2306",
                duty: || Duty::Clear(Words::Status(None)),
            },
            LeftOut {
                name: "flags are cleared too late",
                about: "A clear that may land long after its operator wipes a flag of a later round, and its reader waits without end.",
                seen: "https://github.com/ROCm/mori/pull/494",
                duty: || Duty::InTime(Words::Status(None)),
            },
            LeftOut {
                name: "no core waits for dispatch's flags",
                about: "A rank reads records whether or not they have arrived.",
                seen: "",
                duty: || Duty::Wait(Words::Status(Some(Operator::Dispatch))),
            },
            LeftOut {
                name: "the flag is sent before its rows",
                about: "The receiver sees the flag and reads rows that have not even been sent.",
                seen: "",
                duty: || Duty::RowsFirst,
            },
            LeftOut {
                name: "the memory lets a flag overtake its rows",
                about: "The sender does everything in order, but the memory does not keep it.",
                seen: "https://github.com/tenstorrent/tt-metal/issues/50272",
                duty: || Duty::FlagBehindRows(Region::State),
            },
            LeftOut {
                name: "the count comes after its flag",
                about: "The flag says that no rows come; the count follows a step later, and belongs to no row.",
                seen: "",
                duty: || Duty::WholeCount,
            },
        ],
    },
    Scene {
        name: "A3 full mesh, two cores a rank",
        protocol: Protocol::FullmeshV1,
        hccl_buffsize_mb: 5,
        cores: 2,
        schedule: "DC",
        duties: &[
            LeftOut {
                name: "no core waits until its rows have landed",
                about: "One core announces rows that another core of its rank has sent, and that are still under way.",
                seen: "https://github.com/tenstorrent/tt-metal/issues/57357",
                duty: || Duty::Quiet,
            },
            LeftOut {
                name: "cores do not wait for each other",
                about: "One core announces rows that another core of its rank has not even sent.",
                seen: "",
                duty: || Duty::Barrier { even: true, odd: true },
            },
        ],
    },
    Scene {
        name: "A3 full mesh, two batches in flight",
        protocol: Protocol::FullmeshV1,
        hccl_buffsize_mb: 5,
        cores: 1,
        schedule: "DDCC",
        duties: &[LeftOut {
            name: "one combine partition instead of two",
            about: "The second batch's combine writes where the first one's rows have not been summed yet.",
            seen: "https://github.com/deepseek-ai/DeepEP/pull/580",
            duty: || Duty::Second(Double::Partition(Operator::Combine)),
        }],
    },
    Scene {
        name: "A2 full mesh, with agents",
        protocol: Protocol::Fullmesh,
        hccl_buffsize_mb: 5,
        cores: 1,
        schedule: "DC",
        duties: &[
            LeftOut {
                name: "one half of the windows instead of two",
                about: "An agent still reads what the core writes for the next operator.",
                seen: "",
                duty: || Duty::Second(Double::Half),
            },
            LeftOut {
                name: "one task record instead of two",
                about: "The core overwrites tasks that the agent has not taken.",
                seen: "",
                duty: || Duty::Second(Double::MessageSlot),
            },
            LeftOut {
                name: "flags are not cleared",
                about: "A flag of an earlier round passes for the one of this round.",
                seen: "",
                duty: || Duty::Clear(Words::WindowsIn),
            },
            LeftOut {
                name: "no core waits for flags",
                about: "A rank reads rows whether or not they have arrived.",
                seen: "",
                duty: || Duty::Wait(Words::WindowsIn),
            },
            LeftOut {
                name: "the last word of a transfer lands first",
                about: "The flag behind the rows arrives before the rows.",
                seen: "",
                duty: || Duty::LastWordLast,
            },
        ],
    },
    Scene {
        name: "A2 hierarchy, two servers",
        protocol: Protocol::Hierarchy,
        hccl_buffsize_mb: 105,
        cores: 1,
        schedule: "DC",
        duties: &[LeftOut {
            name: "messages overtake each other",
            about: "A record passes for complete because a later one has come.",
            seen: "https://github.com/NVIDIA/nvshmem/issues/84",
            duty: || Duty::MessageOrder,
        }],
    },
];

/// How a run has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All rounds have ended, and every result was equal to the reference's.
    Right,
    /// A result differs from the reference's.
    Wrong(String),
    /// A machine has refused what it saw.
    Refused(String),
    /// No core can move, and the rounds have not ended.
    Hang(String),
}

/// A group under way.
#[derive(Debug)]
pub struct Lab {
    cluster: Cluster<'static, Sparse, ByHand>,
    judge: Judge,
    dice: Dice,
    /// Which rank is faster, and how long rows take: drawn from the seed.
    bias: [usize; 3],
    end: Option<End>,
    /// What the last choice was, and what it did.
    story: Vec<String>,
    choices: usize,
}

impl Lab {
    /// Creates a group of a scene, without one of its duties or with all of them. The tokens go where `seed` says.
    ///
    /// # Panics
    /// There is no such scene.
    pub fn new(scene: usize, duty: Option<usize>, seed: u64) -> Self {
        let scene = SCENES[scene];
        let config = Config {
            ep_world_size: 2,
            moe_expert_num: 2,
            k: 1,
            h: H,
            aiv_num: scene.cores,
            server_ranks: 1,
            ..Config::default()
        };
        let config = Config {
            bs: BatchSizes::Uniform(2),
            hccl_buffsize_mb: scene.hccl_buffsize_mb,
            comm_alg: scene.protocol,
            ..config
        };
        let shape = Shape::new(&config, Limits::None).expect("a legal configuration");
        // One group lives for as long as the page or the test: its shape is never given back.
        let shape: &'static Shape = Box::leak(Box::new(shape));
        let mut dice = Dice(seed);
        let duty = duty.and_then(|duty| scene.duties.get(duty)).map(|left_out| (left_out.duty)());
        let mut memory = Memory::new(shape, Sparse::new(group_sizes(shape), MESSAGE), ByHand::default());
        memory.broken = duty.as_ref().map(Duty::broken).unwrap_or_default();
        memory.rewrites = true;
        let mut judge = Judge::new(shape, duty, &mut dice);
        let mut cluster = Cluster::new(
            shape,
            Choices::default(),
            memory,
            schedule(scene.schedule, 2 * ROUNDS / scene.schedule.len()),
        );
        let bias = [dice.below(2), dice.one_of(&[1, 4, 16]), dice.one_of(&[1, 8, 64])];
        cluster.checked = judge.duty.is_none();
        cluster.begin(&mut judge).expect("no result is there to be wrong");
        let story = Vec::new();
        Self { cluster, judge, dice, bias, end: None, story, choices: 0 }
    }

    /// Returns what can happen next.
    pub fn offers(&self) -> &[Choice] {
        if self.end.is_some() { &[] } else { &self.cluster.memory.chooser.offers }
    }

    /// Returns how the run has ended, if it has.
    pub const fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Takes the offer of that number; does nothing if there is none.
    pub fn take(&mut self, offer: usize) {
        let Some(&choice) = self.offers().get(offer) else { return };
        self.cluster.memory.chooser.offers.remove(offer);
        self.choices += 1;
        self.story.clear();
        let mut line = self.told(choice);
        self.cluster.memory.take_effects();
        let outcome = match choice {
            Choice::Land(flight, bytes) => {
                self.cluster.memory.land(flight, bytes);
                Ok(None)
            }
            Choice::Step(actor) => self.cluster.step(actor, &mut self.judge),
        };
        if let Ok(Some(Progress::Pending(wait))) = &outcome {
            let _ = write!(line, ", and stops: {wait}");
        }
        self.story.push(line);
        let effects = self.cluster.memory.take_effects();
        self.story.extend(effects.iter().map(ToString::to_string));
        if let Err(failure) = outcome {
            self.end = Some(Self::ended_by(failure));
        } else if self.offers().is_empty() || self.choices == CHOICES_MAX {
            self.end = Some(self.cluster.end(&mut self.judge).map_or_else(Self::ended_by, |()| End::Right));
        } else if self.cluster.members.iter().all(|member| member.ended == 2 * ROUNDS) {
            self.end = Some(End::Right);
        }
    }

    fn ended_by(failure: Failure) -> End {
        match failure {
            Failure::Wrong(what) => End::Wrong(what),
            Failure::Core(rank, _, error) | Failure::Agent(rank, error) => {
                End::Refused(alloc::format!("rank {}: {error}", rank.0))
            }
            Failure::Hang(waits) => {
                let mut all = String::new();
                for (actor, wait) in waits {
                    let _ = match wait {
                        Some(wait) => write!(all, "rank {} waits for {wait}. ", actor.member.0),
                        None => write!(all, "rank {} has not begun. ", actor.member.0),
                    };
                }
                End::Hang(all)
            }
        }
    }

    /// Takes an offer that the seed chooses: one rank is faster than the other, and rows may take long.
    pub fn drift(&mut self) {
        let [fast, speed, delay] = self.bias;
        let weight = |choice: &Choice| match choice {
            Choice::Step(actor) if actor.member.index() == fast => 16 * speed,
            Choice::Step(_) => 16,
            Choice::Land(..) => 64 / delay,
        };
        let weights: Vec<usize> = self.offers().iter().map(weight).collect();
        let mut drawn = self.dice.below(weights.iter().sum());
        let is_reached = |weight: &usize| {
            let reached = drawn < *weight;
            drawn = drawn.wrapping_sub(if reached { 0 } else { *weight });
            reached
        };
        if let Some(offer) = weights.iter().position(is_reached) {
            self.take(offer);
        }
    }

    /// Runs to the end, as the seed chooses. Returns the number of choices.
    pub fn run(&mut self) -> usize {
        while self.end.is_none() {
            self.drift();
        }
        self.choices
    }
}

/// Returns the first of `seeds` seeds with which a run does not end well, and its number of choices.
#[must_use]
pub fn first_failure(scene: usize, duty: Option<usize>, seeds: u64) -> Option<(u64, usize)> {
    (0..seeds).find_map(|seed| {
        let mut lab = Lab::new(scene, duty, seed);
        let choices = lab.run();
        (lab.end != Some(End::Right)).then_some((seed, choices))
    })
}

/// Choices between two states that the digest takes.
const DIGEST_EVERY: usize = 16;

/// Returns a digest of what runs of all scenes and duties show, and of the layouts and plans of many configurations. A page whose
/// program gives another one is not of these sources, or 32-bit pointers make a difference.
pub fn digest() -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |text: String| {
        digest = text
            .bytes()
            .fold(digest, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    };
    for (scene, duties) in SCENES.iter().map(|scene| scene.duties.len()).enumerate() {
        for duty in (0..duties).map(Some).chain([None]) {
            let mut lab = Lab::new(scene, duty, 1);
            while lab.end.is_none() {
                (0..DIGEST_EVERY).for_each(|_| lab.drift());
                add(lab.state());
            }
        }
    }
    let legal = layouts::tell(&mut add);
    add(alloc::format!("{legal}"));
    digest
}
