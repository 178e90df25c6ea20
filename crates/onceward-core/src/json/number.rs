//! The canonical spelling of a JSON number.
//!
//! Rule: a number's bytes depend on its value alone, and no other number ever has an integer's.
//! - An integer, however spelled (`100`, `1e2`, `100.0`), is its exact digits; `-0` is `0`. A tail
//!   of more than `MAX_TRAILING_ZEROS` zeros becomes an exponent, as ECMAScript does it (`1e+21`),
//!   because six bytes of input must not become three hundred of output.
//! - Any other number is spelled as ECMAScript spells the nearest 64-bit float (RFC 8785 section
//!   3.2.2.3): `0.1` and `0.1000000000000000055` are one number, as they are for most readers.
//!   Exactness is promised for integers only. If the nearest float is an integer
//!   (`9007199254740993.5`), the number keeps its own digits, so as not to imitate that integer.
//! - What a float can only hold as infinity or, not being zero, as zero is refused.
//!
//! Not responsible for readers that round integers: to them two fingerprints may look like one.

use std::fmt::Write as _;
use std::ops::Range;

use crate::canonical::{CanonicalError, NotJson};

/// The longest tail of zeros that an integer is written with. ECMAScript turns to exponents at
/// the same place for powers of ten: `100000000000000000000`, then `1e+21`.
const MAX_TRAILING_ZEROS: usize = 20;

/// Numbers of at least 10^309 are beyond every float. It also bounds the digits of an integer.
const MAX_POINT: i64 = 309;

/// Numbers below 10^-324 are zero to every float.
const MIN_POINT: i64 = -324;

/// A decimal of at most this many significant digits survives the way through a float and back
/// (DBL_DIG of C), so its own digits are the shortest ones and no float needs to be made.
const EXACT_DIGITS: usize = 15;
/// Digits behind the first with which every float is written out exactly.
const ALL_DIGITS: usize = 766;

/// Where the parts of a literal lie, in bytes from its start (the sign is at 0).
pub(super) struct Literal {
    pub(super) end: usize,
    negative: bool,
    int: Range<usize>,
    frac: Range<usize>,
    /// The written exponent, saturated: far beyond the range is as good as infinitely far.
    exponent: i64,
    has_exponent: bool,
}

/// Where the canonical spelling is.
pub(super) enum Spelling {
    /// The literal is canonical as it stands.
    AsWritten,
    /// It was appended to the scratch text.
    Scratch,
}

/// Reads the grammar of a number that starts at `start`.
pub(super) fn scan(bytes: &[u8], start: usize) -> Result<Literal, CanonicalError> {
    let wrong = |at: usize| CanonicalError::not_json(at, NotJson::Number);
    let byte = |at: usize| bytes.get(at).copied();
    let digits_end = |from: usize| {
        let rest = bytes.get(from..).unwrap_or_default();
        from + rest.iter().take_while(|byte| byte.is_ascii_digit()).count()
    };
    let negative = byte(start) == Some(b'-');
    let int_start = start + usize::from(negative);
    let mut at = digits_end(int_start);
    let leading_zero = at > int_start + 1 && byte(int_start) == Some(b'0');
    if at == int_start || leading_zero {
        return Err(wrong(int_start));
    }
    let int = int_start - start..at - start;
    let mut frac = at - start..at - start;
    if byte(at) == Some(b'.') {
        let from = at + 1;
        at = digits_end(from);
        if at == from {
            return Err(wrong(at));
        }
        frac = from - start..at - start;
    }
    let mut exponent = 0_i64;
    let has_exponent = matches!(byte(at), Some(b'e' | b'E'));
    if has_exponent {
        let sign = byte(at + 1);
        let from = at + 1 + usize::from(matches!(sign, Some(b'+' | b'-')));
        at = digits_end(from);
        if at == from {
            return Err(wrong(at));
        }
        for &digit in &bytes[from..at] {
            exponent = exponent.saturating_mul(10).saturating_add(i64::from(digit - b'0'));
        }
        // Half the range, so that the adding up below cannot overflow.
        exponent = exponent.min(i64::MAX / 2);
        if sign == Some(b'-') {
            exponent = -exponent;
        }
    }
    Ok(Literal { end: at, negative, int, frac, exponent, has_exponent })
}

