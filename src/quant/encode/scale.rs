//! The scale of a group, and the scales of many groups side by side.

/// The scale of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupScale {
    /// The factor of codes when they are decoded.
    pub(super) scale: f32,
    /// The bits of a float32 if scales are stored as floats of 16 or 32 bits, otherwise the stored byte.
    pub(super) stored: u32,
    /// See [`super::lanes::Quotient`].
    pub(super) factor: f32,
    /// The scale times [`Chooser::multiplier`](super::choose::Chooser::multiplier), which is a float64: the divisor of exact arithmetic.
    pub(super) wide: f64,
    pub(super) zero: f32,
    /// See [`super::EncodeTally::underflowed_groups`].
    pub(super) is_underflow: bool,
}

/// Number of groups whose scales are chosen at a time.
pub(super) const WIDTH: usize = 16;

/// Computes a number for each of some groups.
#[inline(always)]
pub(super) fn each<T: Copy + Default, const N: usize>(number: impl Fn(usize) -> T) -> [T; N] {
    let mut numbers = [T::default(); N];
    for (at, out) in numbers.iter_mut().enumerate() {
        *out = number(at);
    }
    numbers
}

/// Scales of some groups: a lane for each field of [`GroupScale`], without those of exact arithmetic.
pub(super) struct ScaleLanes<const N: usize> {
    pub(super) scale: [f32; N],
    pub(super) stored: [u32; N],
    pub(super) factor: [f32; N],
    pub(super) zero: [f32; N],
    pub(super) is_underflow: [u32; N],
}

impl<const N: usize> ScaleLanes<N> {
    /// Makes scales that are stored as floats, the divisors of values.
    #[inline(always)]
    pub(super) fn of_numbers(scale: [f32; N]) -> Self {
        let stored = each(|at| scale[at].to_bits());
        Self { scale, stored, factor: scale, zero: [0.0; N], is_underflow: [0; N] }
    }

    /// Makes scales that are powers of two: stored as exponents with a bias of 127, and applied as reciprocals.
    #[inline(always)]
    pub(super) fn of_exponents(exponents: &[i32; N]) -> Self {
        let bytes: [u32; N] = each(|at| (exponents[at] + 127).clamp(0, 254) as u32);
        let half = f32::from_bits(0x0040_0000);
        let scale = each(|at| if bytes[at] == 0 { half } else { f32::from_bits(bytes[at] << 23) });
        // The reciprocal of a power of two is exact, so multiplying by it gives the quotient.
        let factor = each(|at| if bytes[at] == 254 { half } else { f32::from_bits((254 - bytes[at]) << 23) });
        Self { stored: bytes, factor, ..Self::of_numbers(scale) }
    }

    #[inline(always)]
    pub(super) fn group(&self, at: usize) -> GroupScale {
        GroupScale {
            scale: self.scale[at],
            stored: self.stored[at],
            factor: self.factor[at],
            wide: self.scale[at].into(),
            zero: self.zero[at],
            is_underflow: self.is_underflow[at] != 0,
        }
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

    /// Copies the scales of the groups from `WIDTH * chunk` on.
    #[inline(always)]
    pub(super) fn take(&mut self, chunk: usize, lanes: &ScaleLanes<WIDTH>) {
        let groups = WIDTH * chunk..WIDTH * (chunk + 1);
        self.scale[groups.clone()].copy_from_slice(&lanes.scale);
        self.stored[groups.clone()].copy_from_slice(&lanes.stored);
        self.factor[groups.clone()].copy_from_slice(&lanes.factor);
        self.zero[groups.clone()].copy_from_slice(&lanes.zero);
        self.is_underflow[groups].copy_from_slice(&lanes.is_underflow);
    }
}
