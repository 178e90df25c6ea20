//! The users of the demo's traffic: an organisation of their own, with tokens made for each run.

use onceward_reference::principals::{ORGANISATION_TRAFFIC, Principal, Role};

use crate::admin::new_token;
use crate::failure::Failure;

/// The users.
pub(super) fn principals() -> Result<Vec<Principal>, Failure> {
    ["actor-x", "actor-y"]
        .into_iter()
        .map(|actor| {
            let token = new_token().map_err(|why| Failure::failed("demo.token", why))?;
            Ok(Principal::new(&token, ORGANISATION_TRAFFIC, actor, Role::Editor))
        })
        .collect()
}

/// The tokens of those among the known who are such users.
pub(super) fn tokens(known: &[Principal]) -> Vec<String> {
    let users = known.iter().filter(|user| user.organisation == ORGANISATION_TRAFFIC);
    users.map(|user| user.token.clone()).collect()
}
