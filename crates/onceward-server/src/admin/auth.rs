//! Who calls the control API: bearer tokens, kept as SHA-256 hashes, per tenant or operator.
//!
//! Every hash is compared with every principal's, without an early end. A tenant's token reaches
//! that tenant and nothing else; what concerns the store as a whole is the operator's.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, FromRequestParts};
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use onceward_core::audit::Trace;
use onceward_core::limits::MAX_PART_BYTES;
use sha2::{Digest, Sha256};

use super::lockout::Refused;
use super::observe::Ids;
use super::problem::Problem;
use super::{ACTOR_HEADER, AdminState};
use crate::output::hex;

/// The operator's name in the audit.
const OPERATOR: &str = "operator";

/// What a principal may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Everything.
    Operator,
    /// This tenant.
    Tenant(String),
}

/// One who may call: a `[[principal]]` of the configuration, the operator, or this run's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Principal {
    /// For the audit.
    pub(crate) name: String,
    /// What it may reach.
    pub(crate) reach: Reach,
    token_hash: [u8; 32],
}

impl Principal {
    /// A principal whose token is known by its SHA-256 in hexadecimal digits, as a file keeps it.
    pub(crate) fn hashed(name: &str, reach: Reach, token_sha256: &str) -> Result<Self, String> {
        let bad = || {
            format!("the token of principal {name:?} must be its SHA-256 in 64 hexadecimal digits")
        };
        let mut token_hash = [0; 32];
        if token_sha256.len() != 64 || !token_sha256.is_ascii() {
            return Err(bad());
        }
        for (place, byte) in token_hash.iter_mut().enumerate() {
            let digits = &token_sha256[2 * place..2 * place + 2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| bad())?;
        }
        Ok(Self { name: name.into(), reach, token_hash })
    }

    /// A principal whose token is at hand.
    pub(crate) fn with_token(name: &str, reach: Reach, token: &str) -> Self {
        Self { name: name.into(), reach, token_hash: Sha256::digest(token.as_bytes()).into() }
    }

    /// Whether one token stands for both.
    pub(crate) fn has_the_token_of(&self, other: &Self) -> bool {
        same(&self.token_hash, &other.token_hash)
    }
}

/// Everyone who may call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Principals(Vec<Principal>);

impl Principals {
    /// These principals.
    pub(crate) fn new(principals: Vec<Principal>) -> Self {
        Self(principals)
    }

    /// Whose token this is. Takes as long for a wrong token as for a right one.
    fn find(&self, token: &[u8]) -> Option<&Principal> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        let mut found = None;
        for principal in &self.0 {
            if same(&principal.token_hash, &hash) {
                found = Some(principal);
            }
        }
        found
    }
}

/// Compares without an early end.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let differing = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(differing) == 0
}

/// A new token: 256 random bits.
pub(crate) fn new_token() -> Result<String, String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| format!("the operating system gives no random numbers: {error}"))?;
    Ok(hex(&bytes))
}

/// Fewer characters of an operator's token can be guessed by who tries for long.
const TOKEN_CHARS_MIN: usize = 16;

/// What is to be said of an operator's token that is given and too short. An error where others
/// than this machine's own users may guess it: when the control API does not listen on loopback.
pub(crate) fn check_strength(given: &str, listens: IpAddr) -> Result<Option<String>, String> {
    let chars = given.trim().chars().count();
    if chars >= TOKEN_CHARS_MIN {
        return Ok(None);
    }
    let told = format!(
        "ONCEWARD_ADMIN_TOKEN has {chars} characters and can be guessed: give it at least \
         {TOKEN_CHARS_MIN}, such as the output of `openssl rand -hex 32`"
    );
    match listens.to_canonical().is_loopback() {
        true => Ok(Some(told)),
        false => {
            Err(format!("{told}; the control API listens on {listens}, where others reach it"))
        }
    }
}

/// The operator, by the token that the environment gives. Without one a token is made, which the
/// second part holds: to be printed once on standard error and never again.
pub(crate) fn operator(given: Option<&str>) -> Result<(Principal, Option<String>), String> {
    let made = match given.map(str::trim) {
        Some("") => return Err("ONCEWARD_ADMIN_TOKEN is empty: unset it, or set a token".into()),
        Some(given) => return Ok((Principal::with_token(OPERATOR, Reach::Operator, given), None)),
        None => new_token()?,
    };
    Ok((Principal::with_token(OPERATOR, Reach::Operator, &made), Some(made)))
}

/// Who calls, as the token shows.
#[derive(Debug, Clone)]
pub(crate) struct Who {
    principal: Principal,
    ids: Ids,
    actor: Option<String>,
}

impl Who {
    /// The tenant of the token; none is the operator.
    pub(crate) fn tenant(&self) -> Option<&str> {
        match &self.principal.reach {
            Reach::Operator => None,
            Reach::Tenant(tenant) => Some(tenant),
        }
    }

    /// Whether the token reaches this tenant.
    pub(crate) fn may(&self, tenant: &str) -> Result<(), Problem> {
        match self.tenant() {
            Some(own) if own != tenant => Err(Problem::forbidden("this token is another tenant's")),
            _ => Ok(()),
        }
    }

    /// Whether the token is the operator's.
    pub(crate) fn must_operate(&self) -> Result<(), Problem> {
        match self.principal.reach {
            Reach::Operator => Ok(()),
            Reach::Tenant(_) => Err(Problem::forbidden("this needs the operator's token")),
        }
    }

