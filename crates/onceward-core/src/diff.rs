//! What differs between two payloads, as JSON pointers (RFC 6901).
//!
//! Rule: a diff is empty exactly when the canonical payloads are equal (or truncation says that it
//! cannot know), its order depends on the payloads alone, its size is bounded, and no value of a
//! masked field is in it, at whatever depth.
//!
//! Not responsible for who may see values (the dialect decides), nor for making payloads canonical:
//! it is given what `fingerprint.rs` made and `payload.rs` kept.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::canonical::{Arrays, CanonicalError, Form, MASKED, is_masked};
use crate::fingerprint::CanonicalBody;
use crate::json::{Flow, Node, Pointer, Tape, key_order};
use crate::payload::{
    FullPayload, KeptLeaves, KeptPayload, LEAF_HASH_BYTES, Leaf, MAX_POINTER_BYTES, Payload, QUERY,
    query_fields, walk_payload,
};

/// How many changes a diff names; further ones only set `truncated`.
pub const MAX_DIFF_CHANGES: usize = 64;

/// The longest value that is shown, in bytes of canonical JSON. A longer one is replaced by a JSON
/// string that says how long it is.
pub const MAX_DIFF_VALUE_BYTES: usize = 1024;

/// How many items of an array whose order does not count are matched by what they share. Where more
/// differ, they are matched in their order.
const ALIKE_ITEMS_MAX: usize = 64;

/// Fields whose values are never shown, unless configuration names others.
pub const DEFAULT_MASK: [&str; 5] = ["password", "token", "secret", "card_number", "cvc"];

/// `DEFAULT_MASK` as a policy holds it.
#[must_use]
pub fn default_mask() -> Vec<String> {
    DEFAULT_MASK.map(String::from).to_vec()
}

/// What happened at a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// Only the new payload has it.
    Added,
    /// Only the old payload has it.
    Removed,
    /// Both have it, with different values.
    Changed,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Where, as a JSON pointer into the new payload (the old one's for what was removed). A field
    /// of a form is `/name`, one of the query `?name`; `?` is the query as a whole.
    pub pointer: String,
    /// What happened.
    pub kind: ChangeKind,
    /// The old value as canonical JSON; absent if it was added, or can't be told.
    pub old: Option<String>,
    /// The new value as canonical JSON; absent if it was removed, or can't be told.
    pub new: Option<String>,
}

/// The differences of two payloads that were kept in full.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diff {
    /// In canonical order; within an array the removed items come last.
    pub changes: Vec<Change>,
    /// Whether there are more differences than these.
    pub truncated: bool,
}

/// Where two payloads differ, without values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DifferingPointers {
    /// What is new or changed in canonical order, then what is gone.
    pub pointers: Vec<String>,
    /// Whether there may be more differences than these.
    pub truncated: bool,
}

impl DifferingPointers {
    /// What can be told. None when nothing is known to differ and not everything was compared: an
    /// empty list would say that the payloads are the same.
    #[must_use]
    pub fn named(self) -> Option<Vec<String>> {
        (!self.pointers.is_empty() || !self.truncated).then_some(self.pointers)
    }
}

/// Compares two canonical JSON payloads. Arrays are compared index by index; if their order does
/// not count, equal items are matched first, then those that share the most members, and the others
/// pairwise in canonical order. The new payload's arrays may stand in the order they were sent in:
/// then that is the order that its pointers count by.
///
/// Fails only if a payload is not JSON.
pub fn diff_full(
    old: &[u8],
    new: &[u8],
    arrays: Arrays,
    mask: &[String],
) -> Result<Diff, CanonicalError> {
    diff_documents(old, new, false, Form { ignore: &[], mask, arrays, skip: Vec::new() })
}

/// Compares the fields of two forms: each that differs is told as a whole.
fn diff_fields(old: &[u8], new: &[u8], mask: &[String]) -> Result<Diff, CanonicalError> {
    let arrays = Arrays::Ordered;
    diff_documents(old, new, true, Form { ignore: &[], mask, arrays, skip: Vec::new() })
}

fn diff_documents(
    old: &[u8],
    new: &[u8],
    by_field: bool,
    form: Form<'_>,
) -> Result<Diff, CanonicalError> {
    let (old, new) = (Tape::parse(old)?, Tape::parse(new)?);
    let (pointer, diff) = (Pointer::default(), Diff::default());
    let mut differ = Differ { old: &old, new: &new, form, by_field, pointer, diff };
    differ.value(0, 0, false);
    Ok(differ.diff)
}

