//! Codes, status and text of what steps came to.

use super::{List, region_code};
use crate::codes::*;
use crate::tests::model::Args;
use crate::tests::model::world::World;
use crate::types::*;
use kernel_core::fabric::{Awaited, ProtocolError};
use kernel_core::place::{Place, Region};
use kernel_core::protocol::{Ran, Run};
use kernel_core::units::RankId;
use std::format;
use std::string::String;
use std::vec::Vec;

/// The code, the status and the text of it.
pub(super) fn said_of(came: &Ran, tells: bool) -> (i32, veriep_status, String) {
    let mut status = veriep_status { steps: came.steps, rank: VERIEP_NONE, code: 0 };
    let rank = |rank: Option<RankId>| rank.map_or(VERIEP_NONE, |rank| rank.0);
    match &came.end {
        Ok(Run::Budget) => (VERIEP_STEPPED, status, String::new()),
        Ok(Run::Done) => (VERIEP_OK, status, String::new()),
        Ok(Run::Waiting(wait)) => {
            status.rank = rank(wait.source());
            (VERIEP_PENDING, status, if tells { format!("{wait}") } else { String::new() })
        }
        Err(error) => {
            status.rank = rank(error.source());
            let code = match error {
                ProtocolError::Fault(fault) => {
                    status.code = fault.code;
                    VERIEP_E_FABRIC
                }
                ProtocolError::OtherShape { .. } => VERIEP_E_REFUSED,
                _ => VERIEP_E_PROTOCOL,
            };
            (code, status, format!("{error}"))
        }
    }
}

pub(super) fn c_awaited(what: &Awaited) -> veriep_awaited {
    let of = |kind, at: Place, len| veriep_awaited {
        kind,
        region: region_code(at.region),
        offset: at.offset,
        len,
    };
    match *what {
        Awaited::Word(at) => of(0, at, 8),
        Awaited::Bytes(at, len) => of(1, at, len),
        Awaited::Quiet => veriep_awaited { kind: 2, region: VERIEP_NONE, offset: 0, len: 0 },
        Awaited::Room => veriep_awaited { kind: 3, region: VERIEP_NONE, offset: 0, len: 0 },
    }
}

/// Words of the state region that are waited for.
pub(super) fn words_of(awaited: &[Awaited], rank: u32) -> Vec<(u32, u64)> {
    let place = |what: &Awaited| match what {
        Awaited::Word(at) if at.region == Region::State => Some((rank, at.offset)),
        _ => None,
    };
    awaited.iter().filter_map(place).collect()
}

/// What a call that steps has written.
pub(super) fn check_steps(
    world: &mut World,
    args: &Args,
    came: &Ran,
    status: *const veriep_status,
    awaits: Option<(&List<veriep_awaited>, &[Awaited])>,
) -> (i32, Option<String>) {
    let (mut code, must, text) = said_of(came, awaits.is_some());
    if !status.is_null() {
        let is = &world.status;
        assert_eq!((is.steps, is.rank, is.code), (must.steps, must.rank, must.code), "the status");
    }
    if let Some((list, awaited)) = awaits {
        if code == VERIEP_PENDING {
            let must: Vec<_> = awaited.iter().map(c_awaited).collect();
            if list.check(world, &must) == VERIEP_E_SHORT {
                code = VERIEP_E_SHORT;
            }
        } else {
            assert_eq!(*world.count, 0, "what has moved awaits nothing");
        }
        let rank = world.seats[args.seat].rank;
        world.awaited = words_of(awaited, rank);
    }
    (code, Some(text))
}
