//! `veriep.Group`: tensors cross by address, so no row is copied on its way. `_group.py` alone calls this.
#![allow(unsafe_code)]

use crate::{Keys, config, raised};
use core::time::Duration;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use veriep_case::case::ExpertMap;
use veriep_case::error::Error;
use veriep_core::inputs::Mask;
use veriep_core::place::Tensor;
use veriep_core::shape::{Limits, RowElement};
use veriep_core::units::RankId;
use veriep_group::live::{self, Order, Plan, Results, Terms, Tokens};
use veriep_group::vector::Unit;
use veriep_group::world::join::{Rendezvous, Store};

/// Of a layer: `bs`, `k`, `h`, const experts, the types of rows and of received ones, and whether these have scales.
type About = (u32, u32, u32, u32, [&'static str; 2], bool);

/// Parameters of a group: a preset, the keys of each layer over it, the words and rows of a map of redundant experts, and
/// the deadline, order and limits.
type Given = (Option<String>, Vec<Keys>, Option<(Vec<i32>, usize)>, (f64, String, String));

/// The address of an array and its bytes.
type Array = (usize, usize);

/// Rows that experts return; weights, shared experts' rows and the three tensors of const experts where there are some.
type Returned = (Array, Option<Array>, Option<Array>, [Array; 3]);

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
/// As of `bytes`, and no other code reads it meanwhile.
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

/// The values of an array of f32.
///
/// # Safety
/// As of `bytes`.
unsafe fn floats(array: Array) -> Vec<f32> {
    // SAFETY: as the caller promises.
    words(unsafe { bytes(array) }).map(f32::from_le_bytes).collect()
}

/// The outputs of dispatch, in the order in which `_group.py` takes them.
const OUTPUTS: [Tensor; 7] = [
    Tensor::ExpandX,
    Tensor::DynamicScales,
    Tensor::ExpertTokenNums,
    Tensor::EpRecvCounts,
    Tensor::AssistInfo,
    Tensor::ExpandScales,
    Tensor::TpRecvCounts,
];

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

/// Runs something without the interpreter's lock, which asks now and then whether a signal has come, or another thread wants it to
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

fn plan(py: Python<'_>, (preset, layers, expert_map, terms): Given) -> PyResult<Plan> {
    let (deadline, order, limits) = terms;
    let sizes = ["hccl_buffsize_mb", "HCCL_BUFFSIZE"];
    let is_fixed = layers.iter().flatten().any(|(key, _)| sizes.contains(&key.as_str()));
    let unknown = |name: &str, seen: &str, legal: &str| {
        Err(PyValueError::new_err(format!("{name} = {seen:?}: must be {legal}")))
    };
    let order = match order.as_str() {
        "strict" => Order::Strict,
        "loose" => Order::Loose,
        other => return unknown("order", other, "strict or loose"),
    };
    let limits = match limits.as_str() {
        "product" => Limits::Product,
        "open" => Limits::None,
        other => return unknown("limits", other, "product or open"),
    };
    let configs = layers.iter().map(|keys| config(preset.as_deref(), keys)).collect::<PyResult<Vec<_>>>()?;
    let expert_map = expert_map.map(|(words, rows)| ExpertMap { words, rows });
    let plan = Unit::Auto.find().and_then(|vector| {
        let deadline = Duration::from_secs_f64(deadline);
        Plan::of_layers(configs, expert_map, Terms { deadline, order, limits, vector, is_fixed })
    });
    plan.map_err(|error| raised(py, &error))
}

/// A rank of a live group, and whether it is to leave it.
#[pyclass(frozen)]
pub(crate) struct Member(Mutex<live::Member>, AtomicBool);

/// A batch between its dispatch and its combine.
#[pyclass(frozen)]
pub(crate) struct Handle(live::Handle);

/// An operator that has been sent, and not finished.
#[pyclass(frozen)]
pub(crate) struct Sent(live::Sent);

/// What dispatch has brought: the batch, its number, the rows received; addresses and bytes of its outputs, those of `OUTPUTS`.
type Taken = (Handle, usize, usize, [Array; OUTPUTS.len()]);

fn taken(member: &live::Member, of: live::Handle) -> Taken {
    let outputs = OUTPUTS.map(|tensor| {
        let (at, len) = member.output(&of, tensor);
        (at.expose_provenance(), len)
    });
    let (batch, rows) = (of.batch, of.rows);
    (Handle(of), batch, rows, outputs)
}

/// What dispatch is given: the layer; rows, ids and weights; the mask and whether it is of pairs; smooth scales; the number of the
/// call.
#[derive(FromPyObject)]
struct Dispatched(usize, [Array; 3], Option<(usize, usize, bool)>, Option<Array>, Option<u32>);

impl Dispatched {
    fn with<T>(&self, run: impl FnOnce(&Tokens<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let Self(layer, [x, ids, weights], mask, scales, call) = *self;
        // SAFETY: `_group.py` passes contiguous arrays that it refers to until this returns, and its users are told not to
        // write them meanwhile.
        let (x, ids) = unsafe { (bytes(x), bytes(ids)) };
        let expert_ids: Vec<_> = words(ids).map(i32::from_le_bytes).collect();
        // SAFETY: the same.
        let (expert_scales, scales) = unsafe { (floats(weights), scales.map(|scales| floats(scales))) };
        // SAFETY: the same.
        let mask = mask.map(|(at, len, pairs)| (unsafe { bytes((at, len)) }, pairs));
        let active: Vec<_> = mask.iter().flat_map(|(mask, _)| mask.iter().map(|&byte| byte != 0)).collect();
        let mask = match mask {
            None => Mask::None,
            Some((_, false)) => Mask::Tokens(&active),
            Some((_, true)) => Mask::Pairs(&active),
        };
        run(&Tokens {
            layer,
            x,
            expert_ids: &expert_ids,
            expert_scales: &expert_scales,
            mask,
            scales: scales.as_deref(),
            call,
        })
    }
}

/// Reads what experts returned.
fn with_results<T>(
    (y, weights, shared, consts): Returned,
    run: impl FnOnce(&Results<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    // SAFETY: as of `Dispatched`.
    let (y, weights) = unsafe { (bytes(y), weights.map(|of| floats(of))) };
    // SAFETY: the same.
    let (shared, [alpha_1, alpha_2, v]) = unsafe { (shared.map(|of| bytes(of)), consts.map(|of| bytes(of))) };
    run(&Results {
        y,
        expert_scales: weights.as_deref(),
        shared_expert_x: shared,
        const_expert_alpha_1: alpha_1,
        const_expert_alpha_2: alpha_2,
        const_expert_v: v,
    })
}

#[pymethods]
impl Member {
    /// Joins a group: where others are met is a path or a store. Its calls are compared with those of the group `beside`.
    #[staticmethod]
    fn join(
        py: Python<'_>,
        place: (u32, usize),
        rendezvous: (Option<PathBuf>, Option<Py<PyAny>>),
        given: Given,
        patience: f64,
        beside: Option<PyRef<'_, Self>>,
    ) -> PyResult<Self> {
        let ((rank, world_size), (path, store)) = (place, rendezvous);
        let plan = plan(py, given)?;
        if plan.members() != world_size || rank as usize >= world_size {
            let error = Error::Request(format!(
                "rank {rank} of {world_size}: must be in [0, {0}) of {0}, the ranks of the configuration",
                plan.members()
            ));
            return Err(raised(py, &error));
        }
        let patience = Duration::from_secs_f64(patience);
        let beside = beside.map(|beside| beside.free().map(|member| member.calls())).transpose()?;
        let member = waiting(py, &AtomicBool::new(false), |goes_on| {
            let store = store.as_ref().map(PyStore);
            let rendezvous = match (&path, &store) {
                (Some(path), _) => Rendezvous::File(path),
                (None, Some(store)) => Rendezvous::Store(store),
                (None, None) => return Err(Error::Request("rendezvous: missing".to_owned())),
            };
            plan.join(RankId(rank), rendezvous, patience, beside, goes_on)
        })?;
        Ok(Self(Mutex::new(member), AtomicBool::new(false)))
    }

    /// All ranks of a group of threads.
    #[staticmethod]
    fn local(py: Python<'_>, given: Given, beside: Vec<PyRef<'_, Self>>) -> PyResult<Vec<Self>> {
        let calls = beside.iter().map(|beside| beside.free().map(|member| member.calls()));
        let calls = calls.collect::<PyResult<Vec<_>>>()?;
        let members = plan(py, given)?.local(&calls).map_err(|error| raised(py, &error))?;
        let member = |member| Self(Mutex::new(member), AtomicBool::new(false));
        Ok(members.into_iter().map(member).collect())
    }

    /// Returns the rank of this member and the number of ranks, then sizes and types of each layer.
    fn about(&self) -> PyResult<(u32, usize, Vec<About>)> {
        let member = self.free()?;
        let shape = member.shape();
        let ranks = shape.ep_world_size() * shape.tp_world_size();
        let of_layer = |layer| {
            let shape = member.shape_of(layer)?;
            let types = [RowElement::Dtype, shape.row_format().element].map(|of| of.name(shape.dtype()));
            let bs = (member.x_out_bytes(layer) as u64 / shape.row_bytes()) as u32;
            let have_scales = shape.row_format().scale.is_some();
            Some((bs, shape.k(), shape.h(), shape.const_expert_num(), types, have_scales))
        };
        Ok((member.rank().0, ranks as usize, (0..).map_while(of_layer).collect()))
    }

    /// The MoE experts of the rank.
    fn experts(&self) -> PyResult<Vec<u32>> {
        Ok(self.free()?.experts().map(|expert| expert.0).collect())
    }

    /// The batch, its number, the rows received; addresses and bytes of its outputs, those of `OUTPUTS`.
    fn dispatch(&self, py: Python<'_>, given: Dispatched) -> PyResult<Taken> {
        self.with_member(py, |member, goes_on| {
            let of = given.with(|tokens| member.dispatch(tokens, goes_on))?;
            Ok(taken(member, of))
        })
    }

    /// Sends what `dispatch` sends. The batch, for `finish_dispatch`.
    fn send_dispatch(&self, py: Python<'_>, given: Dispatched) -> PyResult<Sent> {
        self.with_member(py, |member, goes_on| {
            given.with(|tokens| member.send_dispatch(tokens, goes_on)).map(Sent)
        })
    }

    /// What `dispatch` returns, of a batch that has been sent.
    fn finish_dispatch(&self, py: Python<'_>, sent: &Sent) -> PyResult<Taken> {
        let sent = sent.0;
        self.with_member(py, |member, goes_on| {
            let of = member.finish_dispatch(sent, goes_on)?;
            Ok(taken(member, of))
        })
    }

    /// Returns rows and writes the sums of all `bs` tokens. Weights, shared experts' rows and the three tensors of const
    /// experts are empty where there are none.
    fn combine(&self, py: Python<'_>, of: &Handle, given: Returned, x_out: Array) -> PyResult<()> {
        self.with_member(py, |member, goes_on| {
            // SAFETY: `x_out` is an array that `_group.py` has made for this and given to no caller yet.
            let x_out = unsafe { bytes_mut(x_out) };
            with_results(given, |results| member.combine(&of.0, results, x_out, goes_on))
        })
    }

    /// Returns the rows that `combine` returns. The batch, for `finish_combine`.
    fn send_combine(&self, py: Python<'_>, of: &Handle, given: Returned) -> PyResult<Sent> {
        self.with_member(py, |member, goes_on| {
            with_results(given, |results| member.send_combine(&of.0, results, goes_on)).map(Sent)
        })
    }

    /// Writes the sums of a batch whose rows have been returned.
    fn finish_combine(&self, py: Python<'_>, sent: &Sent, x_out: Array) -> PyResult<()> {
        let sent = sent.0;
        self.with_member(py, |member, goes_on| {
            // SAFETY: as in `combine`.
            member.finish_combine(sent, unsafe { bytes_mut(x_out) }, goes_on)
        })
    }

    /// Goes on with a batch that has been sent. Whether finishing it will not wait.
    fn poll(&self, py: Python<'_>, sent: &Sent) -> PyResult<bool> {
        let sent = sent.0;
        self.with_member(py, |member, _| member.poll(sent))
    }

    /// Leaves the group. A call that runs in another thread ends with an error, and then leaves it.
    fn close(&self) {
        self.1.store(true, Ordering::SeqCst);
        if let Ok(mut member) = self.0.try_lock() {
            member.close();
        }
    }
}

impl Member {
    /// Lets the member run a call.
    fn with_member<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut live::Member, live::GoesOn<'_>) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let mut free = self.open()?;
        let member = &mut *free;
        let ran = waiting(py, &self.1, |goes_on| run(member, goes_on));
        drop(free);
        self.close_if_asked();
        ran
    }

    /// The member for a call, closed before if another thread has asked for that.
    fn open(&self) -> PyResult<MutexGuard<'_, live::Member>> {
        let mut member = self.free()?;
        if self.1.load(Ordering::Relaxed) {
            member.close();
        }
        Ok(member)
    }

    /// After a call: a thread that has closed the group meanwhile has left that to the call.
    fn close_if_asked(&self) {
        if self.1.load(Ordering::SeqCst) {
            self.close();
        }
    }

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
