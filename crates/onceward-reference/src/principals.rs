//! Demo principals: who may call the reference services, by bearer token.
//!
//! The tokens are public, so a service that knows them listens on loopback only. A token tells
//! organisation and actor; what the actor may do is the service's to know, at every request anew.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::request::Parts;
use onceward::http::{Caller, Identity};

/// Organisation of `demo-a`, `demo-a2` and `demo-admin`.
pub const ORGANISATION_A: &str = "11111111-1111-1111-1111-111111111111";
/// Organisation of `demo-b`.
pub const ORGANISATION_B: &str = "22222222-2222-2222-2222-222222222222";
/// Organisation that the demo's own traffic runs in.
pub const ORGANISATION_TRAFFIC: &str = "33333333-3333-3333-3333-333333333333";

/// What an actor may do; each may do what the ones before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Read.
    Viewer,
    /// Write.
    Editor,
    /// Give roles and read the audit.
    Admin,
}

impl Role {
    /// Every role, the least first.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Editor, Self::Admin];

    /// The word in bodies.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Editor => "editor",
            Self::Admin => "admin",
        }
    }

    /// Reads [`Role::as_str`] back.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// One who may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// What it shows.
    pub token: String,
    /// Its organisation.
    pub organisation: String,
    /// Who it is there.
    pub actor: String,
    /// The role it starts with.
    pub role: Role,
}

impl Principal {
    /// A principal.
    #[must_use]
    pub fn new(token: &str, organisation: &str, actor: &str, role: Role) -> Self {
        let [token, organisation, actor] = [token, organisation, actor].map(str::to_string);
        Self { token, organisation, actor, role }
    }
}

/// The principals that every demo knows.
#[must_use]
pub fn demo() -> Vec<Principal> {
    vec![
        Principal::new("demo-a", ORGANISATION_A, "actor-a", Role::Editor),
        Principal::new("demo-a2", ORGANISATION_A, "actor-a2", Role::Editor),
        Principal::new("demo-b", ORGANISATION_B, "actor-b", Role::Editor),
        Principal::new("demo-admin", ORGANISATION_A, "actor-admin", Role::Admin),
    ]
}

/// Whose token a request shows.
#[must_use]
pub fn identity(principals: Vec<Principal>) -> Identity {
    Identity::Custom(Arc::new(move |head: &Parts| {
        let token = bearer(head)?;
        let known = principals.iter().find(|known| known.token == token)?;
        Some(Caller { tenant: known.organisation.clone(), caller: known.actor.clone() })
    }))
}

/// The token of the one `Authorization` header.
fn bearer(head: &Parts) -> Option<&str> {
    let mut lines = head.headers.get_all(AUTHORIZATION).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
