//! The README can't rot: its transcript is what the example prints, its table what stores answer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

use onceward::store::memory::MemoryStore;
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use onceward::store::{Capabilities, Store};

#[path = "../examples/claim_and_complete.rs"]
mod example;

const README: &str = include_str!("../../../README.md");

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("onceward-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[tokio::test]
async fn the_transcript_is_what_the_example_prints() {
    let folder = folder("readme");
    let printed = example::transcript(&folder).await.unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let start = README.find("```text\n").unwrap() + "```text\n".len();
    let shown = &README[start..start + README[start..].find("```").unwrap()];
    assert_eq!(shown, printed);
}

#[test]
fn the_first_screen_fits_a_screen() {
    let first_screen = README.split("<!-- stores:begin").next().unwrap().lines().count();
    assert!(first_screen <= 45, "{first_screen} lines before the table of stores");
}

fn row(capabilities: &Capabilities) -> String {
    let clock = if capabilities.clock { "its own clock" } else { "watching revs" };
    format!(
        "| `{}` | {} | {clock} | {} | all cases |",
        capabilities.name, capabilities.durability, capabilities.group_max
    )
}

#[test]
fn the_table_of_stores_is_what_they_answer() {
    let folder = folder("readme-table");
    let sqlite = SqliteStore::open(folder.join("t.db"), SqliteOptions::default()).unwrap();
    for capabilities in [sqlite.capabilities(), MemoryStore::new().capabilities()] {
        let row = row(&capabilities);
        assert!(README.contains(&row), "the README lacks this row:\n{row}");
    }
    drop(sqlite);
    std::fs::remove_dir_all(&folder).unwrap();
}