/// Compares a payload that was kept in full with a new one: bodies as [`diff_full`] does, forms by
/// field, then the queries by field. A body that became one of another kind differs as a whole.
///
/// # Errors
/// When a payload is not what it says.
pub fn diff_payloads(
    old: &FullPayload,
    new: Payload<'_>,
    arrays: Arrays,
    mask: &[String],
) -> Result<Diff, CanonicalError> {
    let mut diff = match new.body {
        CanonicalBody::Json(body) if !old.is_form => diff_full(&old.body, body, arrays, mask)?,
        CanonicalBody::Form(body) | CanonicalBody::Multipart(body) if old.is_form => {
            diff_fields(&old.body, body, mask)?
        }
        _ => Diff { changes: vec![whole("")], truncated: false },
    };
    if old.query != new.query {
        let queries = diff_queries(&old.query, new.query, mask)?;
        diff.truncated |= queries.truncated;
        diff.changes.extend(queries.changes);
    }
    Ok(diff)
}

/// Compares two queries that are not the same. Where no field tells the difference, all of it does.
fn diff_queries(old: &str, new: &str, mask: &[String]) -> Result<Diff, CanonicalError> {
    let mut diff = match (query_fields(old), query_fields(new)) {
        (Some(old), Some(new)) => diff_fields(&old, &new, mask)?,
        _ => Diff::default(),
    };
    for change in &mut diff.changes {
        change.pointer = format!("{QUERY}{}", unescaped(&change.pointer[1..]));
    }
    if diff.changes.is_empty() {
        diff.changes.push(whole(QUERY));
    }
    Ok(diff)
}

/// A change of something that has no values to show.
fn whole(pointer: &str) -> Change {
    Change { pointer: pointer.to_owned(), kind: ChangeKind::Changed, old: None, new: None }
}

/// A step of a JSON pointer as the name that it stands for.
fn unescaped(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

/// How many places are named before the others are counted.
const NAMED_MAX: usize = 5;

/// What differs, in words for people: `the field amount and the query field page`.
#[must_use]
pub fn differs_text(pointers: &[String]) -> String {
    let mut words: Vec<String> = Vec::new();
    for pointer in pointers {
        let word = match (pointer.strip_prefix(QUERY), pointer.strip_prefix('/')) {
            (Some(""), _) => "the query".to_owned(),
            (Some(name), _) => format!("the query field {name}"),
            // What is no field, or has no name that could be read.
            (_, Some(path)) if path.starts_with('\0') => "the body".to_owned(),
            (_, Some(path)) => {
                format!(
                    "the field {}",
                    path.split('/').map(unescaped).collect::<Vec<_>>().join("/")
                )
            }
            (None, None) => "the body".to_owned(),
        };
        if !words.contains(&word) {
            words.push(word);
        }
    }
    let more = words.len().saturating_sub(NAMED_MAX);
    if more > 0 {
        words.truncate(NAMED_MAX);
        words.push(format!("{more} more"));
    }
    match words.split_last() {
        None => "nothing that is kept".to_owned(),
        Some((last, [])) => last.clone(),
        Some((last, first)) => format!("{} and {last}", first.join(", ")),
    }
}

/// Compares kept leaf hashes with a new payload. Arrays are compared index by index in canonical
/// order, also if it does not count: one changed item may then name its neighbours too.
///
/// Fails only if the new payload should be JSON and is not.
pub fn diff_hashed<'p>(
    old: &KeptLeaves,
    new: impl Into<Payload<'p>>,
    key: &[u8; 32],
) -> Result<DifferingPointers, CanonicalError> {
    let kept = old.leaves().iter().map(|(pointer, hash)| (pointer.as_str(), *hash)).collect();
    let differing = DifferingPointers { pointers: Vec::new(), truncated: old.truncated() };
    let mut comparison = LeafComparison { old, kept, met: BTreeSet::new(), differing };
    walk_payload(new.into(), |pointer, leaf| {
        if pointer.len() > MAX_POINTER_BYTES {
            comparison.differing.truncated = true;
            return Flow::Past;
        }
        match leaf {
            Leaf::Container => comparison.container(pointer),
            leaf => comparison.leaf(pointer, || leaf.hash(key, pointer)),
        }
    })?;
    Ok(comparison.finish())
}

