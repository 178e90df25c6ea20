//! How many files and connections the process may have open: as many as it is allowed.
//!
//! Shells start programs with a small limit that every program may raise up to a larger one. A
//! gateway has two connections per request, so it does.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit as far as it goes.
pub(crate) fn raise() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        // Where that is refused, what there was has to do.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Files beside the clients' connections: the store's, and connections to upstreams.
const OTHERS: u64 = 1_024;

/// Whether so many clients can't all be connected. Then gives how many files may be open.
pub(crate) fn too_few_for(connections: u32) -> Option<u64> {
    let needed = u64::from(connections) + OTHERS;
    getrlimit(Resource::Nofile).current.filter(|allowed| *allowed < needed)
}
