//! Processes of a group that are gone, for people and for the JSON report.

use serde::Serialize;

/// A process that died or fell silent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gone {
    /// Its number in the group.
    pub process: usize,
    /// And in the system.
    pub pid: u32,
    /// The machine that it ran on.
    pub host: String,
    /// Its ranks.
    pub ranks: Vec<u32>,
    /// `signal N`, `exit N` or `silent`; of processes that joined also `left` or, where no process saw its status, `ended`.
    pub how: String,
    /// The round that it was in; none before the first one and after the last.
    pub round: Option<usize>,
    /// `dispatch`, `experts`, `combine` or `check`; none between two of them.
    pub operator: Option<&'static str>,
}

impl Gone {
    /// Where it was, for the start of a line.
    #[must_use]
    pub fn place(&self) -> String {
        match (self.operator, self.round) {
            (Some(operator), Some(round)) => format!("{operator} of round {round}: "),
            (_, Some(round)) => format!("round {round}: "),
            _ => "before the first round: ".to_owned(),
        }
    }

    /// Who it was and how it left.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { process, pid, host, ranks, how, .. } = self;
        let how = match how.split_once(' ') {
            Some(("signal", signal)) => format!("was killed by signal {signal}"),
            Some((_, status)) => format!("ended with status {status} and without a word"),
            None if how == "left" => "has left the group".to_owned(),
            None if how == "ended" => "runs no more".to_owned(),
            None => "does not run".to_owned(),
        };
        format!("process {process} (pid {pid}, host {host}, ranks {}) {how}", list(ranks))
    }
}

/// Numbers in a line, neighbours as a range.
pub fn list(numbers: &[u32]) -> String {
    let text = |run: &[u32]| match run {
        [first, .., last] => format!("{first}-{last}"),
        one => one.iter().map(u32::to_string).collect(),
    };
    numbers.chunk_by(|a, b| a + 1 == *b).map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_process_ranks_and_how_it_left() {
        let gone = Gone {
            process: 2,
            pid: 24391,
            host: "node-1".to_owned(),
            ranks: vec![4, 5, 6, 9],
            how: "signal 9".to_owned(),
            round: Some(74),
            operator: Some("combine"),
        };
        assert_eq!(gone.place(), "combine of round 74: ");
        assert_eq!(gone.line(), "process 2 (pid 24391, host node-1, ranks 4-6,9) was killed by signal 9");
        let silent = Gone { how: "silent".to_owned(), operator: None, ..gone.clone() };
        assert_eq!(silent.place(), "round 74: ");
        assert!(silent.line().ends_with("does not run"), "{}", silent.line());
        let ended = Gone { how: "exit 101".to_owned(), operator: None, round: None, ..gone };
        assert_eq!(ended.place(), "before the first round: ");
        assert!(ended.line().ends_with("ended with status 101 and without a word"), "{}", ended.line());
    }
}
