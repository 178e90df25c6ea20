//! The business service's variables: how long outcomes are kept (E03), and what ends when.
//!
//! Each is a length of time. One that is not, and a name that begins like them and is none, are
//! errors that name the variable.

use std::ffi::OsString;
use std::time::Duration;

use onceward_core::limits::LimitError;
use onceward_reference::business::{Options, Retention};
use onceward_reference::principals::Principal;

use crate::config::field::{Span, Text};
use crate::failure::Failure;

/// What all of them begin with.
const PREFIX: &str = "ONCEWARD_BUSINESS_";

/// Reads the variables; what is not set has its default.
pub(super) fn read(
    variables: impl Iterator<Item = (OsString, OsString)>,
    principals: Vec<Principal>,
) -> Result<Options, Failure> {
    let mut options = Options { principals, ..Options::default() };
    for (name, value) in variables {
        let name = name.to_string_lossy();
        let Some(short) = name.strip_prefix(PREFIX) else { continue };
        let Some(setting) = setting(&mut options, short) else {
            return Err(wrong(format!("{name} is not known: there is {}", names().join(", "))));
        };
        let time = Span::from_text(&value.to_string_lossy());
        *setting = time.ok_or_else(|| wrong(format!("{name} must be {}", Span::FORM)))?.duration();
    }
    Ok(options)
}

/// The setting of a variable, by its name without the prefix.
fn setting<'o>(options: &'o mut Options, name: &str) -> Option<&'o mut Duration> {
    let Retention { holds, estimates, payment_links, customers, jobs, others } =
        &mut options.retention;
    Some(match name {
        "RETAIN_HOLDS" => holds,
        "RETAIN_ESTIMATES" => estimates,
        "RETAIN_PAYMENT_LINKS" => payment_links,
        "RETAIN_CUSTOMERS" => customers,
        "RETAIN_JOBS" => jobs,
        "RETAIN_OTHERS" => others,
        "HOLD_FOR" => &mut options.hold_for,
        "LINK_FOR" => &mut options.link_for,
        _ => return None,
    })
}

fn names() -> Vec<String> {
    let short = [
        "RETAIN_HOLDS",
        "RETAIN_ESTIMATES",
        "RETAIN_PAYMENT_LINKS",
        "RETAIN_CUSTOMERS",
        "RETAIN_JOBS",
        "RETAIN_OTHERS",
        "HOLD_FOR",
        "LINK_FOR",
    ];
    short.iter().map(|short| format!("{PREFIX}{short}")).collect()
}

/// What the service says of a time that it can't keep.
pub(super) fn refused(error: &LimitError) -> Failure {
    wrong(format!("{PREFIX}RETAIN_…: {error}"))
}

fn wrong(message: String) -> Failure {
    Failure::usage("demo.business", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(name: &str, value: &str) -> Result<Options, Failure> {
        read(std::iter::once((name.into(), value.into())), Vec::new())
    }

    #[test]
    fn e03_each_time_has_its_default_and_its_variable() {
        let hours = |hours: u64| Duration::from_secs(hours * 3_600);
        let unset = read(std::iter::empty(), Vec::new()).unwrap();
        let Retention { holds, estimates, payment_links, customers, jobs, others } =
            unset.retention;
        assert_eq!(holds, Duration::from_secs(30 * 60));
        assert_eq!((estimates, payment_links), (hours(24), hours(7 * 24)));
        assert_eq!((customers, jobs, others), (hours(1), hours(4), hours(1)));
        for name in names() {
            let mut set = reading(&name, "47m").unwrap();
            let short = name.strip_prefix(PREFIX).unwrap();
            assert_eq!(*setting(&mut set, short).unwrap(), Duration::from_secs(47 * 60), "{name}");
        }
    }

    #[test]
    fn what_is_wrong_names_the_variable() {
        for (name, value) in [
            ("ONCEWARD_BUSINESS_RETAIN_HOLDS", "soon"),
            ("ONCEWARD_BUSINESS_RETAIN_HOLDS", ""),
            ("ONCEWARD_BUSINESS_RETAIN_HOLD", "30m"),
        ] {
            let failure = reading(name, value).unwrap_err();
            assert!(failure.message.contains(name), "{}", failure.message);
        }
        assert!(reading("ONCEWARD_OTHER", "x").is_ok());
    }
}
