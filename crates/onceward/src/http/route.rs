//! Routes: which policy a request falls under, and which path values belong to its key.
//!
//! A template is matched segment by segment, both it and the path in their one spelling
//! (`spelling.rs`). The first route that fits wins.

use std::sync::Arc;

use http::Method;
use onceward_core::limits::{LimitError, MAX_PART_BYTES, MAX_WITHIN_PARTS};
use sha2::{Digest, Sha256};

use super::policy::Policy;
use super::spelling::one_spelling;
use super::template::{self, parameter};

/// Parameters that a route may have: with the caller, all that a key has room for.
const PARAMETERS_MAX: usize = MAX_WITHIN_PARTS - 1;

/// A route: `POST /v1/projects/{project_id}/missions` and its policy.
#[derive(Debug, Clone)]
pub struct Route {
    method: Method,
    /// What is not a parameter is in its one spelling.
    template: String,
    policy: Arc<Policy>,
}

/// Every route of a layer.
#[derive(Debug, Clone)]
pub struct Routes {
    written: Vec<Route>,
    unwritten: Arc<Policy>,
}

/// Where a request belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Method and template: what policies, metrics and the endpoint column show.
    pub endpoint: String,
    /// The values of the template's parameters, in order, each in its one spelling.
    pub values: Vec<String>,
    /// The written route that it matches, counted from 0.
    pub route: Option<usize>,
}

impl Route {
    /// A route from `METHOD /path/with/{parameters}`. However the path is spelled, `/é` or
    /// `/%c3%a9`, it is the same route.
    ///
    /// # Errors
    /// When the text has another form, when no request could ever match it, or when the policy
    /// breaks a bound.
    pub fn new(text: &str, policy: Policy) -> Result<Self, LimitError> {
        let bad = |bound: &str| LimitError::new("match", format!("{text:?}"), bound);
        let Some((method, template)) = text.split_once(' ') else {
            return Err(bad("METHOD /path/{parameter}"));
        };
        let method = Method::from_bytes(method.as_bytes()).map_err(|_| bad("an HTTP method"))?;
        if !is_protected(&method) {
            return Err(bad("POST, PUT, PATCH or DELETE"));
        }
        if let Err(bound) = template::check(template) {
            return Err(bad(&bound));
        }
        let parameters = template.split('/').filter(|segment| parameter(segment).is_some());
        if parameters.count() > PARAMETERS_MAX {
            return Err(bad(&format!("at most {PARAMETERS_MAX} parameters")));
        }
        let segments = template.split('/').map(|segment| match parameter(segment) {
            Some(_) => segment.into(),
            None => one_spelling(segment),
        });
        let template = segments.collect::<Vec<_>>().join("/");
        if method.as_str().len() + 1 + template.len() > MAX_PART_BYTES {
            return Err(bad(&format!("at most {MAX_PART_BYTES} bytes, encodings written out")));
        }
        policy.validate()?;
        Ok(Self { method, template, policy: Arc::new(policy) })
    }

    /// Method and template: what policies, metrics and keys call it.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("{} {}", self.method, self.template)
    }

    /// The same for all routes that match the same requests, whatever they call their parameters:
    /// only the first of them is ever reached.
    #[must_use]
    pub fn shape(&self) -> String {
        let nameless = |segment| if parameter(segment).is_some() { "{}" } else { segment };
        let segments: Vec<_> = self.template.split('/').map(nameless).collect();
        format!("{} {}", self.method, segments.join("/"))
    }

    fn values(&self, method: &Method, path: &str) -> Option<Vec<String>> {
        if self.method != *method {
            return None;
        }
        let mut values = Vec::new();
        let mut wanted = self.template.split('/');
        for segment in path.split('/') {
            let pattern = wanted.next()?;
            if parameter(pattern).is_some() {
                if segment.is_empty() {
                    return None;
                }
                values.push(bounded(segment));
            } else if pattern != segment {
                return None;
            }
        }
        wanted.next().is_none().then_some(values)
    }
}

impl Routes {
    /// These routes; a path that matches none passes unprotected.
    #[must_use]
    pub fn written(routes: Vec<Route>) -> Self {
        Self { written: routes, unwritten: Arc::default() }
    }

