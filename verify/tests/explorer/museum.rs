//! Bugs that systems of this kind have shipped, each left in on purpose: the explorer finds it, and finds nothing once it is
//! mended. `docs/doubt/public-bugs.md` is made of them.

use crate::verdict::{caught, safe};
use core::fmt::Write;
use snapbox::Data;
use snapbox::data::DataFormat;
use std::path::Path;
use veriep_verify::defects::Defect;
use veriep_verify::explorer::{Model, Violation};

/// A bug as it was reported, and the same in this protocol.
struct Exhibit {
    name: &'static str,
    /// Where it was reported.
    source: &'static str,
    /// What went wrong there.
    report: &'static str,
    /// What this protocol does instead.
    fix: &'static str,
    broken: Model,
    mended: Model,
    is_it: fn(&Violation) -> bool,
}

fn dc(cores: u32) -> Model {
    Model::new(2, "DC").cores(cores)
}

fn hierarchy(ranks: u32, server_ranks: u32) -> Model {
    Model::new(ranks, "DC").hierarchy(server_ranks).weak()
}

fn exhibits() -> Vec<Exhibit> {
    let lost = |violation: &Violation| matches!(violation, Violation::LostFlag { .. });
    let early = |violation: &Violation| matches!(violation, Violation::NotLanded { .. });
    let overwritten = |violation: &Violation| matches!(violation, Violation::Overwritten { .. });
    vec![
        Exhibit {
            name: "One buffer, and signals in one direction",
            source: "https://github.com/deepseek-ai/DeepEP/issues/166",
            report: "With one buffer a sender that has ended begins the next operator and writes where a receiver still \
                     reads. The thread says why there are two.",
            fix: "Dispatch and combine have two partitions each, used alternately.",
            broken: dc(1).partitions(1, 2),
            mended: dc(1),
            is_it: lost,
        },
        Exhibit {
            name: "Two batches in flight on buffers for one",
            source: "https://github.com/deepseek-ai/DeepEP/pull/580",
            report: "Dispatch, dispatch, combine, combine raced: the second batch used what the first had not left.",
            fix: "As many partitions as batches are in flight; `veriep schedule` says how many an order needs.",
            broken: Model::new(2, "DDCC").partitions(2, 1),
            mended: Model::new(2, "DDCC"),
            is_it: overwritten,
        },
        Exhibit {
            name: "A rank cleans the buffer that comes next",
            source: "https://github.com/deepseek-ai/DeepEP/issues/513, https://github.com/uccl-project/uccl/pull/993",
            report: "A rank that begins an operator zeroes the flags of another one. A faster peer may have set one of \
                     them already; it is wiped, and its reader waits indefinitely.",
            fix: "A flag is cleared by its reader alone, after it has been seen and before the reader's operator ends.",
            broken: Model::new(2, "DDCC").defect(Defect::CleansNext),
            mended: Model::new(2, "DDCC"),
            is_it: lost,
        },
        Exhibit {
            name: "A signal of the use before last passes for a fresh one",
            source: "https://github.com/NVIDIA/nccl/issues/2303, https://github.com/NVIDIA/nccl/pull/2306",
            report: "Signals are polled for any value but 0 and stay where they are, so an old one looked like a new one. Two \
                     handles took turns with the buffers of one group, each by a count of its own; a rank that falls behind \
                     by a cycle was suspected first.",
            fix: "Every word is cleared before its partition comes round.",
            broken: dc(1).defect(Defect::NoClear).units(3),
            mended: dc(1).units(3),
            is_it: lost,
        },
        Exhibit {
            name: "A completion overtakes its payload",
            source: "https://github.com/tenstorrent/tt-metal/issues/50272",
            report: "Payload and completion took different ways round a ring, so the reader was let in before its page had \
                     landed.",
            fix: "A publish may not land before the puts that its core has issued before it (rule 2 of the fabric).",
            broken: dc(1).defect(Defect::RelaxedPublish).weak(),
            mended: dc(1).weak(),
            is_it: early,
        },
        Exhibit {
            name: "One worker announces what another is still sending",
            source: "https://github.com/tenstorrent/tt-metal/issues/57357",
            report: "Two workers send one half of every token each, and the first of them signals completion without having \
                     heard of the second.",
            fix: "Every core waits until its own puts have landed, then meets the others at a barrier; only then flags go \
                  out.",
            broken: dc(2).defect(Defect::NoQuiet).weak(),
            mended: dc(2).weak().units(1),
            is_it: early,
        },
        Exhibit {
            name: "A clear of one call wipes the signal of the next",
            source: "https://github.com/ROCm/mori/pull/494",
            report: "The clear at the end of call N could land after the set of call N + 1: blocks spun without end, in two \
                     runs of twenty.",
            fix: "A clear lands before the quiet behind it, and that is before anything by which a peer could know that the \
                  word is free.",
            broken: dc(1).defect(Defect::LateClear).weak().units(3),
            mended: dc(1).weak().units(3),
            is_it: lost,
        },
        Exhibit {
            name: "A barrier that is entered again before all have left it",
            source: "https://github.com/jax-ml/jax/pull/27963",
            report: "The race shows only over several calls that share one semaphore: the next arrival hides the one that a \
                     slow participant has not seen.",
            fix: "Each core has two barrier words, used alternately, so a word changes only after all have read it.",
            broken: dc(2).defect(Defect::OneBarrierWord).units(1),
            mended: dc(2).units(1),
            is_it: |violation| matches!(violation, Violation::Refused { .. }),
        },
        Exhibit {
            name: "A count of completions says how many, not which",
            source: "https://github.com/NVIDIA/nvshmem/issues/84",
            report: "Chunks completed out of order on one cumulative counter, so a later one let the reader of an earlier \
                     one in.",
            fix: "The hierarchy takes a record for complete when a later message of the same core has come, and asks the \
                  fabric for messages in order.",
            broken: hierarchy(2, 1).units(1).defect(Defect::UnorderedMessages),
            mended: hierarchy(2, 1).units(1),
            is_it: |violation| matches!(violation, Violation::Refused { .. } | Violation::NotLanded { .. }),
        },
        Exhibit {
            name: "A wait for exactly one value, which has gone by",
            source: "https://github.com/tenstorrent/tt-metal/issues/57352",
            report: "A semaphore is waited for with equality; a value that is passed over leaves its waiter behind.",
            fix: "Words that count operators are waited for with \"at least\".",
            broken: hierarchy(2, 2).cores(2).defect(Defect::Equal),
            mended: hierarchy(2, 2).cores(2),
            is_it: |violation| *violation == Violation::Deadlock,
        },
    ]
}

