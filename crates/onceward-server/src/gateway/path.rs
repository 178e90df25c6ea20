//! Whether a request may be passed on as the one that it stands for here: others may read its
//! method and path in another way.
//!
//! Routes are matched as requests are sent, segment by segment. Servers resolve dots, decode
//! slashes, drop what follows `;`, forget about case, or serve the method that a header names (the
//! table in `readings.rs`, and `overrides.rs`). A request that becomes a protected one that way
//! would be served there without key, permission and limit, so it is refused; never is it rewritten
//! here, since its key would then name another resource. It is refused only where such a reading
//! matches another route than the path as sent does, or one where that matches none. What matches
//! no route in any reading is passed on as it came, unless nothing passes without a route: then no
//! route is a way to what has none, by another method or through dots. Of an upstream with a path
//! in front, nobody climbs out.

use http::Method;
use onceward::http::{Mode, Routes, Unmatched, one_spelling};

use super::readings::{ENCODED, RESPELT, climbs, decoded, folded, has_dots, readings};
use super::settings::{PathRules, Settings, Spelling};

const CLIMBS: &str = "its path climbs above the root: send it without `..`";
const UNCLEAR: &str = "its path can be read in too many ways: encode only what has to be";
const OVERRIDES: &str = "it asks to be taken for another method, and that is protected here: send \
                         it with that method";
const ELSE: &str = "it asks to be taken for another method, and nothing passes without a route: \
                    send it with that method";
const LEADS_OUT: &str = "its path would be one of no route without `.` and `..`, and nothing \
                         passes without one: send it without them";
const REWRITES: &str = "X-Original-URL or X-Rewrite-URL names the path of another route: send it \
                        to that path, without the header";

/// What a request is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'r> {
    pub(super) method: &'r Method,
    pub(super) path: &'r str,
    /// Methods that it names beside its own.
    pub(super) overrides: &'r [Method],
    /// Paths that it names beside its own.
    pub(super) rewrites: &'r [String],
}

/// The routes, as others may read a request into them.
pub(super) struct Guard {
    routes: Routes,
    templates: Vec<Template>,
    rules: PathRules,
    eyes: &'static [Eye],
    has_base: bool,
    /// Whether nothing passes that matches no route, but reads.
    refuses_unmatched: bool,
    /// Whether every template is in lower case, without encodings or a slash at its end.
    is_plain: bool,
}

/// A route as it is compared here.
struct Template {
    method: Method,
    path: Compared,
    is_enforced: bool,
    /// The first route whose paths are the same to those who don't look at spellings.
    group: usize,
}

/// A path as it is compared.
#[derive(PartialEq, Eq)]
struct Compared {
    segments: Vec<Segment>,
    /// Whether a slash is behind them.
    is_open: bool,
}

#[derive(PartialEq, Eq)]
enum Segment {
    Any,
    Text { decoded: String, folded: String },
}

/// What somebody looks at who compares paths.
#[derive(Debug, Clone, Copy)]
struct Eye {
    case: bool,
    last_slash: bool,
}

/// Who looks at everything, and under strict spelling everybody who does not.
const EYES: [Eye; 4] = [
    Eye { case: true, last_slash: true },
    Eye { case: false, last_slash: true },
    Eye { case: true, last_slash: false },
    Eye { case: false, last_slash: false },
];

impl Guard {
    /// In front of these routes.
    pub(super) fn new(settings: &Settings) -> Self {
        let refuses_unmatched = settings.unmatched == Unmatched::Refuse;
        let guard = Self::of(settings.routes.clone(), settings.paths, settings.has_base());
        Self { refuses_unmatched, ..guard }
    }

    fn of(routes: Routes, rules: PathRules, has_base: bool) -> Self {
        let eyes = match rules.spelling {
            Spelling::Strict => &EYES[..],
            Spelling::Exact => &EYES[..1],
        };
        let loosest = eyes[eyes.len() - 1];
        let mut templates: Vec<Template> = Vec::new();
        let mut is_plain = true;
        for (endpoint, policy) in routes.list() {
            let (method, path) = endpoint.split_once(' ').unwrap_or_default();
            let method = Method::from_bytes(method.as_bytes()).unwrap_or_default();
            let path = Compared::template(path);
            is_plain &= path.is_plain();
            let is_same =
                |known: &Template| known.method == method && known.path.is_same(&path, loosest);
            let group = templates.iter().position(is_same).unwrap_or(templates.len());
            let is_enforced = policy.mode == Mode::Enforce;
            templates.push(Template { method, path, is_enforced, group });
        }
        Self { routes, templates, rules, eyes, has_base, refuses_unmatched: false, is_plain }
    }

