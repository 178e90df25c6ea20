//! What the start says of requests whose end nobody knows.

use onceward::http::{Mode, Policy, Routes};
use onceward_core::record::OnAbandoned;

/// In one line, what becomes of a key when nobody knows how its request ended.
pub(crate) fn unknown_ends(routes: &Routes) -> String {
    let is_enforced = |policy: &&Policy| policy.mode == Mode::Enforce;
    let written: Vec<_> = routes.list().map(|(_, policy)| policy).collect();
    let policies = if written.is_empty() { vec![routes.unwritten()] } else { written.clone() };
    let under = |on_abandoned| {
        let is = |policy: &&Policy| policy.on_abandoned == on_abandoned;
        let count = policies.iter().copied().filter(is_enforced).filter(is).count();
        let whose = match (written.is_empty(), count) {
            (true, _) => "every path".into(),
            (false, 1) => "1 route".into(),
            (false, count) => format!("{count} routes"),
        };
        (count > 0).then_some(whose)
    };
    let rerun = under(OnAbandoned::Rerun)
        .map(|whose| format!("a retry may run it again (on_abandoned = \"rerun\", {whose})"));
    let hold = under(OnAbandoned::Hold)
        .map(|whose| format!("the key waits for a person (on_abandoned = \"hold\", {whose})"));
    let ends: Vec<_> = rerun.into_iter().chain(hold).collect();
    match ends.is_empty() {
        true => String::new(),
        false => format!("when nobody knows how a request ended: {}\n", ends.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onceward::http::Route;

    #[test]
    fn h5_the_start_says_in_one_line_what_becomes_of_an_unknown_end() {
        let route = |text: &str, on_abandoned, mode| {
            Route::new(text, Policy { on_abandoned, mode, ..Policy::default() })
        };
        let (rerun, hold) = (OnAbandoned::Rerun, OnAbandoned::Hold);
        let (enforce, shadow) = (Mode::Enforce, Mode::Shadow);
        let every = Routes::every(Policy::unwritten()).map(|routes| unknown_ends(&routes));
        let every = every.unwrap_or_default();
        assert!(every.contains("a retry may run it again (on_abandoned = \"rerun\", every path)"));
        let written = |list: &[(&str, OnAbandoned, Mode)]| {
            let routes = list.iter().map(|(text, ends, mode)| route(text, *ends, *mode));
            unknown_ends(&Routes::written(routes.filter_map(Result::ok).collect()))
        };
        let both = written(&[
            ("POST /a", rerun, enforce),
            ("POST /b", hold, enforce),
            ("POST /c", rerun, enforce),
            ("POST /d", hold, shadow),
        ]);
        assert!(
            both.contains("\"rerun\", 2 routes") && both.contains("\"hold\", 1 route)"),
            "{both}"
        );
        assert_eq!(both.lines().count(), 1, "{both}");
        let held = written(&[("POST /a", hold, enforce)]);
        assert!(held.contains("waits for a person") && !held.contains("rerun"), "{held}");
        assert_eq!(written(&[("POST /a", hold, shadow)]), "");
    }
}