const HEAD: &str = "\
# Public bugs, reproduced

Ten bugs of systems of this kind that were reported, or warned of, in public. Each is rebuilt in this protocol by leaving
out one required step. The explorer, which steps the state machines that run everywhere else, finds each of them; with the
step it visits every state and finds nothing. The reports are about other protocols. They show that the same mistake would
be seen here, not that those systems behaved step by step like this.

`cargo test -p veriep-verify --test explorer museum -- --nocapture` prints the shortest way into each bug, event by event. Numbers 1 and 2
are also `veriep schedule DC --partitions 1,2` and `veriep schedule DDCC --partitions 2,1`. The link behind *without it* leads to the model
of each search, and [bug-classes.md](bug-classes.md) says what else guards against each kind of bug. The test generates and checks this page;
`SNAPSHOTS=overwrite` before it writes the page.
";

#[test]
fn every_bug_is_found_and_its_fix_is_safe() {
    let mut page = HEAD.to_owned();
    for (i, exhibit) in exhibits().into_iter().enumerate() {
        let Exhibit { name, source, report, fix, broken, mended, is_it } = exhibit;
        safe(&format!("museum, mended: {name}"), &mended);
        let story = caught(&format!("museum: {name}"), &broken);
        assert!(is_it(&story.violation), "{name}: {story}");
        let sources: Vec<_> = source.split(", ").map(|url| format!("<{url}>")).collect();
        let (number, sources, events) = (i + 1, sources.join(", "), story.story.len());
        let cells = broken.cells();
        let (defect, anchor) = match cells.rsplit(" | ").next().unwrap() {
            "None" => ("Too few partitions", "too-few-partitions-or-areas".to_owned()),
            defect => (defect, defect.to_lowercase()),
        };
        write!(
            page,
            "\n## {number}. {name}\n\n{report} Reported in {sources}.\n\nHere: {fix} Without it \
             ([{defect}](../../verify/CLAIMS.md#{anchor})), after {events} events: {}.\n",
            story.violation
        )
        .unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/doubt/public-bugs.md");
    snapbox::assert_data_eq!(page, Data::read_from(&path, Some(DataFormat::Text)).raw());
}
