//! How many files and connections the process may have open: as many as it is allowed, and some of
//! them kept back.
//!
//! Shells start programs with a small limit that every program may raise up to a larger one. A
//! gateway has two connections per request, so it does. Where that is not enough, clients wait, and
//! so do requests for a connection to their upstream, rather than take what the store, the control
//! API and health need: who holds connections open and sends nothing is no reason to be blind.

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

/// How files are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Clients of the gateway at once, and as many connections to upstreams.
    pub(crate) clients: usize,
    /// Clients of the control API at once.
    pub(crate) control: usize,
}

/// Files that the store and the cache may open later.
const STORE: u64 = 32;
/// Of how many files one is a client's of the control API.
const CONTROL_PART: u64 = 8;
/// Files that are open already where nobody can count them.
const OPEN_ALREADY: u64 = 64;

impl Shares {
    /// As the process is now: to be asked once the store is open.
    pub(crate) fn now() -> Self {
        // None is without a limit.
        let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::of(allowed, open_now().unwrap_or(OPEN_ALREADY))
    }

    fn of(allowed: u64, open: u64) -> Self {
        let control = (allowed / CONTROL_PART).max(1);
        let free = allowed.saturating_sub(open).saturating_sub(STORE).saturating_sub(control);
        let size = |files: u64| usize::try_from(files).unwrap_or(usize::MAX);
        Self { clients: size((free / 2).max(1)), control: size(control) }
    }
}

/// How many files are open, where the system tells.
fn open_now() -> Option<u64> {
    let listed = ["/proc/self/fd", "/dev/fd"].iter().find_map(|at| std::fs::read_dir(at).ok())?;
    u64::try_from(listed.count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l4_files_are_left_for_store_control_and_upstreams() {
        for (allowed, open) in [(64, 20), (128, 30), (256, 60), (1_024, 70), (1_048_576, 70)] {
            let Shares { clients, control } = Shares::of(allowed, open);
            let taken = 2 * clients as u64 + control as u64 + open + STORE;
            assert!(taken <= allowed || clients == 1, "{allowed}: {taken}");
            assert!(clients > 0 && control > 0);
        }
        assert!(Shares::of(1_048_576, 70).clients > 400_000);
        assert_eq!(Shares::of(16, 30), Shares { clients: 1, control: 2 });
        assert!(open_now().is_none_or(|open| open > 2), "at least the standard ones");
    }
}
