//! The rules: what becomes of a measurement, judged from what is there. Pure; nothing is written.
//!
//! An id that is known is answered first: the retry of what was accepted is a duplicate, however
//! old its timestamp has become. Then comes the order of the user's timestamps (D03).

use onceward::core::Bytes;
use onceward::core::guard::Rule;
use onceward::core::limits::MAX_POSITION;
use sha2::{Digest, Sha256};

use super::Settings;
use super::measurement::{Measurement, Payload};

/// How far in the future a timestamp may lie.
const FUTURE_MS_MAX: u64 = 24 * 3_600_000;

/// What is checked for one user in one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rules {
    /// Whether an id counts once.
    pub(super) ids: bool,
    /// Whether timestamps have to be in order.
    pub(super) order: bool,
    /// How far behind the last timestamp one may lie.
    pub(super) grace_ms: u64,
    /// An admin insists.
    pub(super) forced: bool,
    /// It came before there were rules: only its id counts.
    pub(super) backfill: bool,
}

/// What becomes of a measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judged {
    /// It is kept.
    Accepted(How),
    /// It is known, and this is its result.
    Duplicate(Bytes),
    /// Its id is known with another payload, and this is that one's result.
    Conflict(Bytes),
    /// It is too far behind the user's last timestamp.
    OutOfOrder {
        /// That timestamp.
        last_ms: u64,
    },
    /// It lies in the future.
    Future,
    /// An earlier one of the user was out of order, and the batch stops at that.
    Skipped,
}

/// How a measurement is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// It fits.
    Fits,
    /// It does not fit, and an admin insists.
    Overridden,
    /// Not everything was checked.
    Unchecked,
    /// It came before there were rules.
    Backfilled,
}

impl Rules {
    /// What is checked for a user: everything, or what is switched on, or nothing for users that
    /// the roll-out has not reached.
    pub(super) fn of(settings: &Settings, tenant: &str, user_id: &str, forced: bool) -> Self {
        let reached = is_reached(tenant, user_id, settings.rollout_percent);
        Self {
            ids: settings.idempotency && reached,
            order: settings.ordering && reached,
            grace_ms: settings.grace_s.saturating_mul(1_000),
            forced,
            backfill: false,
        }
    }

    /// For measurements that came before there were rules.
    pub(super) fn of_backfill() -> Self {
        Self { ids: true, order: false, grace_ms: 0, forced: false, backfill: true }
    }

    /// Judges a measurement by what is there: the kept result of its id, the user's last timestamp
    /// (0 when there is none), and the store's now.
    pub(super) fn judge(
        &self,
        measurement: &Measurement,
        known: Option<&Bytes>,
        last_ms: u64,
        now_ms: u64,
    ) -> Judged {
        if let (true, Some(result)) = (self.ids, known) {
            let same = Payload::of_result(result).as_ref() == Some(&measurement.payload);
            let result = result.clone();
            return if same { Judged::Duplicate(result) } else { Judged::Conflict(result) };
        }
        if measurement.payload.at_ms > now_ms.saturating_add(FUTURE_MS_MAX) {
            return Judged::Future;
        }
        let fits = self.strict(measurement.payload.at_ms).judge(last_ms).is_ok();
        match (self.backfill, self.order, fits) {
            (true, ..) => Judged::Accepted(How::Backfilled),
            (false, true, false) if !self.forced => Judged::OutOfOrder { last_ms },
            (false, true, false) => Judged::Accepted(How::Overridden),
            (false, ..) if !(self.ids && self.order) => Judged::Accepted(How::Unchecked),
            (false, ..) => Judged::Accepted(How::Fits),
        }
    }

    /// The rule that the commit of an accepted measurement has to pass.
    pub(super) fn guard(&self, at_ms: u64) -> Rule {
        if self.order && !self.forced {
            return self.strict(at_ms);
        }
        // Passes always; the mark still only moves forward.
        Rule::NotBefore { at: at_ms, grace_ms: MAX_POSITION.saturating_sub(at_ms) }
    }

    fn strict(&self, at_ms: u64) -> Rule {
        Rule::NotBefore { at: at_ms, grace_ms: self.grace_ms }
    }

    /// Which checks a measurement went without, in words.
    pub(super) fn unchecked(&self) -> &'static str {
        match (self.ids, self.order) {
            (false, false) => "neither the id nor the order was checked",
            (false, true) => "the id was not checked",
            (true, false) => "the order was not checked",
            (true, true) => "everything was checked",
        }
    }
}

/// Whether a roll-out to this percentage of users reaches one: always the same answer for a user,
/// and who is reached at some percentage stays reached at a higher one.
fn is_reached(tenant: &str, user_id: &str, percent: u8) -> bool {
    let mut hash = Sha256::new();
    for part in [tenant, user_id] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let hash = hash.finalize();
    let number = hash[..8].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    number % 100 < u64::from(percent)
}

#[cfg(test)]
mod tests {
    use super::super::weight::{Unit, Weight};
    use super::*;

    const NOW: u64 = 1_760_000_000_000;

    fn measurement(at_ms: u64) -> Measurement {
        let weight = Weight::of_json("80", Unit::Kilogram).unwrap();
        let payload = Payload { weight, at_ms, source: "scale".into() };
        Measurement { user_id: "u".into(), id: "m".into(), payload }
    }

    fn rules() -> Rules {
        Rules::of(&Settings::default(), "t", "u", false)
    }

    #[test]
    fn d03_each_timestamp_is_judged_by_the_table() {
        let last = NOW - 1_000_000;
        let fits = Judged::Accepted(How::Fits);
        let late = Judged::OutOfOrder { last_ms: last };
        for (at_ms, expected) in [
            (last, fits.clone()),
            (last + 1, fits.clone()),
            (last - 300_000, fits.clone()),
            (last - 300_001, late),
            (NOW + FUTURE_MS_MAX, fits),
            (NOW + FUTURE_MS_MAX + 1, Judged::Future),
        ] {
            assert_eq!(rules().judge(&measurement(at_ms), None, last, NOW), expected, "{at_ms}");
        }
    }

    #[test]
    fn d04_an_admin_overrides_order_and_nothing_else() {
        let forced = Rules { forced: true, ..rules() };
        let overridden = Judged::Accepted(How::Overridden);
        assert_eq!(forced.judge(&measurement(1), None, NOW, NOW), overridden);
        let future = measurement(NOW + FUTURE_MS_MAX + 1);
        assert_eq!(forced.judge(&future, None, NOW, NOW), Judged::Future);
        let known = measurement(2).result("accepted", NOW);
        assert!(matches!(
            forced.judge(&measurement(1), Some(&known), NOW, NOW),
            Judged::Conflict(_)
        ));
    }

    #[test]
    fn d01_a_known_id_is_answered_before_the_order() {
        let known = measurement(1).result("accepted", NOW);
        let judged = rules().judge(&measurement(1), Some(&known), NOW, NOW);
        assert_eq!(judged, Judged::Duplicate(known));
    }

    #[test]
    fn d10_the_roll_out_is_stable_and_grows() {
        let reached = |percent| {
            let users = (0..1_000).filter(|n| is_reached("t", &format!("user-{n}"), percent));
            users.collect::<Vec<u32>>()
        };
        assert!(reached(0).is_empty());
        assert_eq!(reached(100).len(), 1_000);
        let (few, more) = (reached(20), reached(60));
        assert!((150..250).contains(&few.len()) && (540..660).contains(&more.len()));
        assert!(few.iter().all(|user| more.contains(user)));
        assert_eq!(few, reached(20));
    }
}
