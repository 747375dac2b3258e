//! Notes on a configuration that the operators accept and that may still be a mistake.

use veriep_case::config::{Bs, Config};
use veriep_core::shape::{Buffer, Product};

/// From this buffer on, in MB, a mistaken unit is likelier than the need of it.
const LARGE_MB: i64 = 16 << 10;
/// From so many times the need on likewise.
const LARGE_FACTOR: u64 = 20;
/// The largest batch of these operators; others serve longer ones.
const BS_MAX: i64 = 512;
/// Ranks of an A2 server.
const SERVER_RANKS: i64 = 8;

pub(super) fn notes(config: &Config, asked: &Buffer) -> Vec<String> {
    let mut notes = Vec::new();
    let configured = config.hccl_buffsize_mb;
    // The default of 200 MB is no mistake, though it exceeds a small need by far.
    let is_far_more =
        u64::try_from(configured).is_ok_and(|mb| configured > 1024 && mb / LARGE_FACTOR >= asked.required_mb);
    if configured > LARGE_MB || is_far_more {
        let need = asked.required_mb;
        notes.push(format!(
            "hccl_buffsize_mb = {configured}: the unit is MB (2^20 bytes), and {need} MB are asked for"
        ));
    }
    let largest_bs = match &config.bs {
        Bs::Uniform(bs) => *bs,
        Bs::PerRank(list) => list.iter().copied().max().unwrap_or(0),
    };
    if largest_bs > BS_MAX {
        notes.push(format!(
            "bs = {largest_bs}: these are the operators of decode; batches of more than {BS_MAX} tokens a rank, as in prefill, have others"
        ));
    }
    if config.algorithm().product() == Product::A2 && config.ep_world_size > SERVER_RANKS {
        notes.push(
            "A2 servers have to be connected by a switch: two of them cabled directly fail in the communication library \
             (error 561000), which no check of a configuration sees"
                .to_owned(),
        );
    }
    if config.ids.is_some() {
        notes.push(
            "ids: the shipped operators are not known to take -1 as an expert; give them a mask and valid ids".to_owned(),
        );
    }
    notes
}
