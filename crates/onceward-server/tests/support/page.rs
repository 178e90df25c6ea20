//! The walk of a page: its commands are run, and print what the page says.

use std::process::Command;

/// Runs all `sh` blocks of `docs/<page>.md` as one script, with a variable that tells where the
/// service is; what it prints are the `text` blocks.
pub(crate) fn walk(page: &str, variable: &str, listen: &str) {
    let path = format!("{}/../../docs/{page}.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(path).unwrap();
    let blocks = |language: &str| {
        let start = format!("```{language}\n");
        let parts = page.split(&start).skip(1);
        parts.map(|part| part.split("```").next().unwrap()).collect::<String>()
    };
    let (script, expected) = (blocks("sh"), blocks("text"));
    assert!(script.lines().count() > 10);
    let ran = Command::new("bash")
        .args(["-eu", "-o", "pipefail", "-c", &script])
        .env(variable, format!("http://{listen}"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), expected, "{said}");
    assert!(ran.status.success(), "{said}");
}
