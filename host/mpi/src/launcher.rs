//! Detects that an MPI launcher has started this process as one of several, from its environment.

use std::env;

/// Names an MPI to a process whose launcher is none of those known here.
const VARIABLE: &str = "VERIEP_MPI";

/// What a launcher has said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launched {
    /// The number of this process; 0 where only the MPI knows.
    pub process: usize,
    /// How many it has started, if it says so.
    pub processes: Option<usize>,
    /// Its MPI, if it belongs to one.
    pub mpi: Option<String>,
}

/// Variables of a launcher: with the number of this process, with the number of processes, and its MPI.
const LAUNCHERS: [(&str, Option<&str>, Option<&str>); 4] = [
    ("OMPI_COMM_WORLD_RANK", Some("OMPI_COMM_WORLD_SIZE"), Some("openmpi")),
    ("PMIX_RANK", None, None),
    ("PMI_RANK", Some("PMI_SIZE"), Some("mpich")),
    ("SLURM_PROCID", Some("SLURM_NTASKS"), None),
];

/// What the launcher of this process has said; nothing if there was none.
#[must_use]
pub fn launched() -> Option<Launched> {
    said(|name| env::var(name).ok())
}

fn said(variable: impl Fn(&str) -> Option<String>) -> Option<Launched> {
    let number = |name: &str| variable(name)?.parse::<usize>().ok();
    let named = variable(VARIABLE).filter(|mpi| !mpi.is_empty());
    let known = LAUNCHERS.into_iter().find_map(|(process, processes, mpi)| {
        let mpi = mpi.map(str::to_owned);
        Some(Launched { process: number(process)?, processes: processes.and_then(number), mpi })
    });
    match (known, named) {
        (known, None) => known,
        (known, mpi) => Some(Launched { mpi, ..known.unwrap_or_default() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<Launched> {
        said(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn every_launcher_is_known_by_what_it_leaves() {
        let launched = |process, processes, mpi: Option<&str>| {
            Some(Launched { process, processes, mpi: mpi.map(str::to_owned) })
        };
        assert_eq!(of(&[]), None);
        let openmpi = [("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_RANK", "2")];
        assert_eq!(of(&openmpi), launched(2, Some(4), Some("openmpi")));
        assert_eq!(of(&[("PMI_RANK", "1"), ("PMI_SIZE", "3")]), launched(1, Some(3), Some("mpich")));
        assert_eq!(of(&[("PMIX_RANK", "1"), ("SLURM_PROCID", "1")]), launched(1, None, None));
        assert_eq!(of(&[("SLURM_PROCID", "5"), ("SLURM_NTASKS", "6")]), launched(5, Some(6), None));
        assert_eq!(of(&[("VERIEP_MPI", "mpich")]), launched(0, None, Some("mpich")));
        let named = [("SLURM_PROCID", "5"), ("SLURM_NTASKS", "6"), ("VERIEP_MPI", "openmpi")];
        assert_eq!(of(&named), launched(5, Some(6), Some("openmpi")));
        assert_eq!(of(&[("PMI_RANK", "first")]), None);
    }
}
