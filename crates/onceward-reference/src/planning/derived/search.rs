//! `GET /v1/search?q=`: projects, missions and collaborators by the words of their names.
//!
//! Every word of a name is a document of its own, `{word}/{kind}/{id}`, so that a prefix of a word
//! is a prefix of an id. What is found holds all words of `q`, each as the beginning of a word.

use std::collections::BTreeSet;

use axum::extract::{FromRequestParts, Query, State};
use http::request::Parts;
use onceward::core::key::Subject;
use onceward::engine::{Engine, EngineError};
use onceward::http::Preconditions;
use onceward::worker::{Context, Done, JobError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::planning::Planning;
use crate::planning::jobs::{Index, told};
use crate::planning::problem::{Answer, Problem};
use crate::planning::reads::{Page, Reader, page};
use crate::planning::resource::Resource;

const WORDS: &str = "planning.word";
const INDEXED: &str = "planning.indexed";
/// Words of a name that it is found by, and characters of each: a batch holds 40 writes.
const WORDS_MAX: usize = 12;
const WORD_CHARS_MAX: usize = 40;

/// What is found by a word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Hit {
    /// `mission/7`.
    resource: String,
    version: u64,
    text: String,
    /// All words, in their order.
    words: Vec<String>,
}

impl Hit {
    fn new(resource: &str, version: u64, text: &str, words: &BTreeSet<String>) -> Self {
        let words = words.iter().cloned().collect();
        Self { resource: resource.into(), version, text: text.into(), words }
    }

    fn bytes(&self) -> Vec<u8> {
        json!(self).to_string().into_bytes()
    }

    /// Whether it is to be shown for these beginnings, when it was found by `word`: once, although
    /// several of its words may fit.
    fn answers(&self, word: &str, wanted: &BTreeSet<String>) -> bool {
        let fits = |start: &String| self.words.iter().find(|word| word.starts_with(start.as_str()));
        let first = wanted.first().and_then(fits);
        first.is_some_and(|first| first == word) && wanted.iter().all(|start| fits(start).is_some())
    }

    fn shown(&self) -> Value {
        let (kind, id) = self.resource.split_once('/').unwrap_or_default();
        json!({ "type": kind, "id": id, "version": self.version, "text": self.text })
    }
}

/// Which words a resource is found by, and as of which version.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Indexed {
    version: u64,
    words: BTreeSet<String>,
}

/// Files a resource that no job ever filed: what the configuration makes is no write of anybody, so
/// none follows it. What is there already stays, be it from a start that did not come to its end.
pub(in crate::planning) async fn file(
    engine: &Engine,
    organisation: &str,
    resource: &Resource,
    text: &str,
) -> Result<(), EngineError> {
    let (named, version) = (resource.subject(), resource.version);
    let indexed = Subject::new(organisation, INDEXED, &named)?;
    if engine.get(&indexed).await?.is_some() {
        return Ok(());
    }
    let words = words(text, WORDS_MAX);
    let hit = Hit::new(&named, version, text, &words).bytes();
    for word in &words {
        let subject = Subject::new(organisation, WORDS, &format!("{word}/{named}"))?;
        engine.put(&subject, 0, Some(hit.clone().into())).await?;
    }
    let now = json!(Indexed { version, words }).to_string().into_bytes();
    engine.put(&indexed, 0, Some(now.into())).await?;
    Ok(())
}

/// Files a resource under the words of its name, in one commit with the end of its job.
pub(in crate::planning) async fn index(job: Context) -> Result<Done, JobError> {
    let index: Index = told(&job)?;
    let seen = job.read(INDEXED, &index.resource).await?;
    let before = seen.value.as_deref().and_then(|value| serde_json::from_slice(value).ok());
    let before: Indexed = before.unwrap_or_default();
    let mut done = Done::new();
    if before.version >= index.version {
        return Ok(done);
    }
    let words = words(index.text.as_deref().unwrap_or_default(), WORDS_MAX);
    for word in before.words.difference(&words) {
        let left = job.read(WORDS, &format!("{word}/{}", index.resource)).await?;
        done.delete(&left)?;
    }
    let text = index.text.as_deref().unwrap_or_default();
    let hit = Hit::new(&index.resource, index.version, text, &words).bytes();
    for word in &words {
        let filed = job.read(WORDS, &format!("{word}/{}", index.resource)).await?;
        done.put(&filed, hit.clone())?;
    }
    let now = Indexed { version: index.version, words };
    done.put(&seen, json!(now).to_string().into_bytes())?;
    Ok(done)
}

/// The first words of a text: letters and digits, in lower case.
fn words(text: &str, count_max: usize) -> BTreeSet<String> {
    let text = text.to_lowercase();
    let words = text.split(|character: char| !character.is_alphanumeric());
    let cut = |word: &str| word.chars().take(WORD_CHARS_MAX).collect::<String>();
    words.filter(|word| !word.is_empty()).map(cut).take(count_max).collect()
}

/// What is looked for.
#[derive(Deserialize)]
struct SearchQuery {
    q: String,
}

/// The words that are looked for.
pub(in crate::planning) struct Wanted(BTreeSet<String>);

impl<S: Send + Sync> FromRequestParts<S> for Wanted {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<SearchQuery>::from_request_parts(head, state).await;
        let Query(query) = query.map_err(|error| Problem::malformed(error.body_text()))?;
        // All of them: what does not hold one is not found.
        Ok(Self(words(&query.q, usize::MAX)))
    }
}

/// Finds what holds every word of `q`, as far as the jobs have come.
pub(in crate::planning) async fn search(
    State(planning): State<Planning>,
    reader: Reader,
    preconditions: Preconditions,
    mut asked: Page,
    Wanted(wanted): Wanted,
) -> Answer {
    let mut items = Vec::new();
    let Some(start) = wanted.first() else { return page(&items, None, &preconditions) };
    loop {
        let (engine, tenant) = (planning.engine(), reader.tenant());
        let left = asked.limit - items.len();
        let found = engine.documents(tenant, WORDS, start, asked.after, left).await?;
        for document in &found.0 {
            let id = document.subject.id();
            let (word, _) = id.split_once('/').unwrap_or_default();
            if let Ok(hit) = serde_json::from_slice::<Hit>(&document.value)
                && hit.answers(word, &wanted)
            {
                items.push(hit.shown());
            }
        }
        asked.after = found.1;
        if asked.after.is_none() || items.len() >= asked.limit {
            return page(&items, asked.after.as_ref(), &preconditions);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(text: &str) -> Hit {
        let words = words(text, WORDS_MAX).into_iter().collect();
        Hit { resource: "mission/7".into(), version: 1, text: text.into(), words }
    }

    #[test]
    fn words_are_letters_and_digits_in_lower_case() {
        let words = |text: &str| words(text, WORDS_MAX);
        let found: Vec<_> = words("Fähre 7, nach-Norden! fähre").into_iter().collect();
        assert_eq!(found, ["7", "fähre", "nach", "norden"]);
        assert_eq!(words(&"many different words 1 2 3 4 5 6 7 8 9 10 11".repeat(2)).len(), 12);
        assert!(words("/%:").is_empty());
    }

    #[test]
    fn every_word_must_begin_one_and_a_hit_is_shown_once() {
        let hit = hit("Plan the planting");
        for (q, word, answers) in [
            ("pla", "plan", true),
            ("pla", "planting", false),
            ("planti", "planting", true),
            ("planti the", "planting", true),
            ("plan x", "plan", false),
        ] {
            let wanted = words(q, usize::MAX);
            assert_eq!(hit.answers(word, &wanted), answers, "{q} by {word}");
        }
    }
}
