//! Rulings 4 and 6, status by status.

use super::*;

fn plain(status: u16) -> Said {
    Said { status, ..Said::default() }
}

fn with(status: u16, change: impl FnOnce(&mut Said)) -> Said {
    let mut said = plain(status);
    change(&mut said);
    said
}

#[test]
fn h5_ruling_4_what_is_stored_what_is_released_and_what_nobody_knows() {
    for status in 0..=u16::MAX {
        let expected = match status {
            200..400 => Ending::Success,
            401 | 403 | 425 | 429 | 501 => Ending::Released,
            408 => Ending::Unknown,
            400..=499 => Ending::Error,
            _ => Ending::Unknown,
        };
        assert_eq!(ending(&plain(status), &Statuses::default()), expected, "{status}");
    }
}

#[test]
fn h3_what_asks_for_a_retry_is_released_where_it_can_have_done_nothing() {
    let released: Vec<u16> = (200..600)
        .filter(|status| {
            let plain = ending(&plain(*status), &Statuses::default());
            let later =
                ending(&with(*status, |said| said.retry_after = true), &Statuses::default());
            plain != later && later == Ending::Released
        })
        .collect();
    assert_eq!(released, [409, 423, 503]);
    for status in 200..600 {
        let said = with(status, |said| said.retryable = true);
        let expected = match status {
            409 | 423 => Ending::Released,
            _ => ending(&plain(status), &Statuses::default()),
        };
        assert_eq!(ending(&said, &Statuses::default()), expected, "{status}");
    }
}

#[test]
fn h3_a_refusal_of_ours_is_never_stored_whatever_the_route_says() {
    let every = Statuses { stored: (400..600).collect(), released: Vec::new() };
    for moved in [Statuses::default(), every] {
        for status in 400..600 {
            let refused = ending(&with(status, |said| said.refusal = true), &moved);
            let expected = match status {
                408 | 500 | 502.. => Ending::Unknown,
                _ => Ending::Released,
            };
            assert_eq!(refused, expected, "{status}");
        }
    }
}

#[test]
fn a_route_moves_a_status_either_way() {
    let moved = Statuses { stored: vec![401, 409, 500], released: vec![404, 422, 502] };
    moved.validate().expect("they are apart");
    for (said, expected) in [
        (plain(401), Ending::Error),
        (with(409, |said| said.retry_after = true), Ending::Error),
        (with(409, |said| said.retryable = true), Ending::Error),
        (plain(500), Ending::Error),
        (plain(404), Ending::Released),
        (plain(422), Ending::Released),
        (plain(502), Ending::Released),
        (plain(400), Ending::Error),
        (plain(504), Ending::Unknown),
        (plain(201), Ending::Success),
    ] {
        assert_eq!(ending(&said, &moved), expected, "{said:?}");
    }
}

#[test]
fn only_errors_are_moved_once_and_to_one_side() {
    let of = |stored: &[u16], released: &[u16]| {
        let moved = Statuses { stored: stored.into(), released: released.into() };
        moved.validate().err().map(|error| error.to_string())
    };
    assert_eq!(of(&[400, 599], &[404]), None);
    for (stored, released, told) in [
        (&[399][..], &[][..], "final is 399"),
        (&[], &[600], "retryable is 600"),
        (&[200], &[], "final is 200"),
        (&[409, 409], &[], "named once"),
        (&[409], &[408, 409], "stored or released"),
    ] {
        let error = of(stored, released).expect("it is refused");
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn ruling_4_settled_conflicts_advise_a_new_key() {
    let rotate: Vec<u16> =
        (0..=u16::MAX).filter(|&status| key_advice(status) == KeyAdvice::Rotate).collect();
    assert_eq!(rotate, [409, 412, 422]);
    let stored = |status: u16| ending(&plain(status), &Statuses::default()) == Ending::Error;
    assert!(rotate.into_iter().all(stored));
    assert_eq!((KeyAdvice::Reuse.as_str(), KeyAdvice::Rotate.as_str()), ("reuse", "rotate"));
}
