//! A folder of one's own, with what is wrong in it.

use crate::common::all_of;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::{TempDir, tempdir};
use veriep_case::case::{Case, TENSORS_NAME};
use veriep_case::config::{Bs, Config};
use veriep_case::generate::{Left, Options, generate_left};
use veriep_case::presets::preset;
use veriep_case::store::{Tensor, write_tensors};

pub(crate) struct Room(TempDir);

/// The name of a case in every room.
const CASE: &str = "case";
/// A user without rights.
const UNPRIVILEGED: u32 = 65534;

impl Room {
    pub(crate) fn new() -> Self {
        Self(tempdir().unwrap())
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs the program in the room.
    pub(crate) fn ask<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Output {
        self.command(args).output().unwrap()
    }

    pub(crate) fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_veriep"));
        command.args(args).current_dir(self.0.path()).stdin(Stdio::null());
        command.env("LC_ALL", "C");
        command
    }

    /// Splits the words of a request at spaces and runs it.
    pub(crate) fn run(&self, request: &str) -> Output {
        self.ask(request.split(' '))
    }

    /// Runs a request behind a shell's limits.
    pub(crate) fn limited(&self, limits: &str, request: &str) -> Output {
        let script = format!("{limits}; exec {} {request}", env!("CARGO_BIN_EXE_veriep"));
        Command::new("bash").args(["-c", &script]).current_dir(self.0.path()).output().unwrap()
    }

    /// Runs a request as a user who is not root; `None` where that cannot be.
    pub(crate) fn plain(&self, request: &str) -> Option<Output> {
        let mut command = self.command(request.split(' '));
        if is_root() {
            fs::set_permissions(self.at(""), Permissions::from_mode(0o755)).unwrap();
            command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
        }
        match command.output() {
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                skipped("only root may run the program here")
            }
            output => Some(output.unwrap()),
        }
    }

    /// Runs a script with a file system in memory in the folder `disk`; `$veriep` is the program. `None` if mounting is not allowed.
    pub(crate) fn mounted(&self, options: &str, script: &str) -> Option<Output> {
        self.folder("disk");
        let mount = format!("mount -t tmpfs -o {options} none disk");
        let shell = |script: &str| {
            let mut unshare = Command::new("unshare");
            unshare.args(["--map-root-user", "--mount", "bash", "-c", script]).current_dir(self.0.path());
            unshare.env("veriep", env!("CARGO_BIN_EXE_veriep")).output()
        };
        if !shell(&mount).is_ok_and(|output| output.status.success()) {
            return skipped("mounting is not allowed here");
        }
        Some(shell(&format!("{mount}; {script}")).unwrap())
    }

    /// A file that only root can read.
    pub(crate) fn closed(&self, name: &str, content: &str) -> &Self {
        self.file(name, content).mode(name, 0o000)
    }

    pub(crate) fn mode(&self, name: &str, mode: u32) -> &Self {
        fs::set_permissions(self.at(name), Permissions::from_mode(mode)).unwrap();
        self
    }

    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> &Self {
        fs::write(self.at(name), content).unwrap();
        self
    }

    /// What `check` says of a configuration.
    pub(crate) fn check(&self, content: impl AsRef<[u8]>) -> Output {
        self.file("layer.toml", content).run("check layer.toml")
    }

    /// Makes a case: 2 ranks, 4 experts, K 2, H 1024, BS 4.
    pub(crate) fn case(&self) -> &Self {
        self.case_with(|_| {}, Options::default())
    }

    pub(crate) fn case_with(&self, change: impl FnOnce(&mut Config), options: Options) -> &Self {
        self.save(change, options, Left::All)
    }

    /// A case of 6 ranks without ranks 1 and 4.
    pub(crate) fn elastic(&self) -> &Self {
        let change = |config: &mut Config| {
            (config.ep_world_size, config.moe_expert_num, config.bs) = (6, 12, Bs::Uniform(2));
        };
        self.save(change, Options::default(), Left::Without(&[1, 4]))
    }

    fn save(&self, change: impl FnOnce(&mut Config), options: Options, left: Left<'_>) -> &Self {
        let (mut config, _) = preset("tiny").unwrap();
        change(&mut config);
        let case: Case = generate_left(config, options, left, "test").unwrap();
        case.save(&self.at(CASE)).unwrap();
        self
    }

    fn inputs(&self) -> PathBuf {
        self.at(CASE).join(TENSORS_NAME)
    }

    /// Changes the tensors of the case and runs it.
    pub(crate) fn with_tensors(&self, edit: impl FnOnce(&mut Vec<Tensor<'_>>)) -> Output {
        self.edited("case/inputs.safetensors", edit).run("run case")
    }

    /// Changes the tensors of a file.
    pub(crate) fn edited(&self, name: &str, edit: impl FnOnce(&mut Vec<Tensor<'_>>)) -> &Self {
        let path = self.at(name);
        let mut tensors = all_of(&path);
        edit(&mut tensors);
        write_tensors(&path, tensors).unwrap();
        self
    }

    /// Writes 4-byte words into a tensor from the given one on, and runs the case.
    pub(crate) fn with_words(&self, name: &str, first: usize, words: &[[u8; 4]]) -> Output {
        self.with_tensors(|tensors| {
            tensor(tensors, name).data.to_mut()[4 * first..4 * (first + words.len())]
                .copy_from_slice(words.as_flattened());
        })
    }

    /// Changes the bytes of a saved case's tensors and runs it.
    pub(crate) fn with_bytes(&self, edit: impl FnOnce(&mut Vec<u8>)) -> Output {
        self.case();
        let mut bytes = fs::read(self.inputs()).unwrap();
        edit(&mut bytes);
        fs::write(self.inputs(), bytes).unwrap();
        self.run("run case")
    }

    /// Replaces the header's text, its length with it, and runs the case.
    pub(crate) fn with_header(&self, edit: impl FnOnce(&str) -> String) -> Output {
        self.with_bytes(|bytes| {
            let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let old = core::str::from_utf8(&bytes[8..8 + len]).unwrap();
            let new = edit(old);
            assert_ne!(new, old);
            *bytes = [&(new.len() as u64).to_le_bytes()[..], new.as_bytes(), &bytes[8 + len..]].concat();
        })
    }

    pub(crate) fn remove(&self, name: &str) -> &Self {
        fs::remove_file(self.at(name)).unwrap();
        self
    }

    pub(crate) fn folder(&self, name: &str) -> &Self {
        fs::create_dir(self.at(name)).unwrap();
        self
    }

    pub(crate) fn link(&self, to: impl AsRef<Path>, name: &str) -> &Self {
        std::os::unix::fs::symlink(to, self.at(name)).unwrap();
        self
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says why a row cannot be tried on this machine.
pub(crate) fn skipped(why: &str) -> Option<Output> {
    println!("left out: {why}");
    None
}

pub(crate) fn tensor<'t, 'a>(tensors: &'t mut [Tensor<'a>], name: &str) -> &'t mut Tensor<'a> {
    tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
}