    /// The tenant to filter by: the token's, or the one that the operator asks for.
    pub(crate) fn filter(&self, asked: Option<String>) -> Result<Option<String>, Problem> {
        if let Some(asked) = &asked {
            self.may(asked)?;
        }
        Ok(asked.or_else(|| self.tenant().map(String::from)))
    }

    /// For records and the audit.
    pub(crate) fn trace(&self) -> Trace {
        let actor = self.actor.as_deref().unwrap_or(&self.principal.name);
        Trace {
            actor: Some(actor[..actor.floor_char_boundary(MAX_PART_BYTES)].into()),
            request_id: Some(self.ids.request.as_str().into()),
            correlation_id: self.ids.correlation.as_deref().map(Into::into),
        }
    }
}

impl FromRequestParts<AdminState> for Who {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, state: &AdminState) -> Result<Self, Problem> {
        identify(head, state).await
    }
}

async fn identify(head: &Parts, state: &AdminState) -> Result<Who, Problem> {
    let peer = head.extensions.get::<ConnectInfo<SocketAddr>>();
    let peer = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |ConnectInfo(peer)| peer.ip());
    let mut values = head.headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(Problem::unauthorized("send one header `Authorization: Bearer <token>`"));
    };
    let token = bearer(value.as_bytes())
        .ok_or_else(|| Problem::unauthorized("only `Authorization: Bearer <token>` is known"))?;
    // Found out before anything else: whoever guesses from the same address is not in its way.
    let Some(principal) = state.principals().find(token) else {
        return Err(match state.lockouts().refuse(peer, Instant::now()).await {
            Refused::Wrong => Problem::unauthorized("this token is not known here"),
            Refused::LockedOut(wait) => locked_out(wait),
        });
    };
    let ids = head.extensions.get::<Ids>().cloned().unwrap_or_default();
    let actor = match principal.reach {
        Reach::Operator => {
            // Nobody is named by an empty one.
            head.headers.get(ACTOR_HEADER).map(named).transpose()?.filter(|name| !name.is_empty())
        }
        Reach::Tenant(_) => None,
    };
    Ok(Who { principal: principal.clone(), ids, actor })
}

/// Whom the operator's token speaks for. What is no text is refused, or the audit would name
/// someone else.
fn named(value: &HeaderValue) -> Result<String, Problem> {
    let name = std::str::from_utf8(value.as_bytes());
    name.map(String::from).map_err(|_| Problem::malformed("Onceward-Actor must be UTF-8"))
}

fn locked_out(wait: Duration) -> Problem {
    let detail = "too many wrong tokens came from this address: wait before the next try";
    let title = "Too many wrong tokens";
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "auth.locked_out", title, detail)
        .after(wait.as_secs_f64().ceil() as u64)
}

/// RFC 9110: the scheme's case does not count.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_by_their_hash() {
        let acme = Reach::Tenant("acme".into());
        let hash = hex(&Sha256::digest(b"s3cret"));
        let principals = Principals::new(vec![
            Principal::hashed("a", acme.clone(), &hash).unwrap(),
            Principal::with_token("op", Reach::Operator, "root"),
        ]);
        assert_eq!(principals.find(b"s3cret").unwrap().reach, acme);
        assert_eq!(principals.find(b"root").unwrap().name, "op");
        assert!(principals.find(b"s3cre").is_none() && principals.find(b"").is_none());
        let upper = hash.to_uppercase();
        assert!(Principal::hashed("a", acme.clone(), &upper).is_ok());
        for bad in ["", "12", &hash[1..], &format!("{}zz", &hash[2..])] {
            assert!(Principal::hashed("a", acme.clone(), bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_operators_token_is_given_or_made() {
        let (given, shown) = operator(Some("root")).unwrap();
        assert_eq!(shown, None);
        assert!(Principals::new(vec![given]).find(b"root").is_some());
        let (made, shown) = operator(None).unwrap();
        let shown = shown.unwrap();
        assert_eq!(shown.len(), 64);
        assert!(Principals::new(vec![made]).find(shown.as_bytes()).is_some());
        assert_ne!(operator(None).unwrap().1.unwrap(), shown);
        assert!(operator(Some(" ")).is_err());
    }

    #[test]
    fn m3_a_short_operators_token_is_warned_of_and_refused_where_others_reach_it() {
        let (loopback, anywhere): ([IpAddr; 3], [IpAddr; 3]) = (
            ["127.0.0.1", "::1", "::ffff:127.0.0.2"].map(|ip| ip.parse().unwrap()),
            ["0.0.0.0", "::", "192.0.2.1"].map(|ip| ip.parse().unwrap()),
        );
        for short in ["hunter2", "fifteen-letters", " fifteen-letters "] {
            for listens in loopback {
                let told = check_strength(short, listens).unwrap().unwrap();
                assert!(told.contains("ONCEWARD_ADMIN_TOKEN") && !told.contains("hunter2"));
            }
            assert!(anywhere.iter().all(|listens| check_strength(short, *listens).is_err()));
        }
        for listens in loopback.into_iter().chain(anywhere) {
            assert_eq!(check_strength("sixteen--letters", listens), Ok(None));
        }
    }

    #[test]
    fn a_bearer_token_is_read() {
        assert_eq!(bearer(b"Bearer abc"), Some(&b"abc"[..]));
        assert_eq!(bearer(b"bearer  abc "), Some(&b"abc"[..]));
        for bad in [&b"Basic abc"[..], b"Bearer ", b"Bearer", b"", b"Bearerabc"] {
            assert_eq!(bearer(bad), None);
        }
    }
}