    /// Every POST, PUT, PATCH and DELETE is a route under this policy, its path its own template.
    /// Nobody has said that there is something at a path: 404 and 405 are not stored, unless
    /// [`Policy::statuses`] says so.
    ///
    /// # Errors
    /// When the policy breaks a bound.
    pub fn every(policy: Policy) -> Result<Self, LimitError> {
        policy.validate()?;
        Ok(Self { written: Vec::new(), unwritten: Arc::new(policy.of_any_path()) })
    }

    /// The policy and place of a request, or none when it passes unprotected.
    #[must_use]
    pub fn find(&self, method: &Method, path: &str) -> Option<(&Arc<Policy>, Place)> {
        if !is_protected(method) {
            return None;
        }
        let path = &*one_spelling(path);
        if self.written.is_empty() {
            let endpoint = bounded(&format!("{method} {path}"));
            return Some((&self.unwritten, Place { endpoint, values: Vec::new(), route: None }));
        }
        self.written.iter().enumerate().find_map(|(at, route)| {
            let values = route.values(method, path)?;
            let endpoint = route.endpoint();
            Some((&route.policy, Place { endpoint, values, route: Some(at) }))
        })
    }

    /// The policy of every route, where none are written.
    #[must_use]
    pub fn unwritten(&self) -> &Policy {
        &self.unwritten
    }

    /// Each route's endpoint and policy; none when there are no written ones.
    pub fn list(&self) -> impl Iterator<Item = (String, &Policy)> {
        self.written.iter().map(|route| (route.endpoint(), &*route.policy))
    }
}

