//! Weights: any unit in, hundredths of a kilogram out, in decimal arithmetic all the way.
//!
//! A JSON number is read from its own text, so that no binary float ever rounds it: `80.005` is
//! exactly that, and half of a hundredth is rounded up. The bounds are judged before rounding.

use std::fmt;

/// Digits that a number may have beside leading and trailing zeros: more than any scale tells, and
/// what fits into the arithmetic below.
const DIGITS_MAX: usize = 25;
/// The heaviest weight, in hundredths of a kilogram.
const MAX: u128 = 100_000;
/// Factors are in units of 10^-8 kg; hundredths are 10^6 of them.
const FACTOR_TO_HUNDREDTHS: i64 = 6;

/// A weight in hundredths of a kilogram: above 0, at most 1,000 kg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Weight(u32);

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Kilogram,
    Pound,
    Stone,
    Gram,
}

/// Why a number is no weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoWeight {
    NotANumber,
    TooPrecise,
    NotAboveZero,
    TooHeavy,
}

impl fmt::Display for NoWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotANumber => f.write_str("must be a number"),
            Self::TooPrecise => write!(f, "must have at most {DIGITS_MAX} significant digits"),
            Self::NotAboveZero => f.write_str("must be above 0, and at least 0.01 kg when rounded"),
            Self::TooHeavy => f.write_str("must be at most 1000 kg"),
        }
    }
}

impl Unit {
    /// Reads a unit, whatever its case.
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text.trim().to_ascii_lowercase().as_str() {
            "kg" => Some(Self::Kilogram),
            "lb" => Some(Self::Pound),
            "st" => Some(Self::Stone),
            "g" => Some(Self::Gram),
            _ => None,
        }
    }

    /// Its weight in units of 10^-8 kg: exact, by the definition of the pound.
    const fn factor(self) -> u128 {
        match self {
            Self::Kilogram => 100_000_000,
            Self::Pound => 45_359_237,
            Self::Stone => 14 * 45_359_237,
            Self::Gram => 100_000,
        }
    }
}

impl Weight {
    /// The weight that a JSON number tells.
    ///
    /// # Errors
    /// Why it tells none.
    pub(super) fn of_json(number: &str, unit: Unit) -> Result<Self, NoWeight> {
        let (coefficient, exponent) = decimal(number)?;
        if coefficient == 0 {
            return Err(NoWeight::NotAboveZero);
        }
        // At most 10^25 × 6.4 × 10^8: far from overflowing.
        let parts = coefficient * unit.factor();
        let power = exponent - FACTOR_TO_HUNDREDTHS;
        if power >= 0 {
            let scale = u32::try_from(power).ok().and_then(|power| 10_u128.checked_pow(power));
            let hundredths = scale.and_then(|scale| parts.checked_mul(scale));
            return match hundredths.filter(|weight| *weight <= MAX).map(u32::try_from) {
                Some(Ok(hundredths)) => Ok(Self(hundredths)),
                _ => Err(NoWeight::TooHeavy),
            };
        }
        let scale =
            u32::try_from(-power).ok().and_then(|power| 10_u128.checked_pow(power)).unwrap_or(0);
        if scale == 0 {
            return Err(NoWeight::NotAboveZero);
        }
        let (whole, rest) = (parts / scale, parts % scale);
        if whole > MAX || (whole == MAX && rest > 0) {
            return Err(NoWeight::TooHeavy);
        }
        let rounded = whole + u128::from(rest >= scale - rest);
        match u32::try_from(rounded) {
            Ok(0) | Err(_) => Err(NoWeight::NotAboveZero),
            Ok(hundredths) => Ok(Self(hundredths)),
        }
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// A JSON number as an integer and a power of ten.
fn decimal(number: &str) -> Result<(u128, i64), NoWeight> {
    let is_number = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
    if number.is_empty() || !number.bytes().all(is_number) {
        return Err(NoWeight::NotANumber);
    }
    if number.starts_with('-') {
        return Err(NoWeight::NotAboveZero);
    }
    let (mantissa, exponent) = match number.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent),
        None => (number, "0"),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let digits = all.trim_start_matches('0').trim_end_matches('0');
    if digits.is_empty() {
        return Ok((0, 0));
    }
    if digits.len() > DIGITS_MAX {
        return Err(NoWeight::TooPrecise);
    }
    let zeros = all.len() - all.trim_end_matches('0').len();
    let shift = i64::try_from(zeros).unwrap_or(i64::MAX / 4)
        - i64::try_from(fraction.len()).unwrap_or(i64::MAX / 4);
    // An exponent beyond all bounds is as good as the largest.
    let huge = if exponent.starts_with('-') { -1_000_000 } else { 1_000_000 };
    let exponent = exponent.parse::<i64>().unwrap_or(huge).clamp(-1_000_000, 1_000_000);
    let coefficient = digits.parse().map_err(|_| NoWeight::NotANumber)?;
    Ok((coefficient, exponent.saturating_add(shift)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(unit: Unit, table: &[(&str, Result<&str, NoWeight>)]) {
        for (number, expected) in table {
            let weight = Weight::of_json(number, unit).map(|weight| weight.to_string());
            assert_eq!(weight, expected.map(Into::into), "{number} {unit:?}");
        }
    }

    #[test]
    fn d02_units_become_kilograms_in_decimal_arithmetic() {
        use NoWeight::{NotANumber, NotAboveZero, TooHeavy, TooPrecise};
        check(
            Unit::Kilogram,
            &[
                ("80.5", Ok("80.50")),
                ("80.50", Ok("80.50")),
                ("8.05e1", Ok("80.50")),
                ("8050E-2", Ok("80.50")),
                // A binary float holds 80.00499…; the decimal says half, and half goes up.
                ("80.005", Ok("80.01")),
                ("80.0049999999999999999", Ok("80.00")),
                ("1.005", Ok("1.01")),
                ("1000", Ok("1000.00")),
                ("1e3", Ok("1000.00")),
                ("1000.0000000001", Err(TooHeavy)),
                ("1e400", Err(TooHeavy)),
                ("1e999999999999999999999", Err(TooHeavy)),
                ("0.005", Ok("0.01")),
                ("0.004", Err(NotAboveZero)),
                ("1e-400", Err(NotAboveZero)),
                ("0", Err(NotAboveZero)),
                ("0.000e5", Err(NotAboveZero)),
                ("-80", Err(NotAboveZero)),
                ("80.12345678901234567890123456", Err(TooPrecise)),
                ("\"80\"", Err(NotANumber)),
                ("true", Err(NotANumber)),
            ],
        );
        check(Unit::Pound, &[("177.5", Ok("80.51")), ("1", Ok("0.45")), ("2204.7", Err(TooHeavy))]);
        check(Unit::Stone, &[("12.5", Ok("79.38")), ("157.5", Err(TooHeavy))]);
        check(Unit::Gram, &[("80500", Ok("80.50")), ("5", Ok("0.01")), ("4.9", Err(NotAboveZero))]);
    }

    #[test]
    fn units_are_read_in_any_case() {
        assert_eq!(Unit::parse(" KG "), Some(Unit::Kilogram));
        assert_eq!(Unit::parse("Lb"), Some(Unit::Pound));
        assert_eq!(Unit::parse("ton"), None);
    }
}