/// Finds the canonical spelling of a literal, or none if a float cannot hold it.
pub(super) fn spell(
    text: &str,
    literal: &Literal,
    digits: &mut String,
    scratch: &mut String,
) -> Option<Spelling> {
    if is_as_written(text, literal) {
        return Some(Spelling::AsWritten);
    }
    digits.clear();
    digits.push_str(&text[literal.int.clone()]);
    digits.push_str(&text[literal.frac.clone()]);
    let leading = digits.len() - digits.trim_start_matches('0').len();
    let significant = digits.trim_matches('0');
    if significant.is_empty() {
        scratch.push('0');
        return Some(Spelling::Scratch);
    }
    // The value is 0.SIGNIFICANT times ten to the power of `point`.
    let point = literal.exponent + signed(literal.int.len()) - signed(leading);
    if !(MIN_POINT..=MAX_POINT).contains(&point) {
        return None;
    }
    if literal.negative {
        scratch.push('-');
    }
    let is_integer = point >= signed(significant.len());
    let is_near_limit = !(-290..=300).contains(&point);
    let float = if is_near_limit || (!is_integer && significant.len() > EXACT_DIGITS) {
        let float = text.parse::<f64>().ok()?;
        if float.is_infinite() || float == 0.0 {
            return None;
        }
        Some(float)
    } else {
        None
    };
    match float {
        Some(float) if !is_integer && float.fract() != 0.0 => layout_float(float.abs(), scratch),
        _ => layout(significant, point, scratch),
    }
    Some(Spelling::Scratch)
}

/// Whether a literal is canonical as it stands: the usual case, decided without touching digits.
fn is_as_written(text: &str, literal: &Literal) -> bool {
    if literal.has_exponent {
        return false;
    }
    let (int, frac) = (&text[literal.int.clone()], &text[literal.frac.clone()]);
    if frac.is_empty() {
        // Short enough that no tail of zeros can be too long. Minus zero is not as written.
        return int.len() <= MAX_TRAILING_ZEROS + 1 && !(literal.negative && int == "0");
    }
    int.len() + frac.len() <= EXACT_DIGITS
        && !frac.ends_with('0')
        && (int != "0" || !frac.starts_with("000000"))
}

/// Writes the shortest digits that name this float and no other.
fn layout_float(float: f64, out: &mut String) {
    let from = out.len();
    // Writing to a String cannot fail.
    let _ = write!(out, "{float:e}");
    let scientific = out.split_off(from);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let mut digits = mantissa.replace('.', "");
    even_of_two(float, &mut digits);
    layout(&digits, exponent.parse::<i64>().unwrap_or(0) + 1, out);
}

/// Where the float lies exactly between two shortest spellings, ECMAScript's Number::toString takes
/// the even one, and Rust the upper.
fn even_of_two(float: f64, digits: &mut String) {
    let last = digits.chars().next_back().and_then(|last| last.to_digit(10)).unwrap_or_default();
    // With fewer digits no two spellings name one float.
    if digits.len() <= EXACT_DIGITS || last.is_multiple_of(2) {
        return;
    }
    let head = &digits[..digits.len() - 1];
    let lower = format!("{head}{}", last - 1);
    let exact = format!("{float:.ALL_DIGITS$e}");
    let (mantissa, exponent) = exact.split_once('e').unwrap_or((&exact, "0"));
    let exact = mantissa.replace('.', "");
    let is_between = exact.trim_end_matches('0') == format!("{lower}5");
    // Below a power of two floats are closer together: there the lower one may name another.
    let (first, rest) = lower.split_at(1);
    let names_it = format!("{first}.{rest}e{exponent}").parse() == Ok(float);
    if is_between && names_it {
        *digits = lower;
    }
}

/// Writes 0.DIGITS times ten to the power of `point` as ECMAScript's Number::toString would.
fn layout(digits: &str, point: i64, out: &mut String) {
    let count = signed(digits.len());
    let zeros = |out: &mut String, many: i64| (0..many).for_each(|_| out.push('0'));
    let tail = point - count;
    if (0..=signed(MAX_TRAILING_ZEROS)).contains(&tail) {
        out.push_str(digits);
        zeros(out, tail);
    } else if tail < 0 && point > 0 {
        let (int, frac) = digits.split_at(usize::try_from(point).unwrap_or(0));
        out.push_str(int);
        out.push('.');
        out.push_str(frac);
    } else if (-5..=0).contains(&point) {
        out.push_str("0.");
        zeros(out, -point);
        out.push_str(digits);
    } else {
        let (first, rest) = digits.split_at(1);
        out.push_str(first);
        if !rest.is_empty() {
            out.push('.');
            out.push_str(rest);
        }
        let _ = write!(out, "e{:+}", point - 1);
    }
}

/// Lengths are bounded by `MAX_BODY_BYTES`, so nothing wraps.
const fn signed(value: usize) -> i64 {
    value as i64
}
