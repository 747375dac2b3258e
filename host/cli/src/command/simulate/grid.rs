//! The same simulation with other values, other seeds, another cluster.

use crate::cli::SimulateArgs;
use crate::command::source::resolve;
use std::path::Path;
use veriep_case::error::Error;
use veriep_sim::Outcome;
use veriep_sim::costs::Cluster;
use veriep_trace::events::lines::Lines;
use veriep_trace::events::timeline::Direction;

/// The most points of a grid.
const POINTS_MAX: usize = 1000;

/// Keys with their values, and the arguments with them.
pub(super) struct Point {
    pub(super) values: Vec<(String, String)>,
    pub(super) args: SimulateArgs,
}

/// All combinations of what is swept; one without values if nothing is.
pub(super) fn points(args: &SimulateArgs) -> Result<Vec<Point>, Error> {
    let cluster = Cluster::read(&args.cluster, &args.link, &args.cost)?;
    let mut points = vec![Point { values: Vec::new(), args: args.clone() }];
    for sweep in &args.sweep {
        let fail = |what: String| Error::Request(format!("--sweep {sweep}: {what}"));
        let (key, values) =
            sweep.split_once('=').ok_or_else(|| fail("missing '=': must be KEY=A,B,C".to_owned()))?;
        let values: Vec<_> = values.split(',').map(str::trim).collect();
        if values.iter().any(|value| value.is_empty()) {
            return Err(fail("missing value: must be KEY=A,B,C".to_owned()));
        }
        let more = points.iter().flat_map(|point| {
            values.iter().map(|&value| {
                let mut next = Point { values: point.values.clone(), args: point.args.clone() };
                next.values.push((key.to_owned(), value.to_owned()));
                let assignment = format!("{key}={value}");
                match cluster.section(key) {
                    Some("links") => next.args.link.push(assignment),
                    Some(_) => next.args.cost.push(assignment),
                    None => next.args.config.set.push(assignment),
                }
                next
            })
        });
        points = more.collect();
        if points.len() > POINTS_MAX {
            return Err(fail(format!("{} combinations: must be at most {POINTS_MAX}", points.len())));
        }
    }
    // What one of them refuses is said before hours have passed.
    for point in &points {
        Cluster::read(&point.args.cluster, &point.args.link, &point.args.cost)?;
        resolve(&point.args.config)?;
    }
    Ok(points)
}

/// Returns the number of the point and the seed of each run, in order.
pub(super) fn runs(points: &[Point], args: &SimulateArgs) -> impl Iterator<Item = (usize, u64)> {
    let (first, seeds) = (args.seed, args.seeds.into());
    (0..points.len()).flat_map(move |number| (0..seeds).map(move |more| (number, first.wrapping_add(more))))
}

/// A table of when ranks have begun and ended their operators.
pub(super) struct Csv(Option<Lines>);

impl Csv {
    pub(super) fn create(path: Option<&Path>) -> Result<Self, Error> {
        let mut lines = path.map(Lines::begin).transpose()?;
        lines
            .iter_mut()
            .for_each(|lines| lines.text("point,seed,operator,rank,us,sent_bytes,received_bytes"));
        Ok(Self(lines))
    }

    pub(super) fn add(&mut self, point: &Point, seed: u64, outcome: &Outcome) {
        let Self(Some(lines)) = self else { return };
        let values: Vec<_> = point.values.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let values = values.join(" ");
        for (operator, name) in super::report::OPERATORS.into_iter().enumerate() {
            // A rank that was cut off has not ended.
            let ended = outcome.took[operator].iter().enumerate().filter(|(_, took)| **took > 0);
            for (rank, took) in ended {
                let [sent, received] = [Direction::Out, Direction::In]
                    .map(|direction| outcome.ports[operator][rank][direction as usize].bytes);
                let us = *took as f64 / 1e6;
                lines.text(&format!("{values},{seed},{name},{rank},{us},{sent},{received}"));
            }
        }
    }

    pub(super) fn finish(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), Lines::finish)
    }
}
