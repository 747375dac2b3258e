//! `veriep.Group`: tensors cross by address, so no row is copied on its way. `_group.py` alone calls this.
#![allow(unsafe_code)]

use crate::{Keys, config, raised};
use core::time::Duration;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use veriep::error::Error;
use veriep::live::{self, Plan, Tokens};
use veriep::vector::Unit;
use veriep::world::join::{Rendezvous, Store};
use veriep_core::inputs::Mask;
use veriep_core::place::Tensor;
use veriep_core::shape::RowElement;
use veriep_core::units::RankId;

/// Rank, ranks, `bs`, `k`, `h`, the types of rows and of received ones, and whether these have scales.
type About = (u32, usize, u32, u32, u32, [&'static str; 2], bool);

/// The address of an array and its bytes.
type Array = (usize, usize);

/// The bytes of an array.
///
/// # Safety
/// It is contiguous, there as long as the slice, and not written meanwhile.
unsafe fn bytes<'a>((at, len): Array) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: as the caller promises; NumPy has no array at address 0.
    unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(at), len) }
}

/// The same, to be written.
///
/// # Safety
/// As of `bytes`, and nobody reads it meanwhile.
unsafe fn bytes_mut<'a>((at, len): Array) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: as above.
    unsafe { core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(at), len) }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.as_chunks().0.iter().copied()
}

/// A store of `torch.distributed`, or whatever has `set` and `get` like one.
struct PyStore<'a>(&'a Py<PyAny>);

impl PyStore<'_> {
    /// Whether a key is there, as far as the store tells: theirs wait for one that is not. Older ones have no `check`, but
    /// numbers that can be asked for without waiting, so `set` leaves one beside the key.
    fn is_there(store: &Bound<'_, PyAny>, key: &str) -> PyResult<bool> {
        if store.hasattr("check")? {
            return store.call_method1("check", (vec![key],))?.extract();
        }
        Ok(!store.hasattr("add")?
            || store.call_method1("add", (format!("{key}.set"), 0))?.extract::<i64>()? > 0)
    }
}

impl Store for PyStore<'_> {
    fn set(&self, key: &str, value: &str) -> Result<(), String> {
        let set = |py: Python<'_>| {
            let store = self.0.bind(py);
            store.call_method1("set", (key, value))?;
            if !store.hasattr("check")? && store.hasattr("add")? {
                store.call_method1("add", (format!("{key}.set"), 1))?;
            }
            Ok(())
        };
        Python::attach(set).map_err(|error: PyErr| error.to_string())
    }

    fn get(&self, key: &str) -> Result<Option<String>, String> {
        let get = |py: Python<'_>| {
            let store = self.0.bind(py);
            if !Self::is_there(store, key)? {
                return Ok(None);
            }
            let value = store.call_method1("get", (key,))?;
            if value.is_none() {
                return Ok(None);
            }
            let text = value.extract::<String>();
            text.or_else(|_| Ok(String::from_utf8_lossy(&value.extract::<Vec<u8>>()?).into_owned())).map(Some)
        };
        Python::attach(get).map_err(|error: PyErr| error.to_string())
    }
}

/// Runs something without the interpreter's lock, which asks now and then whether a signal has come, or somebody wants it to
/// end.
fn waiting<T: Send>(
    py: Python<'_>,
    closes: &AtomicBool,
    run: impl FnOnce(live::GoesOn<'_>) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let mut signal = None;
    let mut goes_on = || {
        let served = |py: Python<'_>| -> PyResult<()> {
            py.check_signals()?;
            Ok(())
        };
        signal = Python::attach(served).err();
        signal.is_none() && !closes.load(Ordering::Relaxed)
    };
    let ran = py.detach(|| run(&mut goes_on));
    match (ran, signal) {
        (Ok(ran), _) => Ok(ran),
        (Err(_), Some(signal)) => Err(signal),
        (Err(error), None) => Err(raised(py, &error)),
    }
}

fn plan(py: Python<'_>, preset: Option<&str>, keys: &Keys, deadline: f64) -> PyResult<Plan> {
    let is_fixed = keys.iter().any(|(key, _)| matches!(key.as_str(), "hccl_buffsize_mb" | "HCCL_BUFFSIZE"));
    let config = config(preset, keys)?;
    let deadline = Duration::from_secs_f64(deadline);
    let vector = Unit::Auto.find();
    let plan = vector.and_then(|vector| Plan::new(config, is_fixed, vector, deadline));
    plan.map_err(|error| raised(py, &error))
}

/// A rank of a live group, and whether it is to leave it.
#[pyclass(frozen)]
pub(crate) struct Member(Mutex<live::Member>, AtomicBool);

/// A batch between its dispatch and its combine.
#[pyclass(frozen)]
pub(crate) struct Handle(live::Handle);

