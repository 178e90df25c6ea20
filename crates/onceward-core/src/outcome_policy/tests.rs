//! Ruling 4, status by status.

use super::*;

#[test]
fn ruling_4_final_answers_are_stored_and_passing_ones_never() {
    for status in 0..=u16::MAX {
        let expected = match status {
            200..400 => Keep::Success,
            401 | 403 | 408 | 425 | 429 => Keep::Never,
            400..500 => Keep::Error,
            _ => Keep::Never,
        };
        assert_eq!(keep(status), expected, "{status}");
    }
}

#[test]
fn ruling_4_settled_conflicts_advise_a_new_key() {
    let rotate: Vec<u16> =
        (0..=u16::MAX).filter(|&status| key_advice(status) == KeyAdvice::Rotate).collect();
    assert_eq!(rotate, [409, 412, 422]);
    assert!(rotate.iter().all(|&status| keep(status) == Keep::Error));
    assert_eq!((KeyAdvice::Reuse.as_str(), KeyAdvice::Rotate.as_str()), ("reuse", "rotate"));
}
