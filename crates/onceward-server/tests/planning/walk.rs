//! The walk of `docs/planning.md`: its commands are run, and print what it says.

use super::page;
use super::world::Service;

#[test]
fn the_walk_prints_what_the_page_says() {
    let service = Service::start("walk");
    page::walk("planning", "PLANNING", &service.listen.to_string());
}