/// Where a new payload differs from a kept one, or none if nothing was kept.
pub fn differing_pointers<'p>(
    kept: &KeptPayload,
    new: impl Into<Payload<'p>>,
    arrays: Arrays,
    key: &[u8; 32],
) -> Result<Option<DifferingPointers>, CanonicalError> {
    match kept {
        KeptPayload::None => Ok(None),
        KeptPayload::Hashed(leaves) => diff_hashed(leaves, new, key).map(Some),
        KeptPayload::Full(old) => {
            let diff = diff_payloads(old, new.into(), arrays, &[])?;
            let pointers = diff.changes.into_iter().map(|change| change.pointer).collect();
            Ok(Some(DifferingPointers { pointers, truncated: diff.truncated }))
        }
    }
}

/// A walk over two documents at once. Recursion ends at `MAX_JSON_DEPTH`.
struct Differ<'d, 'i> {
    old: &'d Tape<'i>,
    new: &'d Tape<'i>,
    form: Form<'d>,
    /// Whether the members of the whole are fields, told as a whole each.
    by_field: bool,
    pointer: Pointer,
    diff: Diff,
}

impl<'d> Differ<'d, '_> {
    fn value(&mut self, old: usize, new: usize, masked: bool) {
        if self.diff.truncated && self.diff.changes.len() == MAX_DIFF_CHANGES {
            return;
        }
        if same(self.old, old, self.new, new) {
            return;
        }
        if self.by_field && !self.pointer.as_str().is_empty() {
            return self.change(Some(old), Some(new), masked);
        }
        match (self.old.node(old), self.new.node(new)) {
            (Node::Object { .. }, Node::Object { .. }) if !masked => self.objects(old, new),
            (Node::Array { .. }, Node::Array { .. }) if !masked => match self.form.arrays {
                Arrays::Ordered => self.ordered(old, new),
                Arrays::Unordered => self.unordered(old, new),
            },
            _ => self.change(Some(old), Some(new), masked),
        }
    }

    fn objects(&mut self, old: usize, new: usize) {
        // Copies of the references, so that `self` can be borrowed while the members are walked.
        let (old_tape, new_tape): (&'d Tape<'_>, &'d Tape<'_>) = (self.old, self.new);
        let mut olds = old_tape.members(old).peekable();
        let mut news = new_tape.members(new).peekable();
        loop {
            let (left, right) = (olds.peek().copied(), news.peek().copied());
            let order = match (left, right) {
                (Some(left), Some(right)) => {
                    key_order(old_tape.text_bytes(left), new_tape.text_bytes(right))
                }
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return,
            };
            let left = if order.is_le() { olds.next() } else { None };
            let right = if order.is_ge() { news.next() } else { None };
            let name = match (left, right) {
                (Some(key), _) => old_tape.text(key),
                (None, Some(key)) => new_tape.text(key),
                (None, None) => return,
            };
            let masked = is_masked(self.form.mask, name.as_bytes());
            let mark = self.pointer.member(name);
            // A key's value is the node after it.
            match (left, right) {
                (Some(left), Some(right)) => self.value(left + 1, right + 1, masked),
                _ => self.change(left.map(|key| key + 1), right.map(|key| key + 1), masked),
            }
            self.pointer.back(mark);
        }
    }

    fn ordered(&mut self, old: usize, new: usize) {
        let olds: Vec<_> = self.old.items(old).enumerate().collect();
        let news: Vec<_> = self.new.items(new).enumerate().collect();
        self.pairs(&olds, &news);
    }

    /// Takes out the items that both sides have (a merge of sorted items), then compares what is
    /// left in pairs: a changed item is named by what changed in it.
    fn unordered(&mut self, old: usize, new: usize) {
        let (mut only_old, mut only_new) = (Vec::new(), Vec::new());
        let plain = Form { ignore: &[], mask: &[], arrays: Arrays::Unordered, skip: Vec::new() };
        let written = self.new.items(new).enumerate().map(|(index, at)| {
            let mut bytes = Vec::new();
            plain.write(self.new, at, &mut bytes);
            (bytes, index, at)
        });
        let mut written: Vec<_> = written.collect();
        written.sort();
        let mut olds = self.old.items(old).enumerate().peekable();
        let mut news = written.iter().peekable();
        loop {
            let order = match (olds.peek(), news.peek()) {
                (Some(&(_, left)), Some((right, ..))) => self.old.source(left).cmp(right),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => break,
            };
            let left = if order.is_le() { olds.next() } else { None };
            let right = if order.is_ge() { news.next() } else { None };
            if order != Ordering::Equal {
                only_old.extend(left);
                only_new.extend(right.map(|(_, index, at)| (*index, *at)));
            }
        }
        self.match_alike(&mut only_old, &mut only_new);
        self.pairs(&only_old, &only_new);
    }

    /// Puts items that share members at the same place of both lists, those that share the most
    /// first, so that a line that was changed is not told as another that was replaced.
    fn match_alike(&self, olds: &mut Vec<(usize, usize)>, news: &mut Vec<(usize, usize)>) {
        if olds.len().max(news.len()) > ALIKE_ITEMS_MAX {
            return;
        }
        let mut alike = Vec::new();
        for (left, &(_, old)) in olds.iter().enumerate() {
            for (right, &(_, new)) in news.iter().enumerate() {
                let shared = self.shared_members(old, new);
                if shared > 0 {
                    alike.push((shared, left, right));
                }
            }
        }
        alike.sort_by_key(|&(shared, left, right)| (std::cmp::Reverse(shared), left, right));
        let (mut lefts, mut rights) = (BTreeSet::new(), BTreeSet::new());
        let mut pairs = Vec::new();
        for (_, left, right) in alike {
            if !lefts.contains(&left) && !rights.contains(&right) {
                lefts.insert(left);
                rights.insert(right);
                pairs.push((left, right));
            }
        }
        let left_over = |count: usize, taken: &BTreeSet<usize>| {
            (0..count).filter(|at| !taken.contains(at)).collect::<Vec<_>>()
        };
        let (lefts, rights) = (left_over(olds.len(), &lefts), left_over(news.len(), &rights));
        pairs.extend(lefts.iter().copied().zip(rights.iter().copied()));
        pairs.sort_by_key(|&(_, right)| news[right]);
        let (gone, added) = (lefts.iter().skip(rights.len()), rights.iter().skip(lefts.len()));
        let ordered = |list: &[(usize, usize)], first: Vec<usize>, rest: Vec<usize>| {
            first.into_iter().chain(rest).map(|at| list[at]).collect::<Vec<_>>()
        };
        let (first_olds, first_news) = pairs.into_iter().unzip();
        *olds = ordered(olds, first_olds, gone.copied().collect());
        *news = ordered(news, first_news, added.copied().collect());
    }

    /// How many members two objects have in common, names and values. Texts count twice: they name
    /// things, where numbers often are the same by chance.
    fn shared_members(&self, old: usize, new: usize) -> usize {
        let (Node::Object { .. }, Node::Object { .. }) = (self.old.node(old), self.new.node(new))
        else {
            return 0;
        };
        let mut news = self.new.members(new).peekable();
        let mut shared = 0;
        for left in self.old.members(old) {
            let name = self.old.text_bytes(left);
            let order = |right: usize| key_order(self.new.text_bytes(right), name);
            while news.next_if(|right| order(*right).is_lt()).is_some() {}
            let found = news.next_if(|right| order(*right).is_eq());
            if found.is_some_and(|at| same(self.old, left + 1, self.new, at + 1)) {
                let is_text =
                    matches!(self.old.node(left + 1), Node::Text { .. } | Node::Escaped { .. });
                shared += 1 + usize::from(is_text);
            }
        }
        shared
    }

    /// Compares items one by one, each with its index; then names the new ones, then the gone ones.
    fn pairs(&mut self, olds: &[(usize, usize)], news: &[(usize, usize)]) {
        for (&(_, old), &(index, new)) in olds.iter().zip(news) {
            let mark = self.pointer.item(index);
            self.value(old, new, false);
            self.pointer.back(mark);
        }
        for &(index, new) in news.iter().skip(olds.len()) {
            let mark = self.pointer.item(index);
            self.change(None, Some(new), false);
            self.pointer.back(mark);
        }
        for &(index, old) in olds.iter().skip(news.len()) {
            let mark = self.pointer.item(index);
            self.change(Some(old), None, false);
            self.pointer.back(mark);
        }
    }

    fn change(&mut self, old: Option<usize>, new: Option<usize>, masked: bool) {
        let pointer = self.pointer.as_str();
        if self.diff.changes.len() == MAX_DIFF_CHANGES || pointer.len() > MAX_POINTER_BYTES {
            self.diff.truncated = true;
            return;
        }
        let kind = match (old, new) {
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Removed,
            _ => ChangeKind::Changed,
        };
        let change = Change {
            pointer: pointer.to_owned(),
            kind,
            old: old.map(|at| self.shown(self.old, at, masked)),
            new: new.map(|at| self.shown(self.new, at, masked)),
        };
        self.diff.changes.push(change);
    }

    /// A value as text: masked fields inside it are hidden too.
    fn shown(&self, tape: &Tape<'_>, at: usize, masked: bool) -> String {
        if masked {
            return MASKED.to_owned();
        }
        let mut out = Vec::new();
        self.form.write(tape, at, &mut out);
        if out.len() > MAX_DIFF_VALUE_BYTES {
            return format!("\"({} bytes)\"", out.len());
        }
        // The writer copies text and ASCII only, so nothing is lossy here.
        String::from_utf8_lossy(&out).into_owned()
    }
}