/// Whether a method can be claimed at all: GET and HEAD never write (A04).
pub(super) fn is_protected(method: &Method) -> bool {
    [Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(method)
}

/// A part that fits into a key: itself, or its start and the hash of all of it.
pub(super) fn bounded(part: &str) -> String {
    if part.len() <= MAX_PART_BYTES {
        return part.to_string();
    }
    let start = &part[..part.floor_char_boundary(MAX_PART_BYTES - 80)];
    let hash = Sha256::digest(part.as_bytes());
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{start}~{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes() -> Routes {
        let route = |text| Route::new(text, Policy::default()).unwrap();
        Routes::written(vec![
            route("POST /v1/projects/{id}/missions"),
            route("PUT /v1/missions/{id}"),
            route("POST /v1/projects/special/missions"),
        ])
    }

    #[track_caller]
    fn check(method: &Method, path: &str, expected: Option<(&str, &[&str])>) {
        let routes = routes();
        let found = routes.find(method, path).map(|(_, place)| place);
        let listed: Vec<_> = routes.list().map(|(endpoint, _)| endpoint).collect();
        let expected = expected.map(|(endpoint, values)| Place {
            endpoint: endpoint.into(),
            values: values.iter().map(ToString::to_string).collect(),
            route: listed.iter().position(|listed| listed == endpoint),
        });
        assert_eq!(found, expected, "{method} {path}");
    }

    #[test]
    fn paths_match_segment_by_segment() {
        let missions = "POST /v1/projects/{id}/missions";
        check(&Method::POST, "/v1/projects/7/missions", Some((missions, &["7"])));
        check(&Method::POST, "/v1/projects/special/missions", Some((missions, &["special"])));
        check(&Method::POST, "/v1/projects//missions", None);
        check(&Method::POST, "/v1/projects/7/missions/", None);
        check(&Method::POST, "/v1/projects/7", None);
        check(&Method::PUT, "/v1/projects/7/missions", None);
        check(&Method::GET, "/v1/missions/7", None);
        check(&Method::PUT, "/v1/missions/a%2Fb", Some(("PUT /v1/missions/{id}", &["a%2Fb"])));
    }

    #[test]
    fn another_spelling_of_a_path_is_the_same_place() {
        let missions = "POST /v1/projects/{id}/missions";
        check(&Method::POST, "/v1/projects/%37/missions", Some((missions, &["7"])));
        check(&Method::POST, "/v1/project%73/7/missions", Some((missions, &["7"])));
        check(&Method::PUT, "/v1/missions/a%2fb", Some(("PUT /v1/missions/{id}", &["a%2Fb"])));
        let every = Routes::every(Policy::unwritten()).unwrap();
        let at = |path| every.find(&Method::POST, path).unwrap().1;
        assert_eq!(at("/any/%74hing"), at("/any/thing"));
        assert_ne!(at("/any%2Fthing"), at("/any/thing"));
    }

    #[test]
    fn another_spelling_of_a_template_is_the_same_route() {
        for (template, paths, endpoint) in [
            ("/prix/été", &["/prix/%C3%A9t%C3%A9", "/prix/%c3%a9t%c3%a9"], "/prix/%C3%A9t%C3%A9"),
            ("/caf%c3%a9", &["/caf%C3%A9", "/caf%c3%a9"], "/caf%C3%A9"),
            ("/%7Ebob", &["/~bob", "/%7ebob"], "/~bob"),
            ("/{naïve}/%2f", &["/x/%2F", "/x/%2f"], "/{naïve}/%2F"),
        ] {
            let route = Route::new(&format!("POST {template}"), Policy::default()).unwrap();
            let routes = Routes::written(vec![route]);
            for path in paths {
                let (_, place) = routes.find(&Method::POST, path).expect(path);
                assert_eq!(place.endpoint, format!("POST {endpoint}"));
            }
        }
        let shape = |text: &str| Route::new(text, Policy::default()).unwrap().shape();
        assert_eq!(shape("POST /x/{a}/é"), shape("POST /x/{b}/%c3%a9"));
        assert_ne!(shape("POST /x/{a}"), shape("PUT /x/{a}"));
        assert_ne!(shape("POST /x/{a}"), shape("POST /x/a"));
    }

    #[test]
    fn without_written_routes_a_path_is_its_own_template() {
        let routes = Routes::every(Policy::unwritten()).unwrap();
        let (policy, place) = routes.find(&Method::POST, "/any/thing").unwrap();
        assert_eq!(place.endpoint, "POST /any/thing");
        assert_eq!(policy.missing_key, super::super::policy::MissingKey::Allow);
        assert!(routes.find(&Method::HEAD, "/any/thing").is_none());
        let long = format!("/{}", "x".repeat(2_000));
        let (_, a) = routes.find(&Method::POST, &long).unwrap();
        let (_, b) = routes.find(&Method::POST, &format!("{long}y")).unwrap();
        assert!(a.endpoint.len() <= MAX_PART_BYTES);
        assert_ne!(a, b);
    }

    #[test]
    fn bad_routes_are_refused() {
        for text in ["", "POST", "GET /x", "POST x", "POST /{a", "POST /a{b}", "PO ST /x"] {
            assert!(Route::new(text, Policy::default()).is_err(), "{text:?}");
        }
        for never in ["/a?b=1", "/a?", "/a#b", "/a b", "/a ", "/a\tb", "/a\u{7f}", "/a<b", "/`"] {
            let error = Route::new(&format!("POST {never}"), Policy::default()).unwrap_err();
            assert!(error.to_string().contains("as requests have it"), "{never:?}: {error}");
        }
        for wild in ["/v1/*", "/*", "/v1/*/x", "/v1/**"] {
            let error = Route::new(&format!("POST {wild}"), Policy::default()).unwrap_err();
            assert!(error.to_string().contains("without wildcards"), "{wild:?}: {error}");
        }
        assert!(Route::new("POST /v1/a*", Policy::default()).is_ok());
        let many = |count: usize| {
            let segments: String = (0..count).map(|at| format!("/{{p{at}}}")).collect();
            Route::new(&format!("POST {segments}"), Policy::default())
        };
        assert!(many(15).is_ok());
        let error = many(16).unwrap_err();
        assert!(error.to_string().contains("at most 15 parameters"), "{error}");
        let long = format!("POST /{}", "é".repeat(200));
        assert!(Route::new(&long, Policy::default()).is_err(), "it is three times as long encoded");
        let policy = Policy { retain_ms: 20_000, retain_errors_ms: 20_000, ..Policy::default() };
        let error = Route::new("POST /x", policy).unwrap_err();
        assert!(error.to_string().contains("back-off + lease + wait"), "{error}");
    }
}
