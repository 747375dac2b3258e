//! Tensors as they cross between Python and Rust: a name, a type as files have it, dimensions, bytes.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use safetensors::Dtype;
use std::borrow::Cow;
use veriep_case::store::Tensor;

/// From Python.
pub(crate) type Given<'a> = Vec<(String, String, Vec<usize>, Bound<'a, PyBytes>)>;

/// To Python, which wants bytes that it can change.
#[derive(IntoPyObject)]
pub(crate) struct Taken(String, String, Vec<usize>, Bytes);

struct Bytes(Vec<u8>);

impl<'py> IntoPyObject<'py> for Bytes {
    type Target = pyo3::types::PyByteArray;
    type Output = Bound<'py, Self::Target>;
    type Error = core::convert::Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Self::Error> {
        Ok(pyo3::types::PyByteArray::new(py, &self.0))
    }
}

/// What Python gives, as tensors of a file.
pub(crate) fn given<'a>(tensors: &'a Given<'_>) -> PyResult<Vec<Tensor<'a>>> {
    let tensor = |(name, dtype, shape, data): &'a (String, String, Vec<usize>, Bound<'_, PyBytes>)| {
        // The names are those that the format has for them.
        let dtype: Dtype = serde_json::from_value(dtype.as_str().into())
            .map_err(|_| PyTypeError::new_err(format!("{name}: dtype {dtype}: files have none like it")))?;
        Ok(Tensor { name: name.clone(), dtype, shape: shape.clone(), data: Cow::Borrowed(data.as_bytes()) })
    };
    tensors.iter().map(tensor).collect()
}

/// Tensors of a file, for Python.
pub(crate) fn taken(tensors: Vec<Tensor<'_>>) -> Vec<Taken> {
    let of = |tensor: Tensor<'_>| {
        Taken(tensor.name, tensor.dtype.to_string(), tensor.shape, Bytes(tensor.data.into_owned()))
    };
    tensors.into_iter().map(of).collect()
}