    /// Why a request can't be passed on.
    pub(super) fn refuses(&self, asked: Asked<'_>) -> Option<&'static str> {
        let as_it_stands = self.refuses_path(asked);
        as_it_stands.or_else(|| asked.rewrites.iter().find_map(|to| self.rewritten(asked, to)))
    }

    fn refuses_path(&self, asked: Asked<'_>) -> Option<&'static str> {
        let Asked { method, path, overrides, .. } = asked;
        if self.refuses_unmatched
            && !self.templates.is_empty()
            && overrides.iter().any(|named| named != method && !is_read(named))
        {
            return Some(ELSE);
        }
        if !path.starts_with('/') {
            return None;
        }
        let path = &*one_spelling(path);
        if overrides.is_empty() && self.is_plain && is_plain(path) {
            return None;
        }
        if climbs(path) {
            return Some(CLIMBS);
        }
        if self.templates.is_empty() {
            // Every path is a route of its own: only what is none as it stands can become one.
            let is_route = |method: &Method| self.routes.find(method, path).is_some();
            if !is_route(method) && overrides.iter().any(is_route) {
                return Some(OVERRIDES);
            }
        }
        self.misread(asked, path)
    }

    /// Why a request can't be passed on that names another path, which old frameworks serve.
    fn rewritten(&self, asked: Asked<'_>, to: &str) -> Option<&'static str> {
        let Asked { method, path, overrides, .. } = asked;
        let (to, path) = (&*one_spelling(to), &*one_spelling(path));
        let route = |method: &Method, path: &str| {
            self.routes.find(method, path).map(|(_, place)| place.route)
        };
        let is_wrong = if self.templates.is_empty() {
            // Every path is a route of its own.
            to != path && std::iter::once(method).chain(overrides).any(|m| route(m, to).is_some())
        } else {
            self.refuses_unmatched && !is_read(method) && route(method, to) != route(method, path)
                || self.misread(asked, to).is_some()
        };
        is_wrong.then_some(REWRITES)
    }

    /// Why a request would be protected, or lead elsewhere, if its path were read as this one (in
    /// its one spelling), or in any other way.
    fn misread(&self, asked: Asked<'_>, path: &str) -> Option<&'static str> {
        let Asked { method, path: sent, overrides, .. } = asked;
        let has = |method: &&Method| self.templates.iter().any(|known| known.method == **method);
        let methods: Vec<&Method> = std::iter::once(method).chain(overrides).filter(has).collect();
        if methods.is_empty() && !self.has_base {
            return None;
        }
        let as_sent = self.routes.find(method, sent).and_then(|(_, place)| place.route);
        let has_route = as_sent.is_some();
        let as_sent = as_sent.map(|at| &self.templates[at]).filter(|found| found.is_enforced);
        let Some(readings) = readings(path, self.rules) else { return Some(UNCLEAR) };
        if self.refuses_unmatched && has_route && readings.iter().any(|read| has_dots(&read.path)) {
            let ends = readings.iter().filter(|reading| !has_dots(&reading.path));
            if !ends.map(|end| Compared::path(&end.path)).all(|end| self.has_route(method, &end)) {
                return Some(LEADS_OUT);
            }
        }
        for reading in &readings {
            if self.has_base && climbs(&reading.path) {
                return Some(CLIMBS);
            }
            let read = Compared::path(&reading.path);
            for named in &methods {
                if !self.is_another(named, &read, as_sent) {
                    continue;
                }
                return Some(match *named == method {
                    true => reading.told.unwrap_or_else(|| respelt(path)),
                    false => OVERRIDES,
                });
            }
        }
        None
    }

    /// Whether a path is one of a route, for those who look at everything.
    fn has_route(&self, method: &Method, path: &Compared) -> bool {
        let fits = |known: &Template| known.method == *method && known.path.is_at(path, EYES[0]);
        self.templates.iter().any(fits)
    }

    /// Whether anybody may take a path for that of another route that is protected.
    fn is_another(&self, method: &Method, path: &Compared, as_sent: Option<&Template>) -> bool {
        self.eyes.iter().any(|eye| {
            let fits = |known: &&Template| known.method == *method && known.path.is_at(path, *eye);
            let found = self.templates.iter().find(fits).filter(|found| found.is_enforced);
            found.is_some_and(|found| as_sent.is_none_or(|sent| sent.group != found.group))
        })
    }
}

impl Compared {
    fn template(path: &str) -> Self {
        let mut compared = Self::path(path);
        let written = path.strip_prefix('/').unwrap_or(path).split('/');
        for (segment, written) in compared.segments.iter_mut().zip(written) {
            // As it is written: an encoded brace is one that paths have.
            if written.starts_with('{') {
                *segment = Segment::Any;
            }
        }
        compared
    }

    fn path(path: &str) -> Self {
        let path = path.strip_prefix('/').unwrap_or(path);
        let (path, is_open) = match path.strip_suffix('/') {
            Some(path) => (path, true),
            None => (path, false),
        };
        let text = |segment| Segment::Text {
            decoded: decoded(segment).into_owned(),
            folded: folded(segment),
        };
        Self { segments: path.split('/').map(text).collect(), is_open }
    }

    /// Whether a template and another match the same paths.
    fn is_same(&self, other: &Self, eye: Eye) -> bool {
        self.fits(other, eye, |wanted, given| match (wanted, given) {
            (Segment::Any, Segment::Any) => true,
            (Segment::Text { .. }, Segment::Text { .. }) => wanted.is_text(given, eye),
            _ => false,
        })
    }

    /// Whether a template matches a path.
    fn is_at(&self, path: &Self, eye: Eye) -> bool {
        self.fits(path, eye, |wanted, given| match (wanted, given) {
            (Segment::Any, Segment::Text { decoded, .. }) => !decoded.is_empty(),
            _ => wanted.is_text(given, eye),
        })
    }

    fn fits(&self, other: &Self, eye: Eye, each: impl Fn(&Segment, &Segment) -> bool) -> bool {
        (self.is_open == other.is_open || !eye.last_slash)
            && self.segments.len() == other.segments.len()
            && self.segments.iter().zip(&other.segments).all(|(wanted, given)| each(wanted, given))
    }

    /// Whether everybody compares a template as it stands with a plain path.
    fn is_plain(&self) -> bool {
        let is_plain = |segment: &Segment| match segment {
            Segment::Any => true,
            Segment::Text { decoded, .. } => is_plain(decoded),
        };
        !self.is_open && self.segments.iter().all(is_plain)
    }
}

impl Segment {
    fn is_text(&self, other: &Self, eye: Eye) -> bool {
        match (self, other) {
            (
                Self::Text { decoded, folded },
                Self::Text { decoded: other_decoded, folded: other_folded },
            ) => match eye.case {
                true => decoded == other_decoded,
                false => folded == other_folded,
            },
            _ => false,
        }
    }
}

/// Whether a method passes where no route has it.
fn is_read(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS].contains(method)
}

/// What is said of a path that is compared with a route as it was sent.
fn respelt(path: &str) -> &'static str {
    if *decoded(path) == *path { RESPELT } else { ENCODED }
}

/// Whether a path is read by everybody as it stands. Nearly all are.
fn is_plain(path: &str) -> bool {
    let bytes = path.as_bytes();
    let is_one = |byte: &u8| {
        byte.is_ascii_graphic() && !byte.is_ascii_uppercase() && !b"%;\\".contains(byte)
    };
    let is_place = |pair: &[u8]| [b"//", b"/."].iter().any(|place| pair == *place);
    bytes.iter().all(is_one)
        && !bytes.windows(2).any(is_place)
        && (bytes.len() <= 1 || !path.ends_with('/'))
}

#[cfg(test)]
mod tests;