/// Whether two values are equal: canonical values are when their bytes are.
fn same(old: &Tape<'_>, left: usize, new: &Tape<'_>, right: usize) -> bool {
    old.source(left) == new.source(right)
}

/// Compares kept leaves with those of a new payload, as the walk meets them.
struct LeafComparison<'k> {
    old: &'k KeptLeaves,
    kept: BTreeMap<&'k str, [u8; LEAF_HASH_BYTES]>,
    /// The kept pointers that the new payload accounts for.
    met: BTreeSet<&'k str>,
    differing: DifferingPointers,
}

impl LeafComparison<'_> {
    /// A leaf of the new payload.
    fn leaf(&mut self, pointer: &str, hash: impl FnOnce() -> [u8; LEAF_HASH_BYTES]) -> Flow {
        if let Some((&known, kept)) = self.kept.get_key_value(pointer) {
            self.met.insert(known);
            if *kept != hash() {
                self.differs(pointer);
            }
            return Flow::On;
        }
        // The query comes first and is short: it was kept if it was there.
        let is_query = pointer.starts_with(QUERY);
        // Beyond the leaves that were kept, nobody knows what was there.
        if is_query || self.was_container(pointer) || !self.old.truncated() {
            self.differs(pointer);
        }
        if self.is_full() { Flow::Stop } else { Flow::On }
    }

    /// Whether a container became this leaf: that is one change, not one per leaf it had.
    fn was_container(&mut self, pointer: &str) -> bool {
        let below = format!("{pointer}/");
        let from = (Bound::Included(below.as_str()), Bound::Unbounded);
        let inside = self.kept.range::<str, _>(from).map(|(&known, _)| known);
        let met_before = self.met.len();
        self.met.extend(inside.take_while(|known| known.starts_with(&below)));
        self.met.len() > met_before
    }

    /// A container of the new payload: where a leaf was before, it is one change.
    fn container(&mut self, pointer: &str) -> Flow {
        let Some((&known, _)) = self.kept.get_key_value(pointer) else { return Flow::On };
        self.met.insert(known);
        self.differs(pointer);
        Flow::Past
    }

    /// Whether nothing can be added any more, not even that something is missing.
    fn is_full(&self) -> bool {
        self.differing.truncated && self.differing.pointers.len() == MAX_DIFF_CHANGES
    }

    fn differs(&mut self, pointer: &str) {
        if self.differing.pointers.len() == MAX_DIFF_CHANGES {
            self.differing.truncated = true;
        } else {
            self.differing.pointers.push(pointer.to_owned());
        }
    }

    /// What was kept and not met is gone. The query comes last, and by its fields where they tell
    /// the difference.
    fn finish(mut self) -> DifferingPointers {
        for (pointer, _) in self.old.leaves() {
            if !self.met.contains(pointer.as_str()) {
                self.differs(pointer);
            }
        }
        let pointers = &mut self.differing.pointers;
        if pointers.iter().any(|pointer| pointer.starts_with(QUERY) && pointer != QUERY) {
            pointers.retain(|pointer| pointer != QUERY);
        }
        pointers.sort_by_key(|pointer| pointer.starts_with(QUERY));
        self.differing
    }
}

#[cfg(test)]
mod tests;
