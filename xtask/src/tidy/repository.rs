//! The rules over the repository: documents, manifests, dependencies of the core, wording.
//!
//! The rule kept here: what is forbidden is spelt in pieces, so that this file passes its own
//! check. Rules over single Rust files are in `rules`.

use std::collections::BTreeSet;

use super::Finding;

/// What a reader looks for first.
const DOCUMENTS: &[&str] = &["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"];

/// The question whose answer [`core_dependencies`] reads.
pub(super) const CORE_TREE: &[&str] = &[
    "tree",
    "--package",
    "onceward-core",
    "--edges",
    "normal",
    "--target",
    "all",
    "--all-features",
    "--prefix",
    "none",
    "--format",
    "{p}",
];

/// All that the core may stand on: a hash and a derive for errors, with what these need.
const CORE_MAY_USE: &[&str] = &[
    "onceward-core",
    // sha2
    "sha2",
    "block-buffer",
    "cfg-if",
    "const-oid",
    "cpufeatures",
    "crypto-common",
    "digest",
    "hybrid-array",
    "libc",
    "typenum",
    // thiserror
    "thiserror",
    "thiserror-impl",
    "proc-macro2",
    "quote",
    "syn",
    "unicode-ident",
];

/// Marks of unfinished work, refused as words of their own in capitals.
const MARKS: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X")];

/// Words about how or where somebody works, which are not about the project. Any case.
const WORKPLACE: &[&str] = &[
    concat!("sub", "agent"),
    concat!("sub", "-agent"),
    concat!("prompt ", "engineering"),
    concat!("coding ", "agent"),
    concat!("cl", "aude"),
    concat!("anth", "ropic"),
    concat!("cop", "ilot"),
    concat!("chat", "gpt"),
    concat!("open", "ai"),
    concat!("artif", "actory"),
];

/// A folder of one machine, refused where it begins a path.
const MACHINE_FOLDERS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Words that do not belong in the repository.
pub(super) fn words(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let small = line.to_lowercase();
        let marks = MARKS.iter().filter(|mark| stands_alone(line, mark));
        let named = WORKPLACE.iter().filter(|word| small.contains(**word));
        let folders = MACHINE_FOLDERS.iter().filter(|folder| begins_path(line, folder));
        for word in marks.chain(named).chain(folders) {
            let message = format!("`{word}` does not belong in the repository");
            findings.push(Finding { path: path.to_owned(), line: at + 1, rule: "words", message });
        }
    }
    findings
}

fn stands_alone(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric()).any(|part| part == word)
}

/// Inside a longer path or an address the same letters mean something else.
fn begins_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-*}$/~".contains(c))
    })
}

/// The documents exist and say something.
pub(super) fn documents<'a>(read: impl Fn(&str) -> Option<&'a str>) -> Vec<Finding> {
    let is_missing = |path: &&&str| read(path).is_none_or(|text| text.trim().is_empty());
    let missing = DOCUMENTS.iter().filter(is_missing);
    missing
        .map(|path| Finding {
            path: (*path).to_owned(),
            line: 0,
            rule: "documents",
            message: "the document is missing or empty".to_owned(),
        })
        .collect()
}

/// Every feature says above itself what it is for. `default` only chooses among them.
pub(super) fn features(path: &str, manifest: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut inside, mut above) = (false, "");
    for (at, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.trim() == "[features]";
        } else if inside && let Some((name, _)) = line.split_once('=') {
            // The continuation of a list is indented; a feature is not.
            let is_feature = !line.starts_with(char::is_whitespace) && !line.starts_with('#');
            if is_feature && name.trim() != "default" && !above.starts_with('#') {
                let message = format!("feature `{}` has no comment above it", name.trim());
                let path = path.to_owned();
                findings.push(Finding { path, line: at + 1, rule: "features", message });
            }
        }
        above = line;
    }
    findings
}

/// Invariant 1, by what the core links: reads the answer to [`CORE_TREE`].
pub(super) fn core_dependencies(tree: &str) -> Vec<Finding> {
    let names: BTreeSet<&str> =
        tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let mut findings: Vec<Finding> = names
        .iter()
        .filter(|name| !CORE_MAY_USE.contains(name))
        .map(|name| format!("the core depends on `{name}`, which is not on its short list"))
        .map(core_finding)
        .collect();
    if !names.contains("onceward-core") {
        findings.push(core_finding("cargo tree does not show the core at all".to_owned()));
    }
    findings
}

fn core_finding(message: String) -> Finding {
    let path = "crates/onceward-core/Cargo.toml".to_owned();
    Finding { path, line: 0, rule: "core", message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_on_the_lists_is_found() {
        for word in MARKS.iter().chain(WORKPLACE).chain(MACHINE_FOLDERS) {
            let text = format!("fine\nsee {word}, please\n");
            let found = words("README.md", &text);
            assert!(found.iter().any(|f| f.line == 2), "{word}");
        }
        let capitals = WORKPLACE[0].to_uppercase();
        assert_eq!(words("a.md", &capitals).len(), 1, "any case");
    }

    #[test]
    fn words_that_only_look_alike_are_left_alone() {
        for text in [
            format!("mktemp /tmp/a.{}", MARKS[1].repeat(2)),
            format!("https://host.example{}a", MACHINE_FOLDERS[0]),
            format!("target{}a", MACHINE_FOLDERS[0]),
            "a database cursor, an agent of change".to_owned(),
        ] {
            assert_eq!(words("a.md", &text), [], "{text}");
        }
    }

    #[test]
    fn documents_exist_and_are_not_empty() {
        let texts = [("README.md", "# A"), ("ARCHITECTURE.md", " \n"), ("CHANGELOG.md", "b")];
        let read = |path: &str| texts.iter().find(|(name, _)| *name == path).map(|(_, text)| *text);
        let found: Vec<_> = documents(read).into_iter().map(|f| f.path).collect();
        assert_eq!(found, ["ARCHITECTURE.md", "CONTRIBUTING.md"]);
        assert_eq!(documents(|_| Some("text")), []);
    }

    #[test]
    fn features_are_commented() {
        let manifest = "[package]\nname = \"a\"\n\n[features]\ndefault = [\"a\"]\n\
                        # For a.\na = []\nb = [\n    \"c=d\",\n]\n\n# For c.\nc = []\n\n\
                        [dependencies]\ne = \"1\"\n";
        let found: Vec<_> = features("Cargo.toml", manifest);
        let found: Vec<_> = found.iter().map(|f| (f.line, f.message.as_str())).collect();
        assert_eq!(found, [(8, "feature `b` has no comment above it")]);
    }

    #[test]
    fn the_core_stands_on_little() {
        let tree = "onceward-core v0.1.0 (/x)\nsha2 v0.11.0\nthiserror v2.0.0\nsha2 v0.11.0 (*)\n";
        assert_eq!(core_dependencies(tree), []);
        let found = core_dependencies(&format!("{tree}tokio v1.0.0\n"));
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("`tokio`"), "{found:?}");
        assert_eq!(core_dependencies("").len(), 1, "an empty answer is no proof");
    }
}
