//! Dump folders: the memory of a group, as files that `veriep diagnose` reads. A group writes them.
//!
//! A folder has `config.toml`, `options.toml` and for each rank a file for each region, `rank0.state` and so on. Pages that
//! hold zeros are holes in these files.

use crate::config::{self, FILE_NAME};
use crate::error::Error;
use crate::experts::Experts;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use veriep_core::place::Region;
use veriep_core::protocol::{Choices, Stage};

/// The name of the file with the group's [`Options`].
pub const OPTIONS_NAME: &str = "options.toml";

/// The regions that a rank can have, in the order of [`Spot::region`](veriep_core::sim::storage::Spot::region).
pub const REGIONS: [Region; 5] =
    [Region::State, Region::Window, Region::WindowOut, Region::TpState, Region::TpWindow];

/// Choices of a group that decide what its words mean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    pub receive: String,
    pub flags: String,
    pub stage: u32,
    /// The distance of status slots in bytes.
    pub slots: u64,
    /// Words have the numbers of their calls.
    pub checked: bool,
    pub port_offset: i64,
    pub experts: String,
    /// The most batches in flight.
    pub in_flight: u32,
    /// Operators were taken in two halves, so that their order is not that of whole operators.
    pub halves: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self::chosen(Choices::default(), 0, 1)
    }
}

impl Options {
    /// Returns the options of a group with these choices.
    pub fn chosen(choices: Choices, port_offset: i64, in_flight: u32) -> Self {
        Self {
            receive: choices.receive.name().to_owned(),
            flags: choices.flags.name().to_owned(),
            stage: match choices.stage {
                Stage::Two => 2,
                Stage::Three => 3,
            },
            slots: choices.slots.bytes(),
            checked: choices.checked,
            port_offset,
            experts: Experts::under(choices.receive).name().to_owned(),
            in_flight,
            halves: false,
        }
    }

    /// Returns what the file of a folder states; nothing if it has no such file.
    ///
    /// # Errors
    /// The file cannot be read or is no TOML.
    pub fn stated(folder: &Path) -> Result<toml::Table, Error> {
        let path = folder.join(OPTIONS_NAME);
        if !path.exists() {
            return Ok(toml::Table::new());
        }
        let (text, _) = config::text(&path)?;
        toml::from_str(&text).map_err(|e| Error::file(&path, e.message()))
    }

    /// Returns all options with their values.
    pub fn table(&self) -> Result<toml::Table, Error> {
        toml::Table::try_from(self).map_err(|e| Error::Request(format!("{OPTIONS_NAME}: {e}")))
    }

    /// Returns the options of a folder that states these keys. The others have their defaults.
    ///
    /// # Errors
    /// A key is unknown, a value has another type.
    pub fn of(folder: &Path, stated: toml::Table) -> Result<Self, Error> {
        Self::deserialize(stated).map_err(|e| Error::file(&folder.join(OPTIONS_NAME), e.message()))
    }
}

/// The file of a region of the rank with that number.
pub fn file(folder: &Path, rank: u32, region: Region) -> PathBuf {
    folder.join(format!("rank{rank}.{}", region.name()))
}

/// The rank whose file has that name.
pub fn rank_of(name: &str) -> Option<u32> {
    let (rank, region) = name.strip_prefix("rank")?.split_once('.')?;
    rank.parse().ok().filter(|_| REGIONS.iter().any(|of| of.name() == region))
}

/// Makes the folder of a dump, or refuses it before there is anything to write.
///
/// # Errors
/// It cannot be made, or no file in it.
pub fn make(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder)
        .map_err(|e| Error::file(folder, format_args!("cannot make the folder: {e}")))?;
    // A dump has its options before its configuration, and a case has none.
    if folder.join(FILE_NAME).exists() && !folder.join(OPTIONS_NAME).exists() {
        let wrong = format_args!("has a {FILE_NAME} that is of no dump: --dump must name another folder");
        return Err(Error::file(folder, wrong));
    }
    crate::atomic_file::check_writable(&folder.join(FILE_NAME))
}
