//! What the start says of a configuration: which file was read, what is protected, what passes, and
//! what is weaker than it looks.

use onceward::http::{Mode, Unmatched};

use super::Config;
use super::field::Field as _;
use super::sections::Source;

impl Config {
    /// Which file was read and what is protected, in a line.
    pub(crate) fn protection(&self) -> String {
        let file = match &self.file {
            Some(file) => format!("config {file}"),
            None => "no config file".into(),
        };
        if self.routes.is_empty() {
            return format!("{file} · every POST, PUT, PATCH and DELETE with a key is protected");
        }
        let count = |mode| self.routes.iter().filter(|route| route.mode == mode).count();
        let enforced = count(Mode::Enforce);
        let mut parts =
            vec![format!("{enforced} route{} protected", if enforced == 1 { "" } else { "s" })];
        for (mode, told) in [(Mode::Shadow, "in shadow mode"), (Mode::Off, "off")] {
            let count = count(mode);
            if count > 0 {
                parts.push(format!("{count} {told}"));
            }
        }
        parts.push(match self.server.unmatched {
            Unmatched::Pass => "others pass".into(),
            Unmatched::RefuseKeyed => "others pass without a key".into(),
            Unmatched::Refuse => "others refused".into(),
        });
        format!("{file} · {}", parts.join(", "))
    }

    /// What is wrong with an identity that whoever reaches the listener may claim.
    pub(crate) fn open_identity(&self) -> Option<String> {
        let (source, listen) = (self.identity.source, self.server.listen);
        let told = match source {
            Source::Single => "everybody who reaches it is the same caller",
            Source::Header => "whoever reaches it may name any tenant and caller",
            _ => return None,
        };
        (!listen.ip().is_loopback()).then(|| {
            format!(
                "[identity] source = {} with listen = {listen}, which is not loopback: {told}; let \
                 only a trusted proxy reach it, or use another source",
                source.show().unwrap_or_default()
            )
        })
    }
}
