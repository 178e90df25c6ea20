//! Signals of a process that serves: what ends it, and what must not.
//!
//! SIGTERM and SIGINT are for who waits for them. SIGHUP comes from log rotation and from a
//! terminal that closes, SIGUSR1, SIGUSR2 and SIGALRM by mistake: left alone each would end the
//! process in the middle of its requests. SIGXFSZ says that a file may not grow, which the write
//! is told too, as of a full disk.

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// SIGTERM and SIGINT; the others end nothing from now on.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from now on.
    pub(crate) fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::failed("signals", format!("can't listen for signals: {error}"))
            })
        };
        let ignored = [Number::XFSZ, Number::USR1, Number::USR2, Number::ALARM];
        for number in ignored {
            // Who listens has taken the signal for good: it ends nothing, heard or not.
            let _ = listen(SignalKind::from_raw(number.as_raw()))?;
        }
        tokio::spawn(tell_of_hangups(listen(SignalKind::hangup())?));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Resolves when one comes.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn tell_of_hangups(mut hangup: Signal) {
    while hangup.recv().await.is_some() {
        tracing::warn!(
            "SIGHUP came and changes nothing: the configuration is read at the start; restart to \
             have it read anew"
        );
    }
}
