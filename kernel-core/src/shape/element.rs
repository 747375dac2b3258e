//! Elements of two bytes to f32 and back. Selects instead of branches, so that loops over them vectorise.

/// An element type, converted by its bits one by one, or several at a time if a unit supports it.
pub(crate) trait Element: Copy {
    /// Returns the value, exactly.
    fn widen(bits: u16) -> f32;
    /// Rounds to nearest, ties to even; every NaN becomes the positive quiet one without payload.
    fn narrow(value: f32) -> u16;

    /// Returns the values of elements in memory.
    #[inline(always)]
    fn widen_all<const N: usize>(self, from: &[[u8; 2]; N]) -> [f32; N] {
        let mut to = [0.0; N];
        for (to, &from) in to.iter_mut().zip(from) {
            *to = load::<Self>(from);
        }
        to
    }

    /// Stores values as elements in memory.
    #[inline(always)]
    fn narrow_all<const N: usize>(self, from: &[f32; N], to: &mut [[u8; 2]; N]) {
        for (to, &from) in to.iter_mut().zip(from) {
            *to = Self::narrow(from).to_le_bytes();
        }
    }

    /// Returns the values of elements in memory in an order of the unit's own: the one that costs least.
    #[inline(always)]
    fn widen_apart<const N: usize>(self, from: &[[u8; 2]; N]) -> [f32; N] {
        self.widen_all(from)
    }

    /// Stores values in the order of [`widen_apart`](Self::widen_apart) as elements in memory.
    #[inline(always)]
    fn narrow_apart<const N: usize>(self, from: &[f32; N], to: &mut [[u8; 2]; N]) {
        self.narrow_all(from, to);
    }

    /// Rounds values as if they travelled as elements.
    #[inline(always)]
    fn round_all<const N: usize>(self, values: &mut [f32; N]) {
        for value in values.iter_mut() {
            *value = Self::widen(Self::narrow(*value));
        }
    }
}

/// Returns the bits of a value whose bytes are stored one by one.
///
/// NVIDIA's assembler (ptxas 13.0) takes a store of a byte from a register that a float was computed into for a conversion of
/// the float; there the compiler must forget that it was one.
#[inline(always)]
pub(crate) fn bits(value: f32) -> u32 {
    let forgotten = if cfg!(target_arch = "nvptx64") { core::hint::black_box(value) } else { value };
    forgotten.to_bits()
}

/// Returns the value of an element in memory.
#[inline(always)]
pub(crate) fn load<E: Element>(bytes: [u8; 2]) -> f32 {
    E::widen(u16::from_le_bytes(bytes))
}

/// bfloat16.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;
/// IEEE half precision.
#[derive(Clone, Copy)]
pub(crate) struct F16;

const ABS: u32 = 0x7FFF_FFFF;
const INFINITY: u32 = 0x7F80_0000;
/// The half of the bits of an f32 that bfloat16 keeps.
const UPPER: u32 = 0xFFFF_0000;

impl Element for Bf16 {
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        (Self::rounded(value) >> 16) as u16
    }

    // The first of two neighbours is shifted into place, and the second is there already: no element changes its lane. First
    // elements come before all second ones.
    #[inline(always)]
    fn widen_apart<const N: usize>(self, from: &[[u8; 2]; N]) -> [f32; N] {
        let mut to = [0.0; N];
        let (first, second) = to.split_at_mut(N >> 1);
        let pairs = from.as_flattened().as_chunks().0;
        for ((first, second), &pair) in first.iter_mut().zip(second).zip(pairs) {
            let pair = u32::from_le_bytes(pair);
            (*first, *second) = (f32::from_bits(pair << 16), f32::from_bits(pair & UPPER));
        }
        to
    }

    #[inline(always)]
    fn narrow_apart<const N: usize>(self, from: &[f32; N], to: &mut [[u8; 2]; N]) {
        let (first, second) = from.split_at(N >> 1);
        let pairs = to.as_flattened_mut().as_chunks_mut().0;
        for ((&first, &second), pair) in first.iter().zip(second).zip(pairs) {
            *pair = (Self::rounded(first) >> 16 | Self::rounded(second) & UPPER).to_le_bytes();
        }
    }
}

impl Bf16 {
    /// Returns the bits of a value whose upper half is the rounded one.
    #[inline(always)]
    fn rounded(value: f32) -> u32 {
        let bits = value.to_bits();
        let odd = (bits >> 16) & 1;
        // Half of the last place less one, plus one if the kept part is odd: carries exactly when it should, from a finite
        // value at most into infinity. NaNs may wrap; their result is discarded.
        let rounded = bits.wrapping_add(0x7FFF + odd);
        if value.is_nan() { 0x7FC0 << 16 } else { rounded }
    }
}

/// f32 exponents start 112 below those of f16.
const REBIAS: u32 = 112 << 23;

/// 2^-14, the smallest normal number of f16.
const SMALLEST_NORMAL: f32 = f32::from_bits(113 << 23);

impl Element for F16 {
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        // Shifted with its sign: bit 31 is the sign, 28 to 30 are copies of it.
        let shifted = (i32::from(bits.cast_signed()) << 13).cast_unsigned();
        let magnitude = shifted & 0x0FFF_E000;
        // This is right for normal numbers. A denormal m * 2^-24 gives y = 2^-15 + m * 2^-25 instead, so it is 2 * y -
        // 2^-14: all exact and without denormal operands, which would be slow.
        let y = f32::from_bits(magnitude + REBIAS);
        let excess = y - SMALLEST_NORMAL;
        let number = y + if excess < 0.0 { excess } else { 0.0 };
        // Infinity and NaN keep an exponent of all ones.
        let special = if magnitude >= 0x7C00 << 13 { INFINITY } else { 0 };
        f32::from_bits(number.to_bits() | special | (shifted & !ABS))
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        let sign = ((value.to_bits() >> 16) & 0x8000) as u16;
        let magnitude = value.to_bits() & ABS;
        let odd = (magnitude >> 13) & 1;
        let normal = (magnitude.wrapping_sub(REBIAS).wrapping_add(0xFFF + odd) >> 13) as u16;
        // The last place of 0.5f32 is 2^-24, that of f16's denormals, so the addition does the rounding.
        let denormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits()) as u16;
        let finite = if magnitude < 113 << 23 { denormal } else { normal };
        // From 2^16 on everything is infinite; values from 65520 on become infinite by the carry.
        let number = if magnitude >= 143 << 23 { 0x7C00 } else { finite };
        if magnitude > INFINITY { 0x7E00 } else { sign | number }
    }
}