#[pymethods]
impl Member {
    /// Joins a group: where others are met is a path or a store.
    #[staticmethod]
    fn join(
        py: Python<'_>,
        place: (u32, usize),
        rendezvous: (Option<PathBuf>, Option<Py<PyAny>>),
        preset: Option<&str>,
        keys: Keys,
        limits: (f64, f64),
    ) -> PyResult<Self> {
        let ((rank, world_size), (path, store), (patience, deadline)) = (place, rendezvous, limits);
        let plan = plan(py, preset, &keys, deadline)?;
        if plan.members() != world_size || rank as usize >= world_size {
            let error = Error::Request(format!(
                "rank {rank} of {world_size}: must be in [0, {0}) of {0}, the ranks of the configuration",
                plan.members()
            ));
            return Err(raised(py, &error));
        }
        let patience = Duration::from_secs_f64(patience);
        let member = waiting(py, &AtomicBool::new(false), |goes_on| {
            let store = store.as_ref().map(PyStore);
            let rendezvous = match (&path, &store) {
                (Some(path), _) => Rendezvous::File(path),
                (None, Some(store)) => Rendezvous::Store(store),
                (None, None) => return Err(Error::Request("rendezvous: missing".to_owned())),
            };
            plan.join(RankId(rank), rendezvous, patience, goes_on)
        })?;
        Ok(Self(Mutex::new(member), AtomicBool::new(false)))
    }

    /// All ranks of a group of threads.
    #[staticmethod]
    fn local(py: Python<'_>, preset: Option<&str>, keys: Keys, deadline: f64) -> PyResult<Vec<Self>> {
        let members = plan(py, preset, &keys, deadline)?.local().map_err(|error| raised(py, &error))?;
        let member = |member| Self(Mutex::new(member), AtomicBool::new(false));
        Ok(members.into_iter().map(member).collect())
    }

    /// Returns the sizes and types of the group, and the rank of this member.
    fn about(&self) -> PyResult<About> {
        let member = self.free()?;
        let shape = member.shape();
        let ranks = shape.ep_world_size() * shape.tp_world_size();
        let rank = member.rank();
        let types = [RowElement::Dtype, shape.row_format().element].map(|of| of.name(shape.dtype()));
        let bs = (member.x_out_bytes() as u64 / shape.row_bytes()) as u32;
        let have_scales = shape.row_format().scale.is_some();
        Ok((rank.0, ranks as usize, bs, shape.k(), shape.h(), types, have_scales))
    }

    /// The MoE experts of the rank.
    fn experts(&self) -> PyResult<Vec<u32>> {
        Ok(self.free()?.experts().map(|expert| expert.0).collect())
    }

    /// The batch, its number, the rows received; addresses and bytes of rows, scales and counts.
    fn dispatch(
        &self,
        py: Python<'_>,
        given: [Array; 3],
        mask: Option<(usize, usize, bool)>,
    ) -> PyResult<(Handle, usize, usize, [Array; 3])> {
        let [x, ids, weights] = given;
        let mut free = self.free()?;
        let member = &mut *free;
        let of = waiting(py, &self.1, |goes_on| {
            // SAFETY: `_group.py` passes contiguous arrays that it refers to until this returns, and its users are told not to
            // write them meanwhile.
            let (x, ids, weights) = unsafe { (bytes(x), bytes(ids), bytes(weights)) };
            let expert_ids: Vec<_> = words(ids).map(i32::from_le_bytes).collect();
            let expert_scales: Vec<_> = words(weights).map(f32::from_le_bytes).collect();
            // SAFETY: the same.
            let mask = mask.map(|(at, len, pairs)| (unsafe { bytes((at, len)) }, pairs));
            let active: Vec<_> =
                mask.iter().flat_map(|(mask, _)| mask.iter().map(|&byte| byte != 0)).collect();
            let mask = match mask {
                None => Mask::None,
                Some((_, false)) => Mask::Tokens(&active),
                Some((_, true)) => Mask::Pairs(&active),
            };
            let tokens = Tokens { x, expert_ids: &expert_ids, expert_scales: &expert_scales, mask };
            member.dispatch(&tokens, goes_on)
        })?;
        let outputs = [Tensor::ExpandX, Tensor::DynamicScales, Tensor::ExpertTokenNums].map(|tensor| {
            let (at, len) = member.output(of, tensor);
            (at.expose_provenance(), len)
        });
        Ok((Handle(of), of.round, of.rows, outputs))
    }

    /// Returns rows and writes the sums of all `bs` tokens.
    fn combine(&self, py: Python<'_>, of: &Handle, y: Array, x_out: Array) -> PyResult<()> {
        let mut member = self.free()?;
        let (member, of) = (&mut *member, of.0);
        waiting(py, &self.1, move |goes_on| {
            // SAFETY: as in `dispatch`; `x_out` is an array that `_group.py` has made for this and given to nobody yet.
            let (y, x_out) = unsafe { (bytes(y), bytes_mut(x_out)) };
            member.combine(of, y, x_out, goes_on)
        })
    }

    /// Leaves the group. A call that runs in another thread ends with an error, and then leaves it.
    fn close(&self) {
        self.1.store(true, Ordering::Relaxed);
        if let Ok(mut member) = self.0.try_lock() {
            member.close();
        }
    }
}

impl Member {
    fn free(&self) -> PyResult<MutexGuard<'_, live::Member>> {
        match self.0.try_lock() {
            Ok(member) => Ok(member),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(PyRuntimeError::new_err("another thread calls this rank: it runs one operator at a time"))
            }
        }
    }
}
