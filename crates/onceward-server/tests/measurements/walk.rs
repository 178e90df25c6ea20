//! The walk of `docs/measurements.md`: its commands are run, and print what it says.

use std::process::Command;

use super::world::Service;

#[test]
fn the_walk_prints_what_the_page_says() {
    let service = Service::start("walk");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/measurements.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = |language: &str| {
        let start = format!("```{language}\n");
        let parts = page.split(&start).skip(1);
        parts.map(|part| part.split("```").next().unwrap()).collect::<String>()
    };
    let (script, expected) = (blocks("sh"), blocks("text"));
    assert!(script.lines().count() > 15);
    let ran = Command::new("bash")
        .args(["-eu", "-o", "pipefail", "-c", &script])
        .env("MEASUREMENTS", format!("http://{}", service.listen))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), expected, "{said}");
    assert!(ran.status.success(), "{said}");
}
