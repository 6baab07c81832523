//! The scale of a group, and the scales of many groups side by side.

/// The scale of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupScale {
    /// The factor of codes when they are decoded.
    pub(super) scale: f32,
    /// The bits of a float32 if scales are stored as floats of 16 or 32 bits, otherwise the stored byte.
    pub(super) stored: u32,
    /// See [`super::choose::Quotient`].
    pub(super) factor: f32,
    /// The scale times [`Chooser::multiplier`](super::choose::Chooser::multiplier), which is a float64: the divisor of exact arithmetic.
    pub(super) wide: f64,
    pub(super) zero: f32,
    /// See [`super::EncodeTally::underflowed_groups`].
    pub(super) is_underflow: bool,
}

/// Number of groups whose scales are chosen at a time.
pub(super) const WIDTH: usize = 16;

/// Scales of [`WIDTH`] groups, without the fields of exact arithmetic.
#[derive(Default)]
pub(super) struct ScaleLanes {
    scale: [f32; WIDTH],
    stored: [u32; WIDTH],
    factor: [f32; WIDTH],
    zero: [f32; WIDTH],
    is_underflow: [u32; WIDTH],
}

impl ScaleLanes {
    #[inline(always)]
    pub(super) fn set(&mut self, at: usize, scale: &GroupScale) {
        self.scale[at] = scale.scale;
        self.stored[at] = scale.stored;
        self.factor[at] = scale.factor;
        self.zero[at] = scale.zero;
        self.is_underflow[at] = scale.is_underflow.into();
    }
}

/// The scales of some groups: a lane for each field of [`GroupScale`], which the loops over values read.
pub(super) struct ChosenScales {
    pub(super) scale: Vec<f32>,
    pub(super) stored: Vec<u32>,
    pub(super) factor: Vec<f32>,
    pub(super) wide: Vec<f64>,
    /// See [`Chooser::multiplier`](super::choose::Chooser::multiplier).
    pub(super) multiplier: f64,
    pub(super) zero: Vec<f32>,
    is_underflow: Vec<u32>,
}

impl ChosenScales {
    pub(super) fn new(groups: usize) -> Self {
        let len = groups.next_multiple_of(WIDTH);
        let numbers = vec![0.0; len];
        Self {
            scale: numbers.clone(),
            stored: vec![0; len],
            factor: numbers.clone(),
            wide: vec![0.0; len],
            multiplier: 1.0,
            zero: numbers,
            is_underflow: vec![0; len],
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, at: usize) -> GroupScale {
        GroupScale {
            scale: self.scale[at],
            stored: self.stored[at],
            factor: self.factor[at],
            wide: self.wide[at],
            zero: self.zero[at],
            is_underflow: self.is_underflow[at] != 0,
        }
    }

    #[inline(always)]
    pub(super) fn set(&mut self, at: usize, scale: &GroupScale) {
        self.scale[at] = scale.scale;
        self.stored[at] = scale.stored;
        self.factor[at] = scale.factor;
        self.wide[at] = scale.wide;
        self.zero[at] = scale.zero;
        self.is_underflow[at] = scale.is_underflow.into();
    }

    /// Returns the stored scales and zero points of the first groups.
    #[inline(always)]
    pub(super) fn stored_with_zeros(&self, groups: usize) -> impl Iterator<Item = (u32, f32)> + Clone {
        self.stored[..groups].iter().copied().zip(self.zero[..groups].iter().copied())
    }

    /// The number of underflowed scales among the first groups.
    #[inline(always)]
    pub(super) fn underflowed(&self, groups: usize) -> u64 {
        u64::from(self.is_underflow[..groups].iter().sum::<u32>())
    }

    /// Copies the scales of the groups from `WIDTH * chunk` on; exact arithmetic does not use this.
    #[inline(always)]
    pub(super) fn take(&mut self, chunk: usize, lanes: &ScaleLanes) {
        let groups = WIDTH * chunk..WIDTH * (chunk + 1);
        self.scale[groups.clone()].copy_from_slice(&lanes.scale);
        self.stored[groups.clone()].copy_from_slice(&lanes.stored);
        self.factor[groups.clone()].copy_from_slice(&lanes.factor);
        self.zero[groups.clone()].copy_from_slice(&lanes.zero);
        self.is_underflow[groups].copy_from_slice(&lanes.is_underflow);
    }
}

impl GroupScale {
    /// Makes a scale that is stored as a float, the divisor of values.
    #[inline(always)]
    pub(super) fn number(scale: f32, is_underflow: bool) -> Self {
        Self { scale, stored: scale.to_bits(), factor: scale, wide: scale.into(), zero: 0.0, is_underflow }
    }

    /// Makes a scale that is a power of two: stored as its exponent with a bias of 127, and applied as its reciprocal.
    #[inline(always)]
    pub(super) fn exponent(exponent: i32, is_underflow: bool) -> Self {
        let byte = (exponent + 127).clamp(0, 254);
        let scale = f32::from_bits(if byte == 0 { 0x0040_0000 } else { (byte as u32) << 23 });
        // The reciprocal of a power of two is exact, so multiplying by it gives the quotient.
        let factor = f32::from_bits(if byte == 254 { 0x0040_0000 } else { (254 - byte as u32) << 23 });
        Self { scale, stored: byte as u32, factor, wide: scale.into(), zero: 0.0, is_underflow }
    }

    /// Like [`GroupScale::exponent`], by [`ScaleRule::Ceiling`](super::super::ScaleRule::Ceiling).
    #[inline(always)]
    pub(super) fn raised(exponent: i32, is_some: bool) -> Self {
        Self::exponent(exponent, (exponent < -127) & is_some)
    }

    /// Like [`GroupScale::exponent`], by [`ScaleRule::CeilingOrZero`](super::super::ScaleRule::CeilingOrZero).
    #[inline(always)]
    pub(super) fn raised_or_zero(exponent: i32, is_some: bool) -> Self {
        let chosen = Self::exponent(exponent, false);
        let is_zero = chosen.stored == 0;
        let or_zero = |value: f32| if is_zero { 0.0 } else { value };
        let (scale, factor) = (or_zero(chosen.scale), or_zero(chosen.factor));
        Self { scale, factor, is_underflow: is_zero & is_some, ..chosen }
    }
}
