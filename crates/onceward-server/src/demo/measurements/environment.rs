//! The service's environment variables (D11), with their defaults. A value that is not understood
//! is an error that names its variable; nothing is guessed.

use onceward_reference::measurements::Settings;

use crate::failure::Failure;

/// Longest times that can be asked for: ten years.
const DAYS_MAX: u64 = 3_650;
/// Longest grace: a day.
const GRACE_S_MAX: u64 = 86_400;
/// How long audit entries are kept by default.
const AUDIT_DAYS: u32 = 30;

/// What the environment says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Environment {
    /// What is enforced.
    pub(crate) settings: Settings,
    /// How many days audit entries are kept.
    pub(crate) audit_days: u32,
}

impl Environment {
    /// Reads the variables of this process.
    pub(crate) fn read() -> Result<Self, Failure> {
        Self::of(|name| match std::env::var(name) {
            Ok(value) => Some(value),
            Err(std::env::VarError::NotPresent) => None,
            Err(std::env::VarError::NotUnicode(_)) => Some("\u{fffd}".into()),
        })
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let default = Settings::default();
        let flag = |name: &str, otherwise: bool| match variable(name) {
            None => Ok(otherwise),
            Some(value) => match value.trim().to_ascii_lowercase().as_str() {
                "true" | "1" => Ok(true),
                "false" | "0" => Ok(false),
                _ => Err(wrong(name, &value, "true or false")),
            },
        };
        let number = |name: &str, otherwise: u64, low: u64, high: u64| match variable(name) {
            None => Ok(otherwise),
            Some(value) => match value.trim().parse::<u64>() {
                Ok(number) if (low..=high).contains(&number) => Ok(number),
                _ => Err(wrong(name, &value, &format!("a whole number from {low} to {high}"))),
            },
        };
        let days = |name: &str, otherwise: u32| {
            let days = number(name, otherwise.into(), 1, DAYS_MAX)?;
            Ok::<_, Failure>(u32::try_from(days).unwrap_or(otherwise))
        };
        let percent =
            number("IDEMPOTENCY_ROLLOUT_PERCENT", default.rollout_percent.into(), 0, 100)?;
        let settings = Settings {
            idempotency: flag("ENABLE_IDEMPOTENCY", default.idempotency)?,
            idempotency_days: days("IDEMPOTENCY_TTL_DAYS", default.idempotency_days)?,
            ordering: flag("ENABLE_ORDERING", default.ordering)?,
            grace_s: number("ORDERING_GRACE_PERIOD_SECONDS", default.grace_s, 0, GRACE_S_MAX)?,
            fail_fast: flag("BATCH_FAIL_FAST", default.fail_fast)?,
            allow_override: flag("ALLOW_TIMESTAMP_OVERRIDE", default.allow_override)?,
            rollout_percent: u8::try_from(percent).unwrap_or(default.rollout_percent),
        };
        Ok(Self { settings, audit_days: days("AUDIT_TTL_DAYS", AUDIT_DAYS)? })
    }
}

fn wrong(name: &str, value: &str, must_be: &str) -> Failure {
    let shown: String = value.chars().take(40).collect();
    let message = format!("the variable {name} is {shown:?}, but must be {must_be}");
    Failure::usage("measurements.environment", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Result<Environment, String> {
        let found = |name: &str| set.iter().find(|(known, _)| *known == name);
        Environment::of(|name| found(name).map(|(_, value)| (*value).to_string()))
            .map_err(|failure| failure.message)
    }

    #[test]
    fn d11_every_variable_has_its_default_and_its_value() {
        let default = of(&[]).unwrap();
        assert_eq!(default, Environment { settings: Settings::default(), audit_days: 30 });
        let all = of(&[
            ("ENABLE_IDEMPOTENCY", "false"),
            ("IDEMPOTENCY_TTL_DAYS", "3"),
            ("ENABLE_ORDERING", "0"),
            ("ORDERING_GRACE_PERIOD_SECONDS", "60"),
            ("AUDIT_TTL_DAYS", "90"),
            ("BATCH_FAIL_FAST", "True"),
            ("ALLOW_TIMESTAMP_OVERRIDE", "1"),
            ("IDEMPOTENCY_ROLLOUT_PERCENT", "25"),
        ]);
        let settings = Settings {
            idempotency: false,
            idempotency_days: 3,
            ordering: false,
            grace_s: 60,
            fail_fast: true,
            allow_override: true,
            rollout_percent: 25,
        };
        assert_eq!(all.unwrap(), Environment { settings, audit_days: 90 });
    }

    #[test]
    fn d11_a_bad_value_names_its_variable() {
        for (name, bad) in [
            ("ENABLE_IDEMPOTENCY", "maybe"),
            ("IDEMPOTENCY_TTL_DAYS", "0"),
            ("ENABLE_ORDERING", ""),
            ("ORDERING_GRACE_PERIOD_SECONDS", "-1"),
            ("AUDIT_TTL_DAYS", "a month"),
            ("BATCH_FAIL_FAST", "yes"),
            ("ALLOW_TIMESTAMP_OVERRIDE", "2"),
            ("IDEMPOTENCY_ROLLOUT_PERCENT", "101"),
        ] {
            let message = of(&[(name, bad)]).unwrap_err();
            assert!(message.contains(name) && message.contains("must be"), "{message}");
        }
    }
}
