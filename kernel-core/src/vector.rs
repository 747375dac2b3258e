//! stand-in until the other lands
use crate::shape::Dtype;
/// x
#[derive(Debug)]
pub struct NotFinite;
/// x
pub trait Vector: Copy {
    /// x
    fn quantise(
        &self,
        d: Dtype,
        row: &[u8],
        smooth: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<f32, NotFinite>;
    /// x
    fn weighted_sum(&self, d: Dtype, rows: &[&[u8]], weights: &[f32], unscaled: &[&[u8]], out: &mut [u8]);
}
