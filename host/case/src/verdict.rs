//! The answer of a subcommand that judges, and the bound within which it holds.
//!
//! A search that was cut short, a record that ends too early or a dump that is missing gives [`Verdict::Unknown`], never
//! [`Verdict::Yes`].

use crate::error::Error;
use crate::stderr::styled;
use anstyle::AnsiColor;
use serde::Serialize;

/// Exit status of [`Verdict::Unknown`].
pub const STATUS_UNKNOWN: u8 = 4;

/// Exit statuses in the order in which they win when several things are wrong: a bad request, a group without progress, a
/// wrong result, an unknown one, none.
const WORST_FIRST: [u8; 5] = [2, 3, 1, STATUS_UNKNOWN, 0];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Everything within the bound was judged, and nothing is wrong.
    Yes,
    /// Something is not judged, or the evidence allows more than one answer; nothing is known to be wrong.
    Unknown,
    /// Something is wrong.
    No,
}

impl Verdict {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Unknown => "unknown",
            Self::No => "no",
        }
    }

    /// Returns the verdict that an exit status stands for, or `None` for a refused request, which was not judged.
    #[must_use]
    pub const fn of_status(status: u8) -> Option<Self> {
        match status {
            0 => Some(Self::Yes),
            1 | 3 => Some(Self::No),
            STATUS_UNKNOWN => Some(Self::Unknown),
            _ => None,
        }
    }

    const fn colour(self) -> AnsiColor {
        match self {
            Self::Yes => AnsiColor::Green,
            Self::Unknown => AnsiColor::Yellow,
            Self::No => AnsiColor::Red,
        }
    }

    /// The first line of a report.
    #[must_use]
    pub fn line(self, bound: &str) -> String {
        format!("verdict  {}: {bound}", styled(self.colour(), self.name()))
    }
}

/// Returns the worst of several exit statuses; another one than those of verdicts and refusals wins over all.
#[must_use]
pub fn worst(statuses: impl IntoIterator<Item = u8>) -> u8 {
    let place = |status: &u8| WORST_FIRST.iter().position(|known| known == status);
    statuses.into_iter().min_by_key(place).unwrap_or(0)
}

/// A verdict with its bound.
#[derive(Clone, Debug, Serialize)]
pub struct Judgement {
    verdict: Verdict,
    /// What was judged, in how large a group, by which evidence.
    bound: String,
    /// What would decide an unknown verdict, each enough by itself or one step towards it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    decides: Vec<String>,
    #[serde(skip)]
    error: Option<Error>,
}

impl Judgement {
    pub fn yes(bound: impl Into<String>) -> Self {
        Self { verdict: Verdict::Yes, bound: bound.into(), decides: Vec::new(), error: None }
    }

    /// `error` says what is wrong, and has the exit status.
    pub fn no(bound: impl Into<String>, error: Error) -> Self {
        Self { verdict: Verdict::No, bound: bound.into(), decides: Vec::new(), error: Some(error) }
    }

    pub fn unknown(bound: impl Into<String>, decides: impl Into<Vec<String>>) -> Self {
        let (bound, decides) = (bound.into(), decides.into());
        let line = match decides.as_slice() {
            [] => bound.clone(),
            all => format!("{bound}; decided by: {}", all.join("; ")),
        };
        Self { verdict: Verdict::Unknown, bound, decides, error: Some(Error::Unknown(line)) }
    }

    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    #[must_use]
    pub fn bound(&self) -> &str {
        &self.bound
    }

    #[must_use]
    pub fn decides(&self) -> &[String] {
        &self.decides
    }

    /// The first lines of a report: the verdict, and what would decide an unknown one.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let decides = self.decides.iter().map(|what| format!("decides  {what}"));
        [self.verdict.line(&self.bound)].into_iter().chain(decides).collect()
    }

    /// Succeeds for yes alone.
    ///
    /// # Errors
    /// The verdict is no or unknown; the error has its exit status.
    pub fn outcome(&self) -> Result<(), Error> {
        self.error.clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_status_is_not_the_largest_number() {
        let order = [2, 3, 1, 4, 0];
        for (nth, worse) in order.into_iter().enumerate() {
            for better in &order[nth..] {
                assert_eq!(worst([worse, *better]), worse, "{worse} and {better}");
                assert_eq!(worst([*better, worse]), worse, "{better} and {worse}");
            }
        }
        assert_eq!(worst([]), 0);
    }

    #[test]
    fn only_yes_ends_with_status_0() {
        assert_eq!(Judgement::yes("all").outcome().map_err(|error| error.status()), Ok(()));
        let no = Judgement::no("one is wrong", Error::Wrong("x_out differs".to_owned()));
        assert_eq!(no.outcome().map_err(|error| error.status()), Err(1));
        let unknown = Judgement::unknown("half of it", ["the rest".to_owned()]);
        let error = unknown.outcome().unwrap_err();
        assert_eq!(
            (error.status(), error.to_string()),
            (4, "unknown: half of it; decided by: the rest".to_owned())
        );
        for status in [0, 1, 3, 4] {
            let verdict = Verdict::of_status(status).unwrap();
            assert_eq!(verdict == Verdict::Yes, status == 0);
        }
        assert_eq!(Verdict::of_status(2), None);
    }
}
